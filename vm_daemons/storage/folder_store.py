"""An ObjectStore in a folder: a mounted drive (kind "mount") or a disk that outlives the VM (kind "folder").

An object is written whole under a temporary name, fsynced and renamed, never appended to. On a synchronised drive that
says nothing of what has been uploaded, so there `proves` is False; on a disk a file that was read back past the page
cache is where it should be.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import secrets
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from bridgehead import files, paths, processes
from bridgehead.errors import (
    BridgeheadError,
    NotFoundError,
    StoreDenied,
    StoreError,
    StoreFull,
    StoreGone,
    UsageError,
    VerificationError,
)
from bridgehead.names import StoreKind
from bridgehead.os_errors import means_full
from vm_daemons.storage.objects import Room, Stored

_CHUNK_BYTES = 1 << 20
_GONE = {errno.ENOTCONN, errno.EIO, errno.ESTALE, errno.ENODEV, errno.ENXIO, errno.ESHUTDOWN, errno.ECONNABORTED}
_DENIED = {errno.EACCES, errno.EPERM, errno.EROFS}
_TEMP = re.compile(re.escape(files.TEMP_PREFIX) + r"([0-9a-f]{8})-(\d{1,10})-[0-9a-f]{8}\Z")
_ABANDONED_AFTER_S = 24 * 3600.0  # a temporary file of another machine: no single object takes so long
# A FIFO must not hang us. Windows has only the last of these.
_SAFE_FLAGS = sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY"))
_READ_FLAGS = os.O_RDONLY | _SAFE_FLAGS


class FolderStore:
    """Keys are paths below `root`. Methods raise as ObjectStore says; trouble with local files stays OSError."""

    def __init__(self, root: Path, *, proves: bool) -> None:
        self.root = root
        self.kind = str(StoreKind.FOLDER if proves else StoreKind.MOUNT)
        self.where = str(root)
        self.proves = proves
        self.on_bytes: Callable[[int], None] = lambda size_bytes: None  # hears of each piece that was written
        self._swept: set[Path] = set()

    def put(self, key: str, source: Path) -> Stored:
        """VerificationError when it reads back differently; then the key holds what it held."""
        with source.open("rb") as reader:
            return self._put(key, lambda: reader.read(_CHUNK_BYTES), check=True)

    def put_many(self, items: Sequence[tuple[str, Path]]) -> list[Stored]:
        """All are written, then flushed together, read back and renamed: two fsyncs for each took most of the time.

        On a disk of our own alone: of a mount nobody knows what flushing all of it at once is worth.
        """
        if not self.proves:
            return [self.put(key, source) for key, source in items]
        staged: list[tuple[Path, Path, Stored]] = []
        try:
            for key, source in items:
                staged.append(self._stage(key, source))
            with self._told("", writing=True):
                if not files.sync_file_system(self.root):
                    _flush_each(temp for temp, _, _ in staged)
            for temp, _, stored in staged:
                if self._digest(temp) != stored.sha256:
                    raise VerificationError(f"{stored.key} reads back from the store with another hash")
            with self._told("", writing=True):
                for temp, path, _ in staged:
                    files.replace(temp, path)
                for folder in {path.parent for _, path, _ in staged}:
                    files.fsync_folder(folder)
        except BaseException:
            for temp, _, _ in staged:
                with contextlib.suppress(OSError):
                    _cut_and_unlink(temp)
            raise
        return [stored for _, _, stored in staged]

    def put_bytes(self, key: str, data: bytes) -> None:
        pieces = [data]
        self._put(key, lambda: pieces.pop() if pieces else b"", check=self.proves)

    def get(self, key: str, target: Path) -> Stored:
        sha256, md5, size = hashlib.sha256(), hashlib.md5(usedforsecurity=False), 0
        with self._opened(key) as fd, target.open("wb") as writer:
            while piece := self._read_piece(key, fd):
                sha256.update(piece)
                md5.update(piece)
                size += writer.write(piece)
            writer.flush()
            os.fsync(writer.fileno())
        return Stored(key, size, md5.hexdigest(), sha256.hexdigest())

    def read(self, key: str, max_bytes: int) -> bytes | None:
        data = b""
        try:
            with self._opened(key) as fd:
                if os.fstat(fd).st_size > max_bytes:
                    raise VerificationError(f"{key} is over {max_bytes} bytes")
                while len(data) <= max_bytes and (piece := self._read_piece(key, fd)):
                    data += piece
        except NotFoundError:
            return None
        if len(data) > max_bytes:
            raise VerificationError(f"{key} is over {max_bytes} bytes")
        return data

    def find(self, key: str) -> list[Stored]:
        """On a disk with its digest, read past the cache; a mount tells the size alone."""
        found = self.look(key)
        return [Stored(key, item.size, sha256=self._digest(self._path(key)) if self.proves else "") for item in found]

    def look(self, key: str) -> list[Stored]:
        path = self._path(key)
        with self._told(key):
            found = files.plain_stat(path)
        if found is None:
            self._check_root()
            return []
        return [Stored(key, found.st_size)]

    def list(self, prefix: str) -> list[str]:
        folder = self._path(prefix) if prefix else self.root
        try:
            with self._told(prefix):
                entries = os.listdir(folder)
        except NotFoundError:
            return []
        return sorted(name for name in entries if _is_a_name(name))

    def delete(self, key: str) -> None:
        """What is deleted lies in a drive's trash and counts against the quota, so it is cut to nothing first."""
        path = self._path(key)
        with self._told(key):
            if files.plain_stat(path) is None:
                self._check_root()
                return
            _cut_and_unlink(path)
            with contextlib.suppress(OSError):
                files.fsync_folder(path.parent)

    def empty(self, key: str) -> bool:
        """On a mount: what is unlinked before its cut has been uploaded lies in the trash with all that it held."""
        path = self._path(key)
        with self._told(key):
            found = files.plain_stat(path)
            if self.proves or found is None or not found.st_size:
                return False
            _cut(path)
        return True

    def probe(self) -> Room:
        try:
            self._check_root()
            with self._told("a canary"):
                self._try_out()
                room = os.statvfs(self.root)
        except BridgeheadError as error:
            return Room(error=error.in_one_line())
        except OSError as error:
            return Room(error=f"{self.where}: {error.strerror or 'unreadable'}")
        return Room(free_bytes=room.f_bavail * room.f_frsize)

    # --- inside ------------------------------------------------------------------------------------

    def _path(self, key: str) -> Path:
        try:
            return paths.inside(self.root, key)
        except UsageError as error:
            raise VerificationError(f"not an object of the store: {error.message}") from None
        except OSError as error:
            raise self._error(key, error) from None

    def _put(self, key: str, next_piece: Callable[[], bytes], *, check: bool) -> Stored:
        temp, path, stored = self._written(key, next_piece, durable=True)
        try:
            if check and self._digest(temp) != stored.sha256:
                raise VerificationError(f"{key} reads back from the store with another hash")
            with self._told(key, writing=True):
                files.replace(temp, path)
                files.fsync_folder(path.parent)
        except BaseException:
            with contextlib.suppress(OSError):
                _cut_and_unlink(temp)
            raise
        return stored

    def _stage(self, key: str, source: Path) -> tuple[Path, Path, Stored]:
        with source.open("rb") as reader:
            return self._written(key, lambda: reader.read(_CHUNK_BYTES), durable=False)

    def _written(self, key: str, next_piece: Callable[[], bytes], *, durable: bool) -> tuple[Path, Path, Stored]:
        """(temporary file, where it is to go, what is in it); nothing is left of it after an error."""
        path = self._path(key)
        with self._told(key, writing=True):
            self._make_folders(path.parent)
            self._sweep(path.parent)
        temp = path.parent / _temp_name()
        sha256, md5, size = hashlib.sha256(), hashlib.md5(usedforsecurity=False), 0
        try:
            with self._told(key, writing=True):
                fd = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _SAFE_FLAGS, 0o644)
            with self._closing(key, fd, durable=durable) as writer:
                while piece := next_piece():
                    sha256.update(piece)
                    md5.update(piece)
                    with self._told(key, writing=True):
                        size += writer.write(piece)
                    self.on_bytes(len(piece))
        except BaseException:
            with contextlib.suppress(OSError):
                _cut_and_unlink(temp)
            raise
        return temp, path, Stored(key, size, md5.hexdigest(), sha256.hexdigest())

    @contextlib.contextmanager
    def _closing(self, key: str, fd: int, *, durable: bool) -> Iterator[BinaryIO]:
        """The open file, fsynced at the end if wanted; an error of the store while it is closed is told as one."""
        writer = os.fdopen(fd, "wb")
        try:
            yield writer
            with self._told(key, writing=True):
                writer.flush()
                if durable:
                    os.fsync(fd)
        except BaseException:
            with contextlib.suppress(OSError):
                writer.close()
            raise
        with self._told(key, writing=True):
            writer.close()

    @contextlib.contextmanager
    def _opened(self, key: str) -> Iterator[int]:
        path = self._path(key)
        with self._told(key):
            fd = os.open(path, _READ_FLAGS)
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise VerificationError(f"{key} is no plain file")
            yield fd
        finally:
            with contextlib.suppress(OSError):
                os.close(fd)

    def _read_piece(self, key: str, fd: int) -> bytes:
        with self._told(key):
            return os.read(fd, _CHUNK_BYTES)

    def _digest(self, path: Path) -> str:
        """SHA-256 through a descriptor of its own, past the page cache where that can be asked for."""
        digest = hashlib.sha256()
        with self._told(path.name):
            fd = os.open(path, _READ_FLAGS)
            try:
                if self.proves and hasattr(os, "posix_fadvise"):
                    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
                while piece := os.read(fd, _CHUNK_BYTES):
                    digest.update(piece)
            finally:
                os.close(fd)
        return digest.hexdigest()

    def _make_folders(self, folder: Path) -> None:
        """Below the root only: where a mount is gone nothing may be made in its place."""
        if folder.is_dir():
            return
        self._check_root()
        made = self.root
        for segment in folder.relative_to(self.root).parts:
            made = made / segment
            with contextlib.suppress(FileExistsError):
                made.mkdir()

    def _check_root(self) -> None:
        try:
            if stat.S_ISDIR(self.root.stat().st_mode):
                return
            why = "it is no folder"
        except OSError as error:
            if error.errno in _DENIED:
                raise self._error(".", error) from None
            why = "" if error.errno == errno.ENOENT else str(error.strerror)
        raise StoreGone(f"the store {self.root} is gone" + (f": {why}" if why else ""), hint="mount it again")

    def _try_out(self) -> None:
        canary, told = self.root / _temp_name(), secrets.token_bytes(32)
        try:
            canary.write_bytes(told)
            if canary.read_bytes() != told:
                raise StoreError(f"{self.root} gives back other bytes than were written")
        finally:
            with contextlib.suppress(OSError):
                _cut_and_unlink(canary)

    def _sweep(self, folder: Path) -> None:
        """Once for each folder: what a killed writer left half-written."""
        if folder in self._swept:
            return
        self._swept.add(folder)
        for name in os.listdir(folder):
            match = _TEMP.match(name)
            if match is not None and _is_abandoned(folder / name, match[1], int(match[2])):
                with contextlib.suppress(OSError):
                    _cut_and_unlink(folder / name)

    @contextlib.contextmanager
    def _told(self, key: str, *, writing: bool = False) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise self._error(key, error, writing=writing) from None

    def _error(self, key: str, error: OSError, *, writing: bool = False) -> BridgeheadError:
        what = f"{key or '.'}: {error.strerror or type(error).__name__}"
        if error.errno == errno.ENOENT and not os.path.isdir(self.root):
            return StoreGone(f"the store {self.root} is gone", hint="mount it again")
        if error.errno in (errno.ENOENT, errno.ENOTDIR) and not writing:
            return NotFoundError(f"the store holds no {key}")
        if error.errno in _GONE:
            return StoreGone(f"the store {self.root} is gone: {error.strerror}", hint="mount it again")
        if means_full(error):
            hint = "make room there, and empty its trash"
            if not self.proves:  # a drive refuses too many small writes with the same word
                hint += "; where there is room, it was a burst of writes, and it is tried again by itself"
            return StoreFull(f"the store {self.root} is full: {what}", hint=hint)
        if error.errno in _DENIED:
            return StoreDenied(f"the store {self.root} can't be written to or read: {what}")
        return StoreError(f"the store {self.root} fails: {what}")


def _flush_each(paths: Iterable[Path]) -> None:
    for path in paths:
        fd = os.open(path, os.O_WRONLY | _SAFE_FLAGS)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def _is_a_name(name: str) -> bool:
    """Whether it can be a part of one of our keys: no temporary file, and no `name (1)` that a drive shows."""
    try:
        paths.check_relative(name)
    except UsageError:
        return False
    return True


def _temp_name() -> str:
    return f"{files.TEMP_PREFIX}{_this_boot()}-{os.getpid()}-{secrets.token_hex(4)}"


def _this_boot() -> str:
    return hashlib.sha256(processes.boot_id().encode()).hexdigest()[:8]


def _is_abandoned(path: Path, boot: str, pid: int) -> bool:
    if boot == _this_boot():
        return pid != os.getpid() and not processes.start_ticks(pid)
    found = files.plain_stat(path)
    return found is not None and time.time() - found.st_mtime > _ABANDONED_AFTER_S


def _cut_and_unlink(path: Path) -> None:
    _cut(path)
    path.unlink()


def _cut(path: Path) -> None:
    fd = os.open(path, os.O_WRONLY | _SAFE_FLAGS)
    try:
        os.ftruncate(fd, 0)
    finally:
        os.close(fd)
