"""Many small files in one request: `POST /in/<run>/`.

The body is one line of JSON, `[[path, size, sha256 in hex], …]`, and then the files' bytes in that order. With `?ask=1`
there are no bytes: the answer tells which of the files the laptop has already, copied into place where need be. Each
file is judged on its own; what is refused keeps none of the others from arriving. All of them are on disk before any of
them is renamed, and the renames are before the answer: one flush of the file system for the lot, where there is such a
call, costs a tenth of an fsync for each.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import json
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from aiohttp import web

from bridge import bodies
from bridge.answers import answer_json
from bridge.auth import Caller
from bridge.disk_writes import write_all
from bridge.known_content import KnownContent, Piece
from bridge.targets import check_case, prepare_target
from bridgehead import files, names, paths
from bridgehead.errors import BridgeheadError, UsageError, VerificationError

_INDEX_MAX_BYTES: Final = 4 * 2**20
_HEX: Final = re.compile(r"[0-9a-f]{64}\Z")
_FLUSHERS: Final = 8
_DESCRIPTORS_MAX: Final = 128  # of one batch; the folders after that go by their paths
_CREATE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
_AT_DESCRIPTORS: Final = os.open in os.supports_dir_fd and os.rename in os.supports_dir_fd


_Error = dict[str, object]


class Entry(NamedTuple):
    """One file of a batch; `path` is relative to the run's folder."""

    path: str
    size: int
    sha256: bytes


async def receive(
    request: web.BaseRequest, caller: Caller, root: Path, run_id: str, known: KnownContent, *, ask: bool
) -> web.Response:
    """Answers `{"files": [null or an error for each]}`, with `ask` `{"have": [true or false for each]}`.

    Raises UsageError for what is no batch, Refused, and OSError (disk full: none of them has arrived then).
    """
    body = bytearray()
    await bodies.receive(request, caller.body_sha256, names.BATCH_MAX_BYTES + _INDEX_MAX_BYTES, body.extend)

    def work() -> dict[str, Any]:
        entries, start = _read_index(body, bodies_follow=not ask)
        if ask:
            return {"have": _place_known(root, run_id, caller.family, known, entries)}
        errors = _place(root, run_id, _with_bytes(entries, memoryview(body)[start:]))
        good = [entry for entry, error in zip(entries, errors, strict=True) if error is None]
        known.note_whole(caller.family, [_piece(run_id, entry) for entry in good])
        return {"files": errors}

    return answer_json(await asyncio.to_thread(work))


def _read_index(body: bytearray, *, bodies_follow: bool) -> tuple[list[Entry], int]:
    """The entries, and where the bytes begin. Raises UsageError."""
    end = body.find(b"\n", 0, _INDEX_MAX_BYTES)
    if end < 0:
        raise UsageError("a batch begins with one line of JSON")
    try:
        listed = json.loads(bytes(body[:end]))
    except (ValueError, RecursionError):
        raise UsageError("the first line of a batch is not JSON") from None
    if not isinstance(listed, list) or not 0 < len(listed) <= names.BATCH_MAX_FILES:
        raise UsageError(f"a batch has 1 to {names.BATCH_MAX_FILES} files")
    entries = [_entry(item) for item in listed]
    total = sum(entry.size for entry in entries)
    if total > names.BATCH_MAX_BYTES or len(body) - end - 1 != (total if bodies_follow else 0):
        raise UsageError(f"the sizes in the batch's index add up to {total}; {len(body) - end - 1} bytes came")
    return entries, end + 1


def _entry(item: object) -> Entry:
    match item:
        case [str(path), int(size), str(sha256)] if _HEX.match(sha256) and not isinstance(size, bool):
            if 0 <= size <= names.BATCH_MAX_BYTES:
                return Entry(path, size, bytes.fromhex(sha256))
    raise UsageError("a file of a batch is [path, size, sha256]")


def _with_bytes(entries: Iterable[Entry], data: memoryview) -> Iterator[tuple[Entry, memoryview]]:
    at = 0
    for entry in entries:
        yield entry, data[at : at + entry.size]
        at += entry.size


def _place_known(root: Path, run_id: str, family: str, known: KnownContent, entries: list[Entry]) -> list[bool]:
    """Have each in its place whose bytes are on this laptop under this pairing; False for those that are to be sent."""
    there = [known.is_at(family, f"{run_id}/{entry.path}", entry.size, entry.sha256) for entry in entries]
    copies: list[tuple[Entry, memoryview]] = []
    for entry, is_there in zip(entries, there, strict=True):
        data = None if is_there else known.find(family, entry.size, entry.sha256)
        if data is not None:
            copies.append((entry, memoryview(data)))
    placed: set[str] = set()
    if copies:
        errors = _place(root, run_id, copies)
        placed = {entry.path for (entry, _), error in zip(copies, errors, strict=True) if error is None}
        known.note_whole(family, [_piece(run_id, entry) for entry, _ in copies if entry.path in placed])
    return [is_there or entry.path in placed for entry, is_there in zip(entries, there, strict=True)]


