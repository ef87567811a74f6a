"""The bytes of one file to Drive: in one request when small, else through a session that survives cuts.

A new file gets an id from Drive first, so repeating a request whose answer was lost can't make a second file.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import requests

from bridgehead.errors import StoreError
from vm_daemons.storage.drive_http import DriveHttp, NotThere, Passing, json_object

GRAIN_BYTES: Final = 256 * 1024  # chunks of a session are multiples of this
SMALL_BYTES: Final = 1 << 20  # up to here one request is cheaper than a session
CHUNK_BYTES: Final = 8 << 20
FILE_FIELDS: Final = "id,name,parents,size,md5Checksum,sha256Checksum,trashed,modifiedTime,appProperties"
_SESSIONS: Final = 3  # new ones for one file before somebody else has to decide
_FAILURES: Final = 8  # in a row, without a byte that arrived
_READ_BYTES: Final = 1 << 20


@dataclass(frozen=True)
class Content:
    """What is to be sent, and how to recognise it over there."""

    size: int
    md5: str
    sha256: str
    source: Path | None = None
    data: bytes = b""

    @classmethod
    def of_file(cls, source: Path) -> Content:
        md5, sha256, size = hashlib.md5(usedforsecurity=False), hashlib.sha256(), 0
        with source.open("rb") as handle:
            while piece := handle.read(_READ_BYTES):
                md5.update(piece)
                sha256.update(piece)
                size += len(piece)
        return cls(size, md5.hexdigest(), sha256.hexdigest(), source)

    @classmethod
    def of_bytes(cls, data: bytes) -> Content:
        md5 = hashlib.md5(data, usedforsecurity=False).hexdigest()
        return cls(len(data), md5, hashlib.sha256(data).hexdigest(), None, data)

    def part(self, offset: int, length: int) -> bytes:
        if self.source is None:
            return self.data[offset : offset + length]
        with self.source.open("rb") as handle:
            handle.seek(offset)
            return handle.read(length)

    def is_at(self, resource: dict[str, Any]) -> bool:
        """Whether the far end's own description is of just this content; one digest at least must be told."""
        told = [(resource.get("md5Checksum"), self.md5), (resource.get("sha256Checksum"), self.sha256)]
        told = [(theirs, ours) for theirs, ours in told if theirs]
        return resource.get("size") == str(self.size) and bool(told) and all(a == b for a, b in told)


