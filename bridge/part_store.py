"""Uploads in parts that may come in any order and side by side, each straight to its place in a hidden temp file.

The sender announces the SHA-256 of every part when it opens the upload. So each byte is hashed once at each end: a part
counts when its own digest was checked, and the whole is proven when all of them count; it is renamed then, and not
before it is on disk. That a part counts holds for one boot of the machine: a power cut may take back what the disk had
not got yet, so after another boot the parts are hashed again before they count. Parts that the laptop has already
(known_content) are copied, not sent.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from io import FileIO
from pathlib import Path
from typing import Final

from bridge.disk_writes import WRITE_BACK_BYTES, start_write_back, write_all
from bridge.known_content import KnownContent, Piece
from bridge.small_db import SmallDb
from bridge.targets import check_spelling, prepare_target
from bridgehead import files, names, processes
from bridgehead.errors import NotFoundError, UsageError, VerificationError

PARTS_FILE: Final = "parts.sqlite3"
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS uploads(
    id INTEGER PRIMARY KEY AUTOINCREMENT, path TEXT NOT NULL UNIQUE, generation TEXT NOT NULL, family TEXT NOT NULL,
    length INTEGER NOT NULL, part_size INTEGER NOT NULL, digests BLOB NOT NULL, temp TEXT NOT NULL,
    complete INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE IF NOT EXISTS parts(
    upload INTEGER NOT NULL, number INTEGER NOT NULL, boot TEXT NOT NULL, PRIMARY KEY(upload, number)
) WITHOUT ROWID;
"""
_COLUMNS: Final = "id, path, generation, family, length, part_size, digests, temp, complete"
_HASH_BYTES: Final = 2**20