def _place(root: Path, run_id: str, found: Iterable[tuple[Entry, memoryview]]) -> list[_Error | None]:
    """Write all, flush all, rename all, flush the folders; an error for each that is refused. Raises OSError."""
    folders = _Folders(root / run_id)
    errors: list[_Error | None] = []
    temps: list[tuple[_Folder, str, str]] = []
    try:
        for entry, data in found:
            try:
                temps.append(_write(folders, entry, data))
                errors.append(None)
            except BridgeheadError as error:
                errors.append(error.to_json())
        _flush(root, [functools.partial(folder.flush_file, temp) for folder, temp, _ in temps])
        for folder, temp, name in temps:
            folder.rename(temp, name)
        _flush(root, [functools.partial(files.fsync_folder, folder.path) for folder in folders.all()])
    except BaseException:
        for folder, temp, _ in temps:
            with contextlib.suppress(OSError):
                folder.remove(temp)
        raise
    finally:
        folders.close()
    return errors


def _write(folders: _Folders, entry: Entry, data: memoryview) -> tuple[_Folder, str, str]:
    parent, _, name = entry.path.rpartition("/")
    folders.check(parent, name)
    if hashlib.sha256(data).digest() != entry.sha256:
        raise VerificationError("the bytes do not match their SHA-256", hint="send it again")
    folder = folders.at(parent)
    folder.claim(name)
    temp = folders.temp_name()
    fd = folder.create(temp)
    try:
        write_all(fd, data)
    except BaseException:
        with contextlib.suppress(OSError):
            folder.remove(temp)
        raise
    finally:
        os.close(fd)
    return folder, temp, name


@dataclass
class _Folder:
    """One folder that files go into. Its descriptor, where the system has such calls, is what it was when opened."""

    path: Path
    fd: int | None
    there: dict[str, str]  # what lies in it: case-folded name → name
    claimed: set[str] = field(default_factory=set)

    def claim(self, name: str) -> None:
        """Raises UsageError when the name can't be taken here."""
        folded = name.casefold()
        if folded in self.there:
            check_case(name, self.there)
            if name in self.claimed:
                raise UsageError(f"{name!r} comes twice")
            with contextlib.suppress(FileNotFoundError):
                if not stat.S_ISREG(os.lstat(self._at(name), dir_fd=self.fd).st_mode):
                    raise UsageError("there is something there that is not a plain file")
        self.there[folded] = name
        self.claimed.add(name)

    def claim_folder(self, name: str) -> None:
        check_case(name, self.there)
        if name in self.claimed:
            raise UsageError("a file is where a folder is needed")
        self.there[name.casefold()] = name

    def create(self, temp: str) -> int:
        return os.open(self._at(temp), _CREATE, 0o644, dir_fd=self.fd)

    def rename(self, temp: str, name: str) -> None:
        if self.fd is None:
            files.replace(self.path / temp, self.path / name)
        else:
            os.rename(temp, name, src_dir_fd=self.fd, dst_dir_fd=self.fd)

    def remove(self, temp: str) -> None:
        os.unlink(self._at(temp), dir_fd=self.fd)

    def flush_file(self, temp: str) -> None:
        fd = os.open(self._at(temp), os.O_RDWR | getattr(os, "O_BINARY", 0), dir_fd=self.fd)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def _at(self, name: str) -> str:
        return name if self.fd is not None else str(self.path / name)


class _Folders:
    """The folders of one batch, each made, checked and opened once."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._open: dict[str, _Folder] = {}
        self._checked: set[str] = set()
        self._random = secrets.token_hex(8)
        self._count = 0

    def temp_name(self) -> str:
        """One that nobody can guess, and that `sweep` knows."""
        self._count += 1
        return f"{files.TEMP_PREFIX}{self._random}-{self._count}"

    def check(self, parent: str, name: str) -> None:
        """Raises UsageError for what is no path of the wire; each folder is looked at once."""
        if parent not in self._checked or len(self.root.name) + len(parent) + len(name) + 2 > paths.PATH_MAX:
            paths.check_relative("/".join(filter(None, (self.root.name, parent, name))))
            self._checked.add(parent)
        paths.check_relative(name)

    def at(self, parent: str) -> _Folder:
        """Raises UsageError for a link or a file on the way, or another spelling of a folder that is there."""
        if parent not in self._open:
            above, _, name = parent.rpartition("/")
            if parent:
                self.at(above).claim_folder(name)
            # Any name will do: what is looked at is the way to it.
            path = prepare_target(self.root.parent, "/".join(filter(None, (self.root.name, parent, "x")))).parent
            flags = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0)
            fd = os.open(path, flags) if _AT_DESCRIPTORS and len(self._open) < _DESCRIPTORS_MAX else None
            self._open[parent] = _Folder(path, fd, {entry.casefold(): entry for entry in os.listdir(path)})
        return self._open[parent]

    def all(self) -> list[_Folder]:
        return list(self._open.values())

    def close(self) -> None:
        for folder in self._open.values():
            if folder.fd is not None:
                os.close(folder.fd)


def _flush(root: Path, each: list[Callable[[], None]]) -> None:
    """Have all that was written on the disk: the whole file system's at once, else one by one on some threads."""
    if len(each) == 1:
        each[0]()
    if len(each) <= 1 or files.sync_file_system(root):
        return
    with ThreadPoolExecutor(_FLUSHERS) as pool:
        for done in [pool.submit(flush) for flush in each]:
            done.result()


def _piece(run_id: str, entry: Entry) -> Piece:
    return Piece(f"{run_id}/{entry.path}", 0, entry.size, entry.sha256)