class Uploader:
    """`send` returns Drive's description of the file as it is now. Errors are those of DriveHttp."""

    def __init__(self, http: DriveHttp, *, chunk_bytes: int = CHUNK_BYTES, mb_per_s: float = 0.0) -> None:
        """`mb_per_s`: how fast `on_bytes` will let it go, 0 for no limit; chunks are of a second's worth at most."""
        if mb_per_s > 0:
            chunk_bytes = min(chunk_bytes, int(mb_per_s * 1e6))
        self._chunk_bytes = max(1, chunk_bytes // GRAIN_BYTES) * GRAIN_BYTES
        self.on_bytes: Callable[[int], None] = lambda size_bytes: None  # hears of each piece that has arrived
        self._http = http

    def send(self, content: Content, metadata: dict[str, Any], *, file_id: str = "") -> dict[str, Any]:
        """A new file with `metadata` (its `id` got from Drive beforehand), or new content for `file_id`."""
        if content.size <= SMALL_BYTES:
            return self._in_one(content, metadata, file_id)
        for _ in range(_SESSIONS):
            try:
                return self._through_session(content, metadata, file_id)
            except _SessionEnded:
                continue
        raise StoreError("upload sessions of Google Drive ended too early, again and again")

    def _in_one(self, content: Content, metadata: dict[str, Any], file_id: str) -> dict[str, Any]:
        boundary = secrets.token_hex(16)
        head = (
            f"--{boundary}\r\nContent-Type: application/json; charset=UTF-8\r\n\r\n{json.dumps(metadata)}\r\n"
            f"--{boundary}\r\nContent-Type: application/octet-stream\r\n\r\n"
        )
        body = head.encode() + content.part(0, content.size) + f"\r\n--{boundary}--\r\n".encode()
        headers = {"Content-Type": f"multipart/related; boundary={boundary}"}
        method, path = _target(file_id)
        params = {"uploadType": "multipart", "fields": FILE_FIELDS}
        with self._http.call(method, path, params=params, data=body, headers=headers, ok=(409,)) as answer:
            self.on_bytes(content.size)
            return self._described(answer, metadata)

    def _through_session(self, content: Content, metadata: dict[str, Any], file_id: str) -> dict[str, Any]:
        method, path = _target(file_id)
        headers = {
            "X-Upload-Content-Type": "application/octet-stream",
            "X-Upload-Content-Length": str(content.size),
        }
        params = {"uploadType": "resumable", "fields": FILE_FIELDS}
        with self._http.call(method, path, params=params, json=metadata, headers=headers, ok=(409,)) as answer:
            if answer.status_code == 409:
                return self._described(answer, metadata)
            address = answer.headers.get("Location", "")
        if not address:
            raise StoreError("Google Drive opened an upload session and did not say where")
        offset, failures = 0, 0
        while True:
            try:
                answer = self._chunk(address, content, offset)
            except NotThere:
                raise _SessionEnded from None
            except Passing:
                failures += 1
                if failures > _FAILURES:
                    raise
                time.sleep(min(self._http.first_pause_s * 2**failures, 30.0))
                answer = self._ask(address, content)
            with answer:
                if answer.status_code != 308:
                    self.on_bytes(content.size - offset)
                    return self._described(answer, metadata)
                arrived = _arrived(answer)
            if arrived > offset:
                failures = 0
                self.on_bytes(arrived - offset)
            elif (failures := failures + 1) > _FAILURES:
                raise StoreError("Google Drive takes no more of an upload, and does not say why")
            offset = arrived

    def _chunk(self, address: str, content: Content, offset: int) -> requests.Response:
        """One chunk, once: what became of it after a failure has to be asked."""
        data = content.part(offset, min(self._chunk_bytes, content.size - offset))
        if not data:
            return self._ask(address, content)
        where = f"bytes {offset}-{offset + len(data) - 1}/{content.size}"
        headers = {"Content-Range": where, "Content-Type": "application/octet-stream"}
        return self._http.call("PUT", address, data=data, headers=headers, ok=(308, 409), repeat=False)

    def _ask(self, address: str, content: Content) -> requests.Response:
        headers = {"Content-Range": f"bytes */{content.size}", "Content-Length": "0"}
        try:
            return self._http.call("PUT", address, data=b"", headers=headers, ok=(308, 409))
        except NotThere:
            raise _SessionEnded from None

    def _described(self, answer: requests.Response, metadata: dict[str, Any]) -> dict[str, Any]:
        """The file of an answer; 409 says that an earlier try of ours had already made it."""
        if answer.status_code != 409:
            resource = json_object(answer)
            if not isinstance(resource.get("id"), str):
                raise StoreError("Google Drive took a file and did not name its id")
            return resource
        if "id" not in metadata:
            raise StoreError("Google Drive reports a conflict where there can be none")
        return self._http.json("GET", f"/drive/v3/files/{metadata['id']}", params={"fields": FILE_FIELDS})


class _SessionEnded(Exception):
    """Begin another one."""


def _target(file_id: str) -> tuple[str, str]:
    return ("PATCH", f"/upload/drive/v3/files/{file_id}") if file_id else ("POST", "/upload/drive/v3/files")


def _arrived(answer: requests.Response) -> int:
    """How many bytes the session holds; no header: none."""
    found = re.fullmatch(r"(?:bytes=)?0-(\d+)", answer.headers.get("Range", ""))
    return int(found[1]) + 1 if found else 0
