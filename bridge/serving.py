"""Files to the VM: strong ETags, one Range, If-Range as RFC 9110 has it, and sendfile from an open descriptor.

The server library's own file response is not used: it gets If-Range wrong (a client that resumes is given a stitched,
corrupt file) and opens by path. Here the descriptor is opened once, without following a link, and what is sent comes
from it.
"""

from __future__ import annotations

import asyncio
import io
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import BinaryIO

from aiohttp import web

from bridge import bodies, raw_body
from bridge.answers import ALWAYS, Refused
from bridgehead.errors import UsageError

_RANGE = re.compile(r"bytes=(\d{0,15})-(\d{0,15})\Z")
_TYPE = "application/octet-stream"


@dataclass(frozen=True)
class Content:
    """Something to serve; `handle` is an open regular file, or bytes in memory."""

    handle: BinaryIO
    size: int
    sha256: str

    @property
    def etag(self) -> str:
        return f'"{self.sha256}"'


def content_of_fd(fd: int, size: int, sha256: str) -> Content:
    return Content(os.fdopen(fd, "rb", buffering=0), size, sha256)


def content_of_bytes(data: bytes, sha256: str) -> Content:
    return Content(io.BytesIO(data), len(data), sha256)


async def serve(request: web.BaseRequest, content: Content) -> web.StreamResponse:
    """Answer a GET or HEAD with `content`, and close it. Raises Refused(416)."""
    with content.handle:
        if _matches_any(content.etag, request.headers.get("If-None-Match")):
            return web.Response(status=304, headers={**ALWAYS, "ETag": content.etag})
        part = _wanted(request.method, request.headers, content)
        start, count = part or (0, content.size)
        headers = {**ALWAYS, "ETag": content.etag, "Accept-Ranges": "bytes", "Content-Type": _TYPE}
        if part is not None:
            headers["Content-Range"] = f"bytes {start}-{start + count - 1}/{content.size}"
        response = web.StreamResponse(status=200 if part is None else 206, headers=headers)
        response.content_length = count
        await response.prepare(request)
        if request.method != "HEAD" and count:
            await _send(request, response, content.handle, start, count)
        await response.write_eof()
        return response


async def _send(
    request: web.BaseRequest, response: web.StreamResponse, handle: BinaryIO, start: int, count: int
) -> None:
    if isinstance(handle, io.BytesIO):
        handle.seek(start)
        await response.write(handle.read(count))
        return
    transport = request.transport
    if transport is None:
        raise ConnectionResetError("the client went away")
    sent = -1
    try:
        if raw_body.may_send(request, count):
            await raw_body.send_file(request, handle.fileno(), start, count, stall_s=bodies.STALL_S)
            sent = count
        else:
            sent = await asyncio.get_running_loop().sendfile(transport, handle, start, count)
    except (OSError, raw_body.Stalled):  # a disk error, or the client went away or sleeps
        pass
    if sent != count:  # or the file got shorter: the promised length can't be kept, and the client must see a cut
        transport.abort()
        raise ConnectionResetError("the file could not be sent to its end")


def _wanted(method: str, headers: Mapping[str, str], content: Content) -> tuple[int, int] | None:
    """Start and count. None, the whole file: no range, several, a malformed one, or one of another version."""
    match = _RANGE.match(headers.get("Range", "").strip())
    if method != "GET" or match is None or not any(match.groups()):
        return None
    if headers.get("If-Range", content.etag) != content.etag:  # strong comparison: a weak tag or a date never fits
        return None
    first, last = match.groups()
    if first:
        start, end = int(first), min(int(last or content.size), content.size - 1)
        if last and int(last) < start:
            return None
    else:
        start, end = max(0, content.size - int(last)), content.size - 1
    if start > end:
        raise Refused(
            416, UsageError("the file has no such range"), headers={"Content-Range": f"bytes */{content.size}"}
        )
    return start, end - start + 1


def _matches_any(etag: str, header: str | None) -> bool:
    """If-None-Match: a list, compared weakly."""
    if header is None:
        return False
    tags = [tag.strip() for tag in header.split(",")]
    return "*" in tags or etag in [tag.removeprefix("W/") for tag in tags]
