"""What goes down to a VM besides the manifest: payload files by path or by hash, lists of blocks, and packs."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import re
import threading
import zlib
from collections.abc import Iterator
from types import TracebackType

from aiohttp import web

from bridge import bodies
from bridge.answers import ALWAYS, answer_json
from bridge.auth import Caller
from bridge.payload import Payload
from bridge.serving import content_of_fd, serve
from bridgehead import names, packs, paths, signing
from bridgehead.errors import NotFoundError
from bridgehead.packs import Part

_BY_PATH = f"{names.SERVE_PREFIX}{names.VM_PAYLOAD}/"
_BY_SHA256 = re.compile(
    re.escape(names.SERVE_PREFIX) + rf"({names.SERVE_CONTENT}|{names.SERVE_BLOCKS})/([0-9a-f]{{64}})\Z"
)
_BATCH_BYTES = 1 << 20  # read ahead of a slow reader, for each pack
_SLICE_BYTES = 1 << 17
_PROBE_BYTES = 1 << 16
_PAYS = 0.8  # deflated, a pack has to be this much smaller: the VM's time is not free either


class Deliveries:
    """Answers of one payload; everything that reads the disk runs on a thread."""

    def __init__(self, payload: Payload) -> None:
        self._payload = payload

    async def get(self, request: web.BaseRequest, caller: Caller, path: str) -> web.StreamResponse | None:
        """The answer to a GET or HEAD below /serve/; None when `path` is none of ours."""
        if path.startswith(_BY_PATH):
            relative = paths.check_relative(path.removeprefix(_BY_PATH))
            return await serve(request, content_of_fd(*await asyncio.to_thread(self._payload.open, relative)))
        match = _BY_SHA256.match(path)
        if match is None:
            return None
        what, sha256 = match.groups()
        if what == names.SERVE_CONTENT:
            fd, size = await asyncio.to_thread(self._payload.open_content, sha256)
            return await serve(request, content_of_fd(fd, size, sha256))
        size, digests = await asyncio.to_thread(self._payload.blocks, sha256)
        told = {"reply_to": caller.nonce, "sha256": sha256, "size": size, "blocks": base64.b64encode(digests).decode()}
        return answer_json(signing.sign_document(caller.key, "blocks", told))

    async def pack(self, request: web.BaseRequest, document: object) -> web.StreamResponse:
        """The parts that a POST asks for, read as they are sent. Raises UsageError for what is not a request."""
        parts, deflate = packs.read_request(document)
        response = web.StreamResponse(headers={**ALWAYS, "Content-Type": "application/octet-stream"})
        with _Reader(self._payload, parts, deflate=deflate) as reader:
            piece = await asyncio.to_thread(reader.next_batch)
            await response.prepare(request)
            while piece:
                await _write(request, response, piece)
                piece = await asyncio.to_thread(reader.next_batch)
        await response.write_eof()
        return response


async def _write(request: web.BaseRequest, response: web.StreamResponse, piece: bytes) -> None:
    """In small slices, so that the time-out is for a reader that sleeps and not for a slow line."""
    try:
        for start in range(0, len(piece), _SLICE_BYTES):
            async with asyncio.timeout(bodies.STALL_S):
                await response.write(piece[start : start + _SLICE_BYTES])
    except TimeoutError:
        if request.transport is not None:
            request.transport.abort()
        raise ConnectionResetError("the reader of a pack sleeps") from None


class _Reader:
    """A pack, batch by batch. Frames are made on whatever thread asks for the next one."""

    def __init__(self, payload: Payload, parts: list[Part], *, deflate: bool) -> None:
        self._payload = payload
        self._frames = self._read(parts)
        self._may_deflate = deflate
        self._deflater: zlib._Compress | None = None
        self._begun = self._ended = False
        self._open: tuple[str, int] | None = None  # blocks of one file mostly come one after the other
        self._reading = threading.Lock()  # a request that is called off ends before its thread does

    def __enter__(self) -> _Reader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._reading:
            self._ended = True
            self._close()

    def next_batch(self) -> bytes:
        """Empty at the end."""
        with self._reading:
            return b"" if self._ended else self._next_batch()

    def _next_batch(self) -> bytes:
        batch = bytearray()
        for frame in self._frames:
            batch += frame
            if len(batch) >= _BATCH_BYTES:
                break
        else:
            self._ended = True
        return self._first(batch) if not self._begun else self._rest(batch)

    def _first(self, batch: bytearray) -> bytes:
        self._begun = True
        probe = memoryview(batch)[:_PROBE_BYTES]
        if self._may_deflate and len(zlib.compress(probe, 1)) < _PAYS * len(probe):
            self._deflater = zlib.compressobj(1)
        return (packs.DEFLATED if self._deflater else packs.PLAIN) + self._rest(batch)

    def _rest(self, batch: bytearray) -> bytes:
        if self._deflater is None:
            return bytes(batch)
        # Flushed, so that what a cut leaves can be read up to its last batch.
        mode = zlib.Z_FINISH if self._ended else zlib.Z_SYNC_FLUSH
        return self._deflater.compress(batch) + self._deflater.flush(mode)

    def _read(self, parts: list[Part]) -> Iterator[bytes]:
        for part in parts:
            data = self._content(part)
            if data is None:
                yield packs.frame_head(packs.GONE)
            else:
                yield packs.frame_head(part.length)
                yield data

    def _content(self, part: Part) -> bytes | None:
        """None for a file that has changed, or got shorter just now."""
        if self._open is None or self._open[0] != part.sha256:
            self._close()
            try:
                self._open = part.sha256, self._payload.open_content(part.sha256)[0]
            except NotFoundError:
                return None
        fd = self._open[1]
        with contextlib.suppress(OSError):
            os.lseek(fd, part.start, os.SEEK_SET)
            data = os.read(fd, part.length)
            if len(data) == part.length:
                return data
        return None

    def _close(self) -> None:
        if self._open is not None:
            os.close(self._open[1])
            self._open = None
