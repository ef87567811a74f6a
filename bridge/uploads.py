"""`/in/`: whole files by PUT, and resumable uploads in the vocabulary of the IETF draft (see docs/wire.md).

A part is held in memory (32 MiB at most) until its digest has been checked, and only then written: readers of a growing
log never see a byte that was not verified, and a part that is cut half-way leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import re
import shutil
import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from aiohttp import web

from bridge import bodies
from bridge.addresses import count
from bridge.answers import Refused, answer_empty
from bridge.upload_store import OffsetMismatch, Progress, UploadStore, prepare_target
from bridgehead import files, names, signing
from bridgehead.errors import TransferError, UsageError

METHODS = ("PUT", "POST", "HEAD", "PATCH", "DELETE")
PARTIAL = "application/partial-upload"
RESERVE_BYTES = names.LAPTOP_RESERVE_BYTES
_GENERATION = re.compile(r"[A-Za-z0-9._:@=+-]{1,128}\Z")
_COMPLETE = {"?0": False, "?1": True}


@dataclass(frozen=True)
class Uploads:
    """The handlers; the caller has checked who asks, the path's grammar, and that the VM owns the run."""

    root: Path
    store: UploadStore

    async def handle(self, request: web.BaseRequest, body_sha256: bytes, path: str) -> web.Response:
        if request.method == "PUT":
            return await self._put(request, body_sha256, path)
        if request.method == "PATCH":
            return await self._patch(request, body_sha256, path)
        await bodies.read_small(request, body_sha256, 0)
        if request.method == "POST":
            return await self._post(request.headers, path)
        if request.method == "HEAD":
            progress = await asyncio.to_thread(self.store.progress, path, _generation(request.headers))
            return answer_empty(204, {**_told(progress), **self._limits()})
        await asyncio.to_thread(self.store.forget, path)
        return answer_empty()

    async def _put(self, request: web.BaseRequest, body_sha256: bytes, path: str) -> web.Response:
        self._check_room(bodies.check_head(request, names.PUT_MAX_BYTES) or 0)
        target = await asyncio.to_thread(prepare_target, self.root, path)
        status = 204 if target.exists() else 201
        async with _written(target) as handle:
            await bodies.receive(request, body_sha256, names.PUT_MAX_BYTES, handle.write)
        return answer_empty(status)

    async def _post(self, headers: Mapping[str, str], path: str) -> web.Response:
        generation = _generation(headers)
        length = None
        if names.HEADER_LENGTH in headers:
            length = count(names.HEADER_LENGTH, headers[names.HEADER_LENGTH])
            self._check_room(length)
        digest = signing.parse_digest(headers.get(names.HEADER_REPR_DIGEST, ""))
        progress = await asyncio.to_thread(self.store.open, path, generation, length, digest)
        return answer_empty(201, {**_told(progress), **self._limits()})

    async def _patch(self, request: web.BaseRequest, body_sha256: bytes, path: str) -> web.Response:
        announced = bodies.check_head(request, names.PART_MAX_BYTES)
        headers = request.headers
        generation = _generation(headers)
        offset = count(names.HEADER_OFFSET, headers.get(names.HEADER_OFFSET))
        last = _COMPLETE.get(headers.get(names.HEADER_COMPLETE, ""))
        if request.content_type != PARTIAL or last is None:
            raise UsageError(f"a part needs Content-Type: {PARTIAL} and {names.HEADER_COMPLETE}: ?0 or ?1")
        self._check_room(announced or 0)
        try:
            part = await asyncio.to_thread(self.store.begin, path, generation, offset, last=last)
            try:  # from here on 32 MiB are read, and not for nothing
                await bodies.receive(request, body_sha256, names.PART_MAX_BYTES, part.write)
                progress = await asyncio.to_thread(part.commit)
            finally:
                await asyncio.to_thread(part.drop)
        except OffsetMismatch as error:
            raise _mismatch(error.progress) from None
        return answer_empty(204, _told(progress))

    def _check_room(self, wanted_bytes: int) -> None:
        free_bytes = shutil.disk_usage(self.root).free
        if free_bytes - RESERVE_BYTES < wanted_bytes:
            raise no_room()

    def _limits(self) -> dict[str, str]:
        room_bytes = max(0, shutil.disk_usage(self.root).free - RESERVE_BYTES)
        return {names.HEADER_LIMIT: f"max-size={room_bytes}, max-append-size={names.PART_MAX_BYTES}"}


def no_room() -> Refused:
    return Refused(507, TransferError("the laptop's disk is full", hint="make room; it is sent again"), close=True)


def is_disk_full(error: OSError) -> bool:
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


@contextlib.asynccontextmanager
async def _written(target: Path) -> AsyncIterator[BinaryIO]:
    """files.atomic_writer with its open, fsyncs and rename on a thread."""
    writer = files.atomic_writer(target)
    handle = await asyncio.to_thread(writer.__enter__)
    try:
        yield handle
    except BaseException:  # whatever it was, the temp file has to go; it is raised again
        await asyncio.to_thread(writer.__exit__, *sys.exc_info())
        raise
    await asyncio.to_thread(writer.__exit__, None, None, None)


def _generation(headers: Mapping[str, str]) -> str:
    text = headers.get(names.HEADER_GENERATION, "")
    if not _GENERATION.match(text):
        raise UsageError(f"{names.HEADER_GENERATION} is missing or not 1 to 128 of A-Z a-z 0-9 . _ : @ = + -")
    return text


def _told(progress: Progress) -> dict[str, str]:
    return {names.HEADER_OFFSET: str(progress.offset), names.HEADER_COMPLETE: "?1" if progress.complete else "?0"}


def _mismatch(progress: Progress) -> Refused:
    return Refused(
        409,
        TransferError(f"the upload stands at offset {progress.offset}", hint="go on from there"),
        headers=_told(progress),
    )
