"""Resumable uploads on the laptop's disk, part by part; a part counts once its digest has been checked.

A *sized* upload collects in a hidden temp file beside its target and is renamed once length and hash check out. A part
of it is written while it arrives; the database says how much of the file is verified, and whatever lies beyond that is
cut off before anything else is written. Before the rename all of it is on disk; until then a power cut may take parts
back (the file is shorter) or leave zeros in them, which the hash of the whole finds.

A *growing* file (a log) is appended to in place, and read by people meanwhile: a part is held in memory until it is
verified. What has arrived is the size of the file; each generation of it, one life of the file on a VM, begins at a
base offset that is committed before its first byte is written. A kill in the middle of a write leaves a shorter file.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import sqlite3
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from bridge import growing, log_rotation
from bridge.disk_writes import WRITE_BACK_BYTES, append, start_write_back, write_all
from bridge.small_db import VERSION, check_version
from bridge.sqlite_faults import is_passing, not_now
from bridge.targets import check_spelling, prepare_target
from bridgehead import files
from bridgehead.errors import NotFoundError, SupersededError, UsageError, VerificationError

UPLOADS_FILE: Final = "uploads.sqlite3"
_ABANDONED_S: Final = 7 * 86_400.0
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
    verified INTEGER NOT NULL DEFAULT 0,  -- bytes of a sized upload's temp file that are as they were sent
    rotated INTEGER NOT NULL DEFAULT 0,   -- bytes of this generation that are in log.1 by now, or gone
    rotating INTEGER NOT NULL DEFAULT 0,  -- inode of the file that is to become log.1; 0: none
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
    verified: int
    rotated: int
    rotating: int


class Part:
    """One part on its way: `write` its pieces, then `commit` once they are verified; `drop` it in any case.

    The next part that begins for the same upload overtakes it: a sender that tries again need not wait until the
    connection it has lost is given up here. Each method raises OffsetMismatch after that, but for `drop`.
    """

    def __init__(self, store: UploadStore, path: str, upload: _Upload, offset: int, *, last: bool) -> None:
        self._store = store
        self.path = path
        self.upload = upload
        self.offset = offset
        self.end = offset
        self.last = last
        self.held: list[bytes] = []  # of a growing file
        self.lock = store.lock_of(path)
        self.fd = -1  # of a sized upload's temp file; open while this part is the one being written

    def write(self, piece: bytes | memoryview) -> None:
        """Add what arrived. Raises UsageError when it does not fit the announced length, and OSError (disk full)."""
        with self.lock:
            before, self.end = self.end, self.end + len(piece)
            if self.upload.length is None:
                self.held.append(bytes(piece))
                return
            self._store._still_written(self)
            if self.end > self.upload.length:
                raise _unfit(self.end, self.upload)
            write_all(self.fd, piece)
            if before // WRITE_BACK_BYTES < self.end // WRITE_BACK_BYTES:
                start_write_back(self.fd, self.end - WRITE_BACK_BYTES, WRITE_BACK_BYTES)

    def commit(self) -> Progress:
        """It is verified: let it count. Raises what UploadStore.begin does, OSError (nothing was added), UsageError
        (it does not fit the announced length) and VerificationError (the whole has another hash)."""
        with self.lock:
            return self._store._commit(self)

    def drop(self) -> None:
        """Undo what was not committed."""
        with self.lock:
            self.held.clear()
            if self._store._writing.get(self.path) is self:
                self._store._overtake(self.path)


class UploadStore:
    """Thread-safe; calls for one path wait for one another, calls for different paths do not."""

    def __init__(self, database: Path, root: Path, log_max_bytes: Callable[[], int] = lambda: 0) -> None:
        """`log_max_bytes`: what a log may have before it is rotated; 0: no limit."""
        self._root = root
        self._log_max_bytes = log_max_bytes
        try:
            self._db = _connect(database)
        except sqlite3.DatabaseError as error:
            if is_passing(error):
                raise not_now(database, error) from None
            raise VerificationError(
                f"{database} is damaged ({error})",
                hint="move it and its -wal and -shm away and start again; a log that still grows is sent anew",
            ) from None
        self._db_lock = threading.Lock()
        self._locks: dict[str, threading.Lock] = {}
        self._writing: dict[str, Part] = {}  # the part of a sized upload that is written now, for each path

    def open(self, path: str, generation: str, length: int | None, digest: bytes | None) -> Progress:
        """Begin an upload, or find out how far the same one is.

        Raises SupersededError when a later generation of the path exists.
        """
        with self.lock_of(path):
            check_spelling(self._root, path)
            target = prepare_target(self._root, path)
            newest = self._newest(path)
            same = self._find(path, generation)
            if same is not None and newest is not None and same.id != newest.id:
                raise _superseded(path)
            self._overtake(path)
            if same is not None and (same.length, same.digest) == (length, digest) and not _vanished(same, target):
                progress = self._progress(same, target)
                if same.length is not None and not same.complete:
                    os.close(_open_temp(target.with_name(same.temp), progress.offset))
                return progress
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
        with self.lock_of(path):
            return self._progress(self._checked(path, generation), prepare_target(self._root, path))

    def begin(self, path: str, generation: str, offset: int, *, last: bool) -> Part:
        """Get ready for a part. Raises OffsetMismatch, NotFoundError and SupersededError."""
        with self.lock_of(path):
            upload, target = self._continued(path, generation, offset)
            part = Part(self, path, upload, offset, last=last)
            if upload.length is not None:
                self._overtake(path)
                part.fd = _open_temp(target.with_name(upload.temp), offset)
                self._writing[path] = part
            return part

    def forget(self, path: str) -> None:
        """Drop the newest upload of `path` unless it is complete. Raises NotFoundError."""
        with self.lock_of(path):
            newest = self._newest(path)
            if newest is None or newest.complete:
                raise _not_found(path)
            self._overtake(path)
            self._drop_temp(newest, prepare_target(self._root, path))
            self._execute("DELETE FROM uploads WHERE id=?", (newest.id,))

    def sweep(self, others: Collection[str] = ()) -> int:
        """Remove temp files that nothing will continue: of killed whole-file uploads, and of abandoned ones.

        `others` are those that somebody else goes on with. For the start of the bridge, the only one that writes here:
        what nobody knows then has no writer.
        """
        with self._db_lock:
            known = {*others} | {
                row[0] for row in self._db.execute("SELECT temp FROM uploads WHERE temp<>'' AND complete=0")
            }
        swept = 0
        for folder, _, entries in os.walk(self._root):
            for path in (Path(folder) / name for name in entries if name.startswith(files.TEMP_PREFIX)):
                with contextlib.suppress(OSError):
                    if path.name not in known or time.time() - path.stat().st_mtime > _ABANDONED_S:
                        path.unlink()
                        swept += 1
        return swept

    def close(self) -> None:
        with self._db_lock:
            self._db.close()

    # --- under the path's lock --------------------------------------------------------------

    def _commit(self, part: Part) -> Progress:
        if part.upload.length is not None:
            self._still_written(part)
        upload, target = self._continued(part.path, part.upload.generation, part.offset)
        if upload.length is None:
            fd = growing.open_for_append(self._root, part.path)
            append(fd, part.held, durable=part.last)
            if log_rotation.is_due(target, self._log_max_bytes()):
                self._rotate(upload, target)
        else:
            self._keep(part, upload, target)
        if part.last:
            self._execute("UPDATE uploads SET complete=1 WHERE id=?", (upload.id,))
        return Progress(part.end, complete=part.last)

    def _rotate(self, upload: _Upload, target: Path) -> None:
        """Written down first, so that a kill in between changes nothing: the offset is the same before and after."""
        found = target.stat()
        rotated = upload.rotated + found.st_size - upload.base
        sql = "UPDATE uploads SET rotated=?, base=0, rotating=? WHERE id=?"
        self._execute(sql, (rotated, found.st_ino, upload.id))
        self._end_rotation(replace(upload, rotated=rotated, base=0, rotating=found.st_ino), target)

    def _end_rotation(self, upload: _Upload, target: Path) -> _Upload:
        base = log_rotation.turn(target, upload.rotating, self._log_max_bytes())
        self._execute("UPDATE uploads SET base=?, rotating=0 WHERE id=?", (base, upload.id))
        return replace(upload, base=base, rotating=0)

    def _keep(self, part: Part, upload: _Upload, target: Path) -> None:
        """A verified part of a sized upload: it counts from now on, and the last one makes the file appear."""
        if not part.last:
            self._execute("UPDATE uploads SET verified=? WHERE id=?", (part.end, upload.id))
        elif part.end < (upload.length or 0):
            raise _unfit(part.end, upload)
        else:
            os.fsync(part.fd)
        part.offset = part.end
        self._overtake(part.path)
        if part.last:
            _publish(target.with_name(upload.temp), target, upload)

    def _overtake(self, path: str) -> None:
        """Whatever part is being written, it is no more; what it has written beyond the verified goes."""
        if (part := self._writing.pop(path, None)) is not None:
            with os.fdopen(part.fd, "rb", buffering=0) as handle:
                os.ftruncate(handle.fileno(), part.offset)

    def _still_written(self, part: Part) -> None:
        if self._writing.get(part.path) is not part:
            upload = self._checked(part.path, part.upload.generation)
            raise OffsetMismatch(self._progress(upload, prepare_target(self._root, part.path)))

    def _continued(self, path: str, generation: str, offset: int) -> tuple[_Upload, Path]:
        """The upload and its target. Raises OffsetMismatch unless a part at `offset` is what comes next."""
        upload, target = self._checked(path, generation), prepare_target(self._root, path)
        before = self._progress(upload, target)
        if upload.complete or offset != before.offset:
            raise OffsetMismatch(before)
        return upload, target

    def _progress(self, upload: _Upload, target: Path) -> Progress:
        if upload.length is not None:
            if upload.complete:
                return Progress(upload.length, complete=True)
            size = _size(target.with_name(upload.temp))
            if size < upload.verified:  # a power cut, or somebody's doing: what comes there again is not verified yet
                self._execute("UPDATE uploads SET verified=? WHERE id=?", (size, upload.id))
            return Progress(min(size, upload.verified), complete=False)
        if upload.rotating:
            upload = self._end_rotation(upload, target)
        size = _size(target)
        if size < upload.base:  # somebody removed or cut the file: what is sent from now on begins at its end
            self._execute("UPDATE uploads SET base=? WHERE id=?", (size, upload.id))
            return Progress(upload.rotated, bool(upload.complete))
        return Progress(upload.rotated + size - upload.base, bool(upload.complete))

    def _checked(self, path: str, generation: str) -> _Upload:
        newest = self._newest(path)
        if newest is not None and newest.generation == generation:
            return newest
        if self._find(path, generation) is not None:
            raise _superseded(path)
        raise _not_found(path)

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

    def lock_of(self, path: str) -> threading.Lock:
        with self._db_lock:
            return self._locks.setdefault(path, threading.Lock())


def _connect(database: Path) -> sqlite3.Connection:
    db = sqlite3.connect(database, check_same_thread=False, isolation_level=None)
    try:
        check_version(db, database)
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=FULL")
        db.executescript(_SCHEMA)
        columns = {row[1] for row in db.execute("PRAGMA table_info(uploads)")}
        for name in ("verified", "rotated", "rotating"):  # in that order, as in the schema
            if name not in columns:  # of an earlier bridge: what had arrived of an unfinished upload is sent again
                db.execute(f"ALTER TABLE uploads ADD COLUMN {name} INTEGER NOT NULL DEFAULT 0")
        db.execute(f"PRAGMA user_version = {VERSION}")
    except BaseException:
        db.close()
        raise
    return db


def _open_temp(temp: Path, size: int) -> int:
    """A sized upload's temp file, cut to the `size` bytes that count and ready for the next one."""
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    fd = os.open(temp, flags, 0o644)
    try:
        os.ftruncate(fd, size)
        os.lseek(fd, size, os.SEEK_SET)
    except BaseException:
        os.close(fd)
        raise
    return fd


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


def _unfit(end: int, upload: _Upload) -> UsageError:
    return UsageError(f"the part ends at {end}, the upload was announced with {upload.length} bytes")


def _not_found(path: str) -> NotFoundError:
    return NotFoundError(f"no such upload: {path}", hint="open it with POST")
