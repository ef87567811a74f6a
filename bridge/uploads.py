"""`/in/`: whole files by PUT, and resumable uploads in the vocabulary of the IETF draft (see docs/wire.md).

A part of a growing file is held in memory (32 MiB at most) until its digest has been checked, and only then written:
readers of a log never see a byte that was not verified, and a part that is cut half-way leaves nothing behind. Whole
files arrive in a temp file: from one PUT, from offset to offset, or in parts side by side (part_store).
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import shutil
import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from aiohttp import web

from bridge import batches, bodies
from bridge.addresses import count
from bridge.answers import Refused, answer_empty
from bridge.auth import Caller
from bridge.known_content import KnownContent
from bridge.part_store import PartsMismatch, PartsProgress, PartStore, Whole
from bridge.shortages import Shortages
from bridge.targets import check_spelling, prepare_target
from bridge.upload_rules import UploadRules
from bridge.upload_store import OffsetMismatch, Progress, UploadStore
from bridgehead import files, names, part_lists, signing
from bridgehead.errors import TransferError, UsageError
from bridgehead.os_errors import means_full
from bridgehead.upload_text import size_text

METHODS = ("PUT", "POST", "HEAD", "PATCH", "DELETE")
RESERVE_BYTES = names.LAPTOP_RESERVE_BYTES
_GENERATION = re.compile(r"[A-Za-z0-9._:@=+-]{1,128}\Z")
_MAX_SIZE = re.compile(r"max-size=([0-9]+)")
_DIGITS_MAX = 16
NO_ROOM = 507
_COMPLETE = {"?0": False, "?1": True}


@dataclass(frozen=True)
class Uploads:
    """The handlers; the caller has checked who asks, the path's grammar, and that the VM owns the run."""

    root: Path
    store: UploadStore
    parts: PartStore
    known: KnownContent
    rules: UploadRules
    shortages: Shortages

    async def handle(self, request: web.BaseRequest, caller: Caller, path: str) -> web.Response:
        """Raises Refused, whose 507 is counted, and OSError."""
        try:
            answer = await self._handle(request, caller, path)
        except (Refused, OSError) as error:
            self._note(error, path, request.headers)
            raise
        if request.method != "HEAD":
            self._note_room(answer, path, request.headers)
        return answer

    async def _handle(self, request: web.BaseRequest, caller: Caller, path: str) -> web.Response:
        if request.method == "PUT":
            return await self._put(request, caller.body_sha256, path)
        if request.method == "PATCH":
            if await asyncio.to_thread(self.parts.find, path, _generation(request.headers)) is not None:
                return await self._patch_in_parts(request, caller.body_sha256, path)
            return await self._patch(request, caller.body_sha256, path)
        if request.method == "POST" and names.HEADER_PART_SIZE in request.headers:
            return await self._post_in_parts(request, caller, path)
        await bodies.read_small(request, caller.body_sha256, 0)
        if request.method == "POST":
            return await self._post(request.headers, path)
        if request.method == "HEAD":
            told, there_bytes = await self._progress(path, _generation(request.headers))
            return answer_empty(204, {**told, **self.limits(there_bytes)})
        if not await asyncio.to_thread(self.parts.forget, path):
            await asyncio.to_thread(self.store.forget, path)
        return answer_empty()

    async def batch(self, request: web.BaseRequest, caller: Caller, run_id: str, *, ask: bool) -> web.Response:
        """Many small files at once; `ask` for which of them are to be sent."""
        if request.content_type != names.BATCH_TYPE:
            raise UsageError(f"a batch needs Content-Type: {names.BATCH_TYPE}")
        path = f"{run_id}/"
        try:
            self.check_room(request.content_length or 0)
            answer = await batches.receive(request, caller, self.root, run_id, self.known, ask=ask)
        except (Refused, OSError) as error:
            self._note(error, path, request.headers)
            raise
        self.shortages.arrived(path)
        return answer

    async def _progress(self, path: str, generation: str) -> tuple[dict[str, str], int]:
        """The headers that tell it, and how many bytes are there."""
        state = await asyncio.to_thread(self.parts.find, path, generation)
        if state is not None:
            return _told_parts(state), state.there_bytes
        progress = await asyncio.to_thread(self.store.progress, path, generation)
        return _told(progress), progress.offset

    async def _put(self, request: web.BaseRequest, body_sha256: bytes, path: str) -> web.Response:
        self.check_room(bodies.check_head(request, names.PUT_MAX_BYTES) or 0)
        await asyncio.to_thread(check_spelling, self.root, path)
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
            self.check_room(length)
        digest = signing.parse_digest(headers.get(names.HEADER_REPR_DIGEST, ""))
        progress = await asyncio.to_thread(self.store.open, path, generation, length, digest)
        return answer_empty(201, {**_told(progress), **self.limits(progress.offset)})

    async def _patch(self, request: web.BaseRequest, body_sha256: bytes, path: str) -> web.Response:
        announced = bodies.check_head(request, names.PART_MAX_BYTES)
        headers = request.headers
        generation = _generation(headers)
        offset = count(names.HEADER_OFFSET, headers.get(names.HEADER_OFFSET))
        last = _COMPLETE.get(headers.get(names.HEADER_COMPLETE, ""))
        if request.content_type != names.PARTIAL_UPLOAD or last is None:
            raise UsageError(f"a part needs Content-Type: {names.PARTIAL_UPLOAD} and {names.HEADER_COMPLETE}: ?0 or ?1")
        self.check_room(announced or 0)
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

    # --- in parts side by side ------------------------------------------------------------------------

    async def _post_in_parts(self, request: web.BaseRequest, caller: Caller, path: str) -> web.Response:
        """The body is the SHA-256 of each part; what it hashes to is signed like that of any body."""
        headers = request.headers
        digests = await bodies.read_small(request, caller.body_sha256, 32 * names.PARTS_MAX)
        length = count(names.HEADER_LENGTH, headers.get(names.HEADER_LENGTH))
        part_size = count(names.HEADER_PART_SIZE, headers[names.HEADER_PART_SIZE])
        whole = Whole(_generation(headers), length, part_size, digests)
        if await asyncio.to_thread(self.parts.find, path, whole.generation) is None:
            self.check_room(length)
        state = await asyncio.to_thread(self.parts.open, path, caller.family, whole)
        return answer_empty(201, {**_told_parts(state), **self.limits(state.there_bytes)})

    async def _patch_in_parts(self, request: web.BaseRequest, body_sha256: bytes, path: str) -> web.Response:
        announced = bodies.check_head(request, names.PART_MAX_BYTES)
        offset = count(names.HEADER_OFFSET, request.headers.get(names.HEADER_OFFSET))
        if request.content_type != names.PARTIAL_UPLOAD:
            raise UsageError(f"a part needs Content-Type: {names.PARTIAL_UPLOAD}")
        self.check_room(announced or 0)
        try:
            part = await asyncio.to_thread(self.parts.begin, path, _generation(request.headers), offset, body_sha256)
            try:
                await bodies.receive(request, body_sha256, names.PART_MAX_BYTES, part.write)
                state = await asyncio.to_thread(part.commit)
            finally:
                await asyncio.to_thread(part.drop)
        except PartsMismatch as error:
            text = "that part is there already"
            raise Refused(409, TransferError(text), headers=_told_parts(error.progress)) from None
        return answer_empty(204, _told_parts(state))

    # --- what there was no room for -----------------------------------------------------------------------

    def _note(self, error: Refused | OSError, path: str, headers: Mapping[str, str]) -> None:
        full = error.status == NO_ROOM if isinstance(error, Refused) else means_full(error)
        if full:
            self.shortages.note(path, _wanted_bytes(headers))

    def _note_room(self, answer: web.Response, path: str, headers: Mapping[str, str]) -> None:
        """An answer may say that more was wanted than there is room for: the VM will not send it then."""
        limit = _MAX_SIZE.search(answer.headers.get(names.HEADER_LIMIT, ""))
        wanted_bytes = _wanted_bytes(headers)
        waits = answer.headers.get(names.HEADER_COMPLETE) == "?0" and names.HEADER_LENGTH in headers
        if limit is not None and waits and int(limit[1]) < wanted_bytes:
            self.shortages.note(path, wanted_bytes)
        else:
            self.shortages.arrived(path)

    # --- room -------------------------------------------------------------------------------------------

    def check_room(self, wanted_bytes: int) -> None:
        room_bytes = shutil.disk_usage(self.root).free - RESERVE_BYTES
        if room_bytes < wanted_bytes:
            raise no_room(wanted_bytes, max(0, room_bytes))

    def limits(self, there_bytes: int) -> dict[str, str]:
        """Of an upload of which so many bytes are on the disk already."""
        room_bytes = there_bytes + max(0, shutil.disk_usage(self.root).free - RESERVE_BYTES)
        return {names.HEADER_LIMIT: f"max-size={room_bytes}, max-append-size={names.PART_MAX_BYTES}"}


def no_room(wanted_bytes: int = 0, room_bytes: int = 0) -> Refused:
    text = "the laptop's disk is full"
    if room_bytes:
        text = f"the laptop has room for {size_text(room_bytes)}, and this has {size_text(wanted_bytes)}"
    return Refused(NO_ROOM, TransferError(text, hint="make room; it is sent again"), close=True)


def _wanted_bytes(headers: Mapping[str, str]) -> int:
    told = headers.get(names.HEADER_LENGTH) or headers.get("Content-Length") or "0"
    return int(told) if told.isascii() and told.isdecimal() and len(told) < _DIGITS_MAX else 0


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


def _told_parts(state: PartsProgress) -> dict[str, str]:
    told = _told(Progress(state.offset, complete=state.complete))
    return {**told, names.HEADER_MISSING: part_lists.write(state.missing)}


def _mismatch(progress: Progress) -> Refused:
    return Refused(
        409,
        TransferError(f"the upload stands at offset {progress.offset}", hint="go on from there"),
        headers=_told(progress),
    )