@dataclass(frozen=True)
class Whole:
    """What a sender announces: sizes in bytes, `digests` the 32-byte SHA-256 of each part, one after the other."""

    generation: str
    length: int
    part_size: int
    digests: bytes

    @property
    def count(self) -> int:
        return -(-self.length // self.part_size)

    def size_of(self, number: int) -> int:
        return min(self.part_size, self.length - number * self.part_size)

    def digest_of(self, number: int) -> bytes:
        return self.digests[32 * number : 32 * number + 32]

    def check(self) -> None:
        """Raises UsageError."""
        if not 0 < self.part_size <= names.PART_MAX_BYTES or self.length <= 0:
            raise UsageError(f"parts have 1 to {names.PART_MAX_BYTES} bytes, and a whole in parts is not empty")
        if self.count > names.PARTS_MAX or len(self.digests) != 32 * self.count:
            raise UsageError(f"expected the SHA-256 of each of {self.count} parts, at most {names.PARTS_MAX}")


@dataclass(frozen=True)
class PartsProgress:
    """`offset`: so many bytes from the beginning on are there without a gap. `missing`: numbers of parts.

    `complete`: the file has appeared. Nothing missing is not enough for that: its disk may have been full just then.
    """

    offset: int
    missing: tuple[int, ...]
    there_bytes: int = 0
    complete: bool = False


class PartsMismatch(Exception):
    """That part is not wanted; `progress` says what is."""

    def __init__(self, progress: PartsProgress) -> None:
        super().__init__("the part is there")
        self.progress = progress


@dataclass(frozen=True)
class _Upload:
    id: int
    path: str
    family: str
    temp: str
    complete: bool
    whole: Whole


class PartWriter:
    """One part on its way: `write` its pieces, then `commit` once its digest was checked; `drop` it in any case.

    The next writer of the same part overtakes it: each method raises PartsMismatch after that, but for `drop`.
    """

    def __init__(self, store: PartStore, upload: _Upload, number: int, fd: int) -> None:
        self._store = store
        self.upload = upload
        self.number = number
        self._lock = threading.Lock()
        self._fd = fd
        self._at = number * upload.whole.part_size
        self._end = self._at + upload.whole.size_of(number)

    def write(self, piece: bytes | memoryview) -> None:
        """Raises UsageError when it is longer than the part, and OSError (disk full)."""
        with self._lock:
            if self._fd < 0:
                raise PartsMismatch(self._store.state(self.upload))
            if self._at + len(piece) > self._end:
                raise UsageError(f"part {self.number} has {self.upload.whole.size_of(self.number)} bytes")
            write_all(self._fd, piece)
            before, self._at = self._at, self._at + len(piece)
            if before // WRITE_BACK_BYTES < self._at // WRITE_BACK_BYTES:
                start_write_back(self._fd, self._at - WRITE_BACK_BYTES, WRITE_BACK_BYTES)

    def commit(self) -> PartsProgress:
        """Its digest is the announced one: let it count. The last one makes the file appear."""
        with self._lock:
            if self._fd >= 0 and self._at != self._end:
                raise UsageError(f"part {self.number} has {self.upload.whole.size_of(self.number)} bytes")
        return self._store._commit(self)

    def drop(self) -> None:
        self._store._drop(self)

    def close(self) -> bool:
        """End it; False when it had ended before."""
        with self._lock:
            fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
        return fd >= 0


class PartStore:
    """Thread-safe; what is long for one path holds up no other."""

    def __init__(self, database: Path, root: Path, known: KnownContent) -> None:
        self._root = root
        self._known = known
        self._db = SmallDb(database, _SCHEMA)
        boot = processes.boot_id()
        self._boot = boot if boot != "no-boot-id" else secrets.token_hex(8)  # then a restart of the bridge is enough
        self._guard = threading.Lock()
        self._locks: dict[str, threading.Lock] = {}
        self._writers: dict[str, dict[int, PartWriter]] = {}  # by path, under its lock, and part

    def close(self) -> None:
        self._db.close()

    def open(self, path: str, family: str, whole: Whole) -> PartsProgress:
        """Begin an upload or find out what is missing of the same one; what the laptop has already is put in place.

        Raises UsageError and OSError. Slow when there is much to copy: it reads and hashes what it copies.
        """
        whole.check()
        with self._lock_of(path):
            check_spelling(self._root, path)
            target = prepare_target(self._root, path)
            upload = self._find(path)
            if upload is None or upload.family != family or _vanished(upload, target):
                upload = self._begin(path, family, whole, upload, target)
            elif upload.whole != whole:
                upload = self._renamed(upload, whole) or self._begin(path, family, whole, upload, target)
            if upload.complete:
                return self.state(upload)
            if self._was_renamed(upload, target):
                return self._note_complete(upload)
            self._check_again(upload, target.with_name(upload.temp))
            self._fill(upload, target.with_name(upload.temp))
            return self._finish(upload, target)

    def find(self, path: str, generation: str) -> PartsProgress | None:
        """None when no such upload in parts is known."""
        upload = self._find(path)
        return self.state(upload) if upload is not None and upload.whole.generation == generation else None

    def begin(self, path: str, generation: str, offset: int, digest: bytes) -> PartWriter:
        """Get ready for the part at `offset`, whose sender says that it has this digest.

        Raises NotFoundError, PartsMismatch (it is there already), UsageError (no part begins there) and
        VerificationError (another digest was announced).
        """
        with self._lock_of(path):
            upload = self._find(path)
            if upload is None or upload.whole.generation != generation:
                raise NotFoundError(f"no such upload: {path}", hint="open it with POST")
            number, rest = divmod(offset, upload.whole.part_size)
            if rest or number >= upload.whole.count:
                raise UsageError(f"no part begins at {offset}")
            state = self.state(upload)
            if number not in state.missing:
                raise PartsMismatch(state)
            if upload.whole.digest_of(number) != digest:
                raise VerificationError(f"part {number} was announced with another SHA-256", hint="open it anew")
            temp = prepare_target(self._root, path).with_name(upload.temp)
            fd = os.open(temp, os.O_WRONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0))
            os.lseek(fd, offset, os.SEEK_SET)
            writer = PartWriter(self, upload, number, fd)
            writers = self._writers.setdefault(path, {})
            if number in writers:
                writers[number].close()
            writers[number] = writer
            return writer

    def forget(self, path: str) -> bool:
        """Drop the upload of `path` unless it is complete; False when there is none."""
        with self._lock_of(path):
            upload = self._find(path)
            if upload is None or upload.complete:
                return False
            self._discard(upload, prepare_target(self._root, path))
            return True

    def temps(self) -> list[str]:
        """Names of the temp files that may still be gone on with."""
        return [str(temp) for (temp,) in self._db.rows("SELECT temp FROM uploads WHERE complete=0")]

    def state(self, upload: _Upload) -> PartsProgress:
        if upload.complete:
            return _arrived(upload)
        rows = self._db.rows("SELECT number FROM parts WHERE upload=? AND boot=?", (upload.id, self._boot))
        there = {number for (number,) in rows}
        missing = tuple(number for number in range(upload.whole.count) if number not in there)
        offset = missing[0] * upload.whole.part_size if missing else upload.whole.length
        return PartsProgress(offset, missing, upload.whole.length - sum(map(upload.whole.size_of, missing)))

    # --- under the path's lock --------------------------------------------------------------------

    def _begin(self, path: str, family: str, whole: Whole, before: _Upload | None, target: Path) -> _Upload:
        if before is not None:
            self._discard(before, target)
        temp = f"{files.TEMP_PREFIX}{secrets.token_hex(8)}"
        row = (path, whole.generation, family, whole.length, whole.part_size, whole.digests, temp)
        sql = "INSERT INTO uploads(path, generation, family, length, part_size, digests, temp) VALUES(?,?,?,?,?,?,?)"
        return _Upload(self._db.write((sql, row)), path, family, temp, complete=False, whole=whole)

    def _renamed(self, upload: _Upload, whole: Whole) -> _Upload | None:
        """The same content under another generation, by a later attempt say: what is there of it stays."""
        if replace(upload.whole, generation=whole.generation) != whole:
            return None
        self._db.write(("UPDATE uploads SET generation=? WHERE id=?", (whole.generation, upload.id)))
        return replace(upload, whole=whole)

    def _check_again(self, upload: _Upload, temp: Path) -> None:
        """Have the temp file there, and hash what an earlier boot had written of it."""
        flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
        with FileIO(os.open(temp, flags, 0o644), "rb") as handle:
            size = os.fstat(handle.fileno()).st_size
            for number, boot in self._db.rows("SELECT number, boot FROM parts WHERE upload=?", (upload.id,)):
                end = number * upload.whole.part_size + upload.whole.size_of(number)
                if boot == self._boot and end <= size:
                    continue
                handle.seek(number * upload.whole.part_size)
                good = _hash(handle, upload.whole.size_of(number)) == upload.whole.digest_of(number)
                change = "UPDATE parts SET boot=? WHERE upload=? AND number=?"
                if not good:
                    change = "DELETE FROM parts WHERE boot<>? AND upload=? AND number=?"
                self._db.write((change, (self._boot if good else "", upload.id, number)))

    def _fill(self, upload: _Upload, temp: Path) -> None:
        """Copy what the laptop has already under this pairing."""
        whole = upload.whole
        for number in self.state(upload).missing:
            if number in self._writers.get(upload.path, {}):
                continue
            data = self._known.find(upload.family, whole.size_of(number), whole.digest_of(number))
            if data is None:
                continue
            with temp.open("r+b", buffering=0) as handle:
                handle.seek(number * whole.part_size)
                write_all(handle.fileno(), data)
            self._count(upload, number)

    def _commit(self, writer: PartWriter) -> PartsProgress:
        upload = writer.upload
        with self._lock_of(upload.path):
            if not self._is_current(writer):
                raise PartsMismatch(self.state(self._find(upload.path) or upload))
            self._close(writer)
            self._count(upload, writer.number)
            return self._finish(upload, prepare_target(self._root, upload.path))

    def _finish(self, upload: _Upload, target: Path) -> PartsProgress:
        """Rename it once every part counts."""
        state = self.state(upload)
        if state.missing:
            return state
        temp = target.with_name(upload.temp)
        with temp.open("r+b", buffering=0) as handle:
            if os.fstat(handle.fileno()).st_size != upload.whole.length:  # somebody's doing
                self._db.write(("DELETE FROM parts WHERE upload=?", (upload.id,)))
                return self.state(upload)
            os.fsync(handle.fileno())
        files.replace(temp, target)
        files.fsync_folder(target.parent)
        return self._note_complete(upload)

    def _was_renamed(self, upload: _Upload, target: Path) -> bool:
        """Whether the bridge was killed between the rename and the note of it: each part lies at the target then."""
        whole = upload.whole
        if target.with_name(upload.temp).exists() or _size(target) != whole.length:
            return False
        with target.open("rb", buffering=0) as handle:
            return all(_hash(handle, whole.size_of(number)) == whole.digest_of(number) for number in range(whole.count))

    def _note_complete(self, upload: _Upload) -> PartsProgress:
        self._db.write(("UPDATE uploads SET complete=1 WHERE id=?", (upload.id,)), _no_parts(upload))
        self._known.note(upload.family, _pieces(upload))
        return _arrived(upload)

    def _count(self, upload: _Upload, number: int) -> None:
        values = (upload.id, number, self._boot)
        self._db.write(("INSERT OR REPLACE INTO parts(upload, number, boot) VALUES(?,?,?)", values))

    def _discard(self, upload: _Upload, target: Path) -> None:
        for writer in self._writers.pop(upload.path, {}).values():
            writer.close()
        if not upload.complete:
            target.with_name(upload.temp).unlink(missing_ok=True)
        gone = ("DELETE FROM parts WHERE upload=?", (upload.id,))
        self._db.write(gone, ("DELETE FROM uploads WHERE id=?", (upload.id,)))

    def _is_current(self, writer: PartWriter) -> bool:
        return self._writers.get(writer.upload.path, {}).get(writer.number) is writer

    def _close(self, writer: PartWriter) -> None:
        writer.close()
        writers = self._writers.get(writer.upload.path, {})
        writers.pop(writer.number, None)
        if not writers:
            self._writers.pop(writer.upload.path, None)

    # --- anywhere -----------------------------------------------------------------------------------

    def _drop(self, writer: PartWriter) -> None:
        if writer.close():
            with self._lock_of(writer.upload.path):
                if self._is_current(writer):
                    self._close(writer)

    def _find(self, path: str) -> _Upload | None:
        for row in self._db.rows(f"SELECT {_COLUMNS} FROM uploads WHERE path=?", (path,)):
            number, _, generation, family, length, part_size, digests, temp, complete = row
            whole = Whole(generation, length, part_size, bytes(digests))
            return _Upload(number, path, family, temp, bool(complete), whole)
        return None

    def _lock_of(self, path: str) -> threading.Lock:
        with self._guard:
            return self._locks.setdefault(path, threading.Lock())


def _arrived(upload: _Upload) -> PartsProgress:
    return PartsProgress(upload.whole.length, (), upload.whole.length, complete=True)


def _no_parts(upload: _Upload) -> tuple[str, tuple[int]]:
    return "DELETE FROM parts WHERE upload=?", (upload.id,)


def _pieces(upload: _Upload) -> Iterator[Piece]:
    whole = upload.whole
    for number in range(whole.count):
        yield Piece(upload.path, number * whole.part_size, whole.size_of(number), whole.digest_of(number))


def _hash(handle: FileIO, size: int) -> bytes:
    digest, left = hashlib.sha256(), size
    while left and (piece := handle.read(min(left, _HASH_BYTES))):
        digest.update(piece)
        left -= len(piece)
    return digest.digest()


def _vanished(upload: _Upload, target: Path) -> bool:
    """A finished one whose file the user has removed or changed: it may be sent again."""
    return upload.complete and _size(target) != upload.whole.length


def _size(path: Path) -> int:
    found = files.plain_stat(path)
    return -1 if found is None else found.st_size
