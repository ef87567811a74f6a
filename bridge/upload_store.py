"""Resumable uploads on the laptop's disk. What has arrived is always the size of a file, never a number in a database.

A *sized* upload collects in a hidden temp file beside its target and is renamed once length and hash check out.
A *growing* file (a log) is appended to in place; each generation of it, one life of the file on a VM, begins at a base
offset that is committed before its first byte is written. Only bytes whose digest has been checked are handed in here,
so a kill in the middle of a write leaves a shorter file and nothing wrong.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import sqlite3
import stat
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bridgehead import files, paths
from bridgehead.errors import NotFoundError, SupersededError, UsageError, VerificationError

UPLOADS_FILE: Final = "uploads.sqlite3"
_ABANDONED_S: Final = 7 * 86_400.0
_LEFTOVER_S: Final = 3600.0
_SCHEMA = """
CREATE TABLE IF NOT EXISTS uploads(
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    path TEXT NOT NULL,
    generation TEXT NOT NULL,
    base INTEGER NOT NULL,          -- where in the file this generation begins; 0 for a sized upload
    length INTEGER,                 -- NULL: a growing file
    digest BLOB,                    -- SHA-256 of the whole, when it was announced
    temp TEXT NOT NULL DEFAULT '',  -- name of a sized upload's temp file
    complete INTEGER NOT NULL DEFAULT 0,
    UNIQUE(path, generation)
);
"""


@dataclass(frozen=True)
class Progress:
    """How far an upload is: what the VM has to go by."""

    offset: int
    complete: bool


class OffsetMismatch(Exception):
    """The part does not continue what is there; `progress` is the truth."""

    def __init__(self, progress: Progress) -> None:
        super().__init__(f"the offset is {progress.offset}")
        self.progress = progress


@dataclass(frozen=True)
class _Upload:
    id: int
    path: str
    generation: str
    base: int
    length: int | None
    digest: bytes | None
    temp: str
    complete: int


class UploadStore:
    """Thread-safe; calls for one path wait for one another, calls for different paths do not."""

    def __init__(self, database: Path, root: Path) -> None:
        self._root = root
        self._db = sqlite3.connect(database, check_same_thread=False, isolation_level=None)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=FULL")
        self._db.executescript(_SCHEMA)
        self._db_lock = threading.Lock()
        self._locks: dict[str, threading.Lock] = {}

    def open(self, path: str, generation: str, length: int | None, digest: bytes | None) -> Progress:
        """Begin an upload, or find out how far the same one is.

        Raises SupersededError when a later generation of the path exists.
        """
        with self._lock(path):
            target = self._target(path)
            newest = self._newest(path)
            same = self._find(path, generation)
            if same is not None and newest is not None and same.id != newest.id:
                raise _superseded(path)
            if same is not None and (same.length, same.digest) == (length, digest) and not _vanished(same, target):
                return self._progress(same, target)
            if newest is not None:
                self._drop_temp(newest, target)
            base = _size(target) if length is None else 0
            temp = "" if length is None else f"{files.TEMP_PREFIX}{secrets.token_hex(8)}"
            self._execute(
                "INSERT OR REPLACE INTO uploads(path, generation, base, length, digest, temp) VALUES(?,?,?,?,?,?)",
                (path, generation, base, length, digest, temp),
            )
            return Progress(0, complete=False)

    def progress(self, path: str, generation: str) -> Progress:
        """Raises NotFoundError and SupersededError."""
        with self._lock(path):
            return self._progress(self._checked(path, generation), self._target(path))

    def append(
        self, path: str, generation: str, offset: int, part: Sequence[bytes | bytearray], *, last: bool
    ) -> Progress:
        """Add a verified part. Raises OffsetMismatch, NotFoundError, SupersededError, OSError (nothing was added),
        UsageError (it does not fit the announced length) and VerificationError (the whole has another hash)."""
        with self._lock(path):
            upload = self._checked(path, generation)
            target = self._target(path)
            before = self._progress(upload, target)
            if upload.complete or offset != before.offset:
                raise OffsetMismatch(before)
            end = offset + sum(map(len, part))
            if upload.length is not None and (end > upload.length or (last and end < upload.length)):
                raise UsageError(f"the part ends at {end}, the upload was announced with {upload.length} bytes")
            if upload.length is None:
                fd = paths.open_inside(self._root, path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
                _append(fd, part, durable=last)
            else:
                temp = target.with_name(upload.temp)
                _append(os.open(temp, _TEMP_FLAGS, 0o644), part, durable=last)
                if last:
                    _publish(temp, target, upload)
            if last:
                self._execute("UPDATE uploads SET complete=1 WHERE id=?", (upload.id,))
            return Progress(end, complete=last)

    def forget(self, path: str) -> None:
        """Drop the newest upload of `path` unless it is complete. Raises NotFoundError."""
        with self._lock(path):
            newest = self._newest(path)
            if newest is None or newest.complete:
                raise _not_found(path)
            self._drop_temp(newest, self._target(path))
            self._execute("DELETE FROM uploads WHERE id=?", (newest.id,))

    def sweep(self) -> int:
        """Remove temp files that nothing will continue: of killed whole-file uploads, and of abandoned ones."""
        with self._db_lock:
            known = {row[0] for row in self._db.execute("SELECT temp FROM uploads WHERE temp<>'' AND complete=0")}
        swept = 0
        for folder, _, entries in os.walk(self._root):
            for name in entries:
                if not name.startswith(files.TEMP_PREFIX):
                    continue
                path = Path(folder) / name
                limit_s = _ABANDONED_S if name in known else _LEFTOVER_S
                with contextlib.suppress(OSError):
                    if time.time() - path.stat().st_mtime > limit_s:
                        path.unlink()
                        swept += 1
        return swept

    def close(self) -> None:
        with self._db_lock:
            self._db.close()

    # --- under the path's lock --------------------------------------------------------------

    def _progress(self, upload: _Upload, target: Path) -> Progress:
        if upload.length is not None:
            offset = upload.length if upload.complete else _size(target.with_name(upload.temp))
            return Progress(offset, bool(upload.complete))
        size = _size(target)
        if size < upload.base:  # somebody removed or cut the file: this generation begins at its end now
            self._execute("UPDATE uploads SET base=? WHERE id=?", (size, upload.id))
            return Progress(0, bool(upload.complete))
        return Progress(size - upload.base, bool(upload.complete))

    def _checked(self, path: str, generation: str) -> _Upload:
        newest = self._newest(path)
        if newest is not None and newest.generation == generation:
            return newest
        if self._find(path, generation) is not None:
            raise _superseded(path)
        raise _not_found(path)

    def _target(self, path: str) -> Path:
        """Where `path` lies, its folders made. Raises UsageError when a link or no plain file is in the way."""
        return prepare_target(self._root, path)

    @staticmethod
    def _drop_temp(upload: _Upload, target: Path) -> None:
        if upload.temp and not upload.complete:
            target.with_name(upload.temp).unlink(missing_ok=True)

    # --- database ---------------------------------------------------------------------------

    def _newest(self, path: str) -> _Upload | None:
        return self._one("SELECT * FROM uploads WHERE path=? ORDER BY id DESC LIMIT 1", (path,))

    def _find(self, path: str, generation: str) -> _Upload | None:
        return self._one("SELECT * FROM uploads WHERE path=? AND generation=?", (path, generation))

    def _one(self, sql: str, values: tuple[object, ...]) -> _Upload | None:
        with self._db_lock:
            row = self._db.execute(sql, values).fetchone()
        return None if row is None else _Upload(*row)

    def _execute(self, sql: str, values: tuple[object, ...]) -> None:
        with self._db_lock:
            self._db.execute(sql, values)

    @contextlib.contextmanager
    def _lock(self, path: str) -> Iterator[None]:
        with self._db_lock:
            lock = self._locks.setdefault(path, threading.Lock())
        with lock:
            yield


def prepare_target(root: Path, path: str) -> Path:
    """`root / path` with its folders made. Raises UsageError for a link on the way, or when it is no plain file."""
    target = paths.inside(root, path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise UsageError("a file is where a folder is needed") from None
    target = paths.inside(root, path)  # again: the folders exist now
    try:
        mode = target.lstat().st_mode
    except FileNotFoundError:
        return target
    if not stat.S_ISREG(mode):
        raise UsageError("there is something there that is not a plain file")
    return target


_TEMP_FLAGS = os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)


def _append(fd: int, part: Sequence[bytes | bytearray], *, durable: bool) -> None:
    """Write and close; after an error (disk full) the file is as long as before."""
    try:
        size = os.fstat(fd).st_size
        try:
            for piece in part:
                view = memoryview(piece)
                while view:
                    view = view[os.write(fd, view) :]
            if durable:
                os.fsync(fd)
        except OSError:
            os.ftruncate(fd, size)
            raise
    finally:
        os.close(fd)


def _publish(temp: Path, target: Path, upload: _Upload) -> None:
    """The last step of a sized upload, its bytes being on disk. A whole with a wrong hash is thrown away."""
    if upload.digest is not None and bytes.fromhex(files.sha256_file(temp)) != upload.digest:
        temp.unlink(missing_ok=True)
        raise VerificationError("the whole file does not match its Repr-Digest", hint="send it again from offset 0")
    files.replace(temp, target)
    files.fsync_folder(target.parent)


def _vanished(upload: _Upload, target: Path) -> bool:
    """A finished sized upload whose file the user has removed or changed: it may be sent again."""
    return bool(upload.complete) and upload.length is not None and _size(target) != upload.length


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _superseded(path: str) -> SupersededError:
    return SupersededError(f"a later generation of {path} is being written")


def _not_found(path: str) -> NotFoundError:
    return NotFoundError(f"no such upload: {path}", hint="open it with POST")
