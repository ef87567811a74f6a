"""One account's Google Drive, as far as a client can tell: ids, names that repeat, trash, digests, quota.

It lies in a folder (SQLite and one file per content), so that the double of the API, the double of the mount and the
test itself can each open it in a process of their own, and it outlives all of them as the real one does.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import shutil
import sqlite3
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT_ID = "root-of-my-drive"
_SCHEMA = """
CREATE TABLE IF NOT EXISTS files (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT UNIQUE NOT NULL, name TEXT NOT NULL, parent TEXT NOT NULL,
    folder INTEGER NOT NULL, trashed INTEGER NOT NULL DEFAULT 0, size INTEGER NOT NULL DEFAULT 0,
    md5 TEXT NOT NULL DEFAULT '', sha256 TEXT NOT NULL DEFAULT '', blob TEXT NOT NULL DEFAULT '',
    revision INTEGER NOT NULL DEFAULT 0, created REAL NOT NULL, modified REAL NOT NULL,
    properties TEXT NOT NULL DEFAULT '{}');
CREATE INDEX IF NOT EXISTS by_parent ON files (parent, name);
CREATE TABLE IF NOT EXISTS settings (key TEXT PRIMARY KEY, value INTEGER NOT NULL);
INSERT OR IGNORE INTO settings VALUES ('changes', 0);
"""
_COLUMNS = "seq, id, name, parent, folder, trashed, size, md5, sha256, blob, revision, created, modified, properties"


class NoSuchFile(Exception):
    """No file has this id."""


class QuotaExceeded(Exception):
    """The account has no room; trash counts."""


def new_id() -> str:
    """An id for a file to come."""
    return "1" + secrets.token_urlsafe(24)


@dataclass(frozen=True)
class Entry:
    """One file or folder. `revision` counts the contents it has had; `seq` is the order of creation."""

    seq: int
    id: str
    name: str
    parent: str
    folder: bool
    trashed: bool
    size: int
    md5: str
    sha256: str
    blob: str
    revision: int
    created: float
    modified: float
    properties: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Usage:
    """Bytes. `limit` is None where there is none."""

    limit: int | None
    used: int
    trashed: int


class Cloud:
    """`folder` is made if it is not there. Every method is safe from any thread and any process."""

    def __init__(self, folder: Path, *, quota_bytes: int | None = None) -> None:
        self.folder = Path(folder)
        self._blobs = self.folder / "blobs"
        self._blobs.mkdir(parents=True, exist_ok=True)
        self._local = threading.local()
        with self._transaction() as db:
            for statement in _SCHEMA.split(";"):
                db.execute(statement)
        if quota_bytes is not None:
            self.set_quota(quota_bytes)

    # --- what a client can do ---------------------------------------------------------------------

    def create(
        self,
        name: str,
        parent: str = ROOT_ID,
        content: bytes | Path | None = None,
        *,
        folder: bool = False,
        properties: dict[str, str] | None = None,
        file_id: str = "",
    ) -> Entry:
        """A new file even where one of this name is: Drive's names are not unique. NoSuchFile: no such parent.

        `file_id` is one that the client got from `new_id` beforehand.
        """
        stored = self._store(b"" if content is None else content) if not folder else _Content()
        file_id = file_id or new_id()
        with self._changing(stored) as db:
            above = None if parent == ROOT_ID else self._one(db, parent)
            if above is not None and not above.folder:
                raise NoSuchFile(parent)
            self._room_for(db, stored.size)
            now = self._now(db)
            db.execute(
                "INSERT INTO files (id, name, parent, folder, size, md5, sha256, blob, revision, created, modified,"
                " properties, trashed) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?)",
                (file_id, name, parent, folder, stored.size, stored.md5, stored.sha256, stored.blob, int(not folder))
                + (now, now, json.dumps(properties or {}), above is not None and above.trashed),
            )
            return self._one(db, file_id)

    def update(
        self,
        file_id: str,
        *,
        content: bytes | Path | None = None,
        name: str | None = None,
        parent: str | None = None,
        trashed: bool | None = None,
        properties: dict[str, str] | None = None,
    ) -> Entry:
        """Change what is given; new content is a new revision, and the old one's bytes are let go."""
        stored = None if content is None else self._store(content)
        with self._changing(stored) as db:
            old = self._one(db, file_id)
            changes: dict[str, Any] = {"modified": self._now(db)}
            if stored is not None:
                self._room_for(db, stored.size - old.size)
                changes |= {"size": stored.size, "md5": stored.md5, "sha256": stored.sha256, "blob": stored.blob}
                changes["revision"] = old.revision + 1
            changes |= {} if name is None else {"name": name}
            changes |= {} if parent is None else {"parent": parent}
            changes |= {} if trashed is None else {"trashed": trashed}
            if properties is not None:
                changes["properties"] = json.dumps({**old.properties, **properties})
            columns = ", ".join(f"{column}=?" for column in changes)
            db.execute(f"UPDATE files SET {columns} WHERE id=?", (*changes.values(), file_id))
            if trashed is not None and old.folder:  # what lies in a trashed folder is trashed with it
                for below in self._below(db, file_id):
                    db.execute("UPDATE files SET trashed=? WHERE id=?", (trashed, below.id))
            new = self._one(db, file_id)
        if stored is not None:
            self._drop_blob(old.blob)
        return new

    def delete(self, file_id: str) -> None:
        """For good, with everything below it."""
        with self._changing() as db:
            gone = [self._one(db, file_id), *self._below(db, file_id)]
            for entry in gone:
                db.execute("DELETE FROM files WHERE id=?", (entry.id,))
        for entry in gone:
            self._drop_blob(entry.blob)

    def empty_trash(self) -> None:
        for entry in self.entries(trashed=True):
            with contextlib.suppress(NoSuchFile):
                self.delete(entry.id)

    def get(self, file_id: str) -> Entry:
        return self._one(self._connection(), file_id)

    def children(self, parent: str = ROOT_ID, *, name: str | None = None) -> list[Entry]:
        """What is in a folder and not in the trash, oldest first."""
        if name is None:
            return self._many(self._connection(), "parent=? AND NOT trashed", (parent,))
        return self._many(self._connection(), "parent=? AND name=? AND NOT trashed", (parent, name))

    def entries(self, *, trashed: bool | None = None) -> list[Entry]:
        """Everything, or only what is (not) in the trash, oldest first."""
        where = "1" if trashed is None else "trashed" if trashed else "NOT trashed"
        return self._many(self._connection(), where, ())

    def content(self, entry: Entry) -> Path:
        """The bytes themselves; gone once a newer revision replaced them."""
        return self._blobs / entry.blob

    def usage(self) -> Usage:
        return self._usage(self._connection())

    # --- for tests ----------------------------------------------------------------------------------

    def at(self, path: str) -> list[Entry]:
        """All that lie under exactly this path below My Drive: none, one, or several of one name."""
        found = [ROOT_ID]
        *folders, last = path.strip("/").split("/")
        for name in folders:
            found = [entry.id for parent in found for entry in self.children(parent, name=name) if entry.folder]
        return [entry for parent in found for entry in self.children(parent, name=last)]

    def read(self, path: str) -> bytes:
        """The content of the one file at `path`; AssertionError when there is not exactly one."""
        entries = self.at(path)
        assert len(entries) == 1, f"{len(entries)} files at {path}"
        return self.content(entries[0]).read_bytes()

    def ensure_folder(self, path: str) -> str:
        """The id of the folder at `path`, made with all above it where they are missing."""
        parent = ROOT_ID
        for name in path.strip("/").split("/") if path.strip("/") else []:
            found = [entry for entry in self.children(parent, name=name) if entry.folder]
            parent = found[0].id if found else self.create(name, parent, folder=True).id
        return parent

    def tree(self) -> dict[str, int]:
        """Path -> size of each file that is not in the trash; one of several of one name gets ` #2` and so on."""
        found: dict[str, int] = {}
        waiting = [("", ROOT_ID)]
        while waiting:
            prefix, parent = waiting.pop()
            for entry in self.children(parent):
                path, count = prefix + entry.name, 1
                if entry.folder:
                    waiting.append((path + "/", entry.id))
                    continue
                while path in found:
                    count += 1
                    path = f"{prefix}{entry.name} #{count}"
                found[path] = entry.size
        return dict(sorted(found.items()))

    def damage(self, file_id: str, offset: int = 0, data: bytes = bytes(16)) -> Entry:
        """Overwrite bytes in place, digests and all: what Drive would say of an upload that came damaged."""
        entry = self.get(file_id)
        bytes_now = bytearray(self.content(entry).read_bytes())
        bytes_now[offset : offset + len(data)] = data
        return self.update(file_id, content=bytes(bytes_now))

    def set_quota(self, quota_bytes: int | None) -> None:
        with self._changing() as db:
            db.execute("DELETE FROM settings WHERE key='quota'")
            if quota_bytes is not None:
                db.execute("INSERT INTO settings VALUES ('quota', ?)", (quota_bytes,))

    def changes(self) -> int:
        """Grows with each change by anybody."""
        row = self._connection().execute("SELECT value FROM settings WHERE key='changes'").fetchone()
        return int(row[0])

    # --- within -------------------------------------------------------------------------------------

    def _connection(self) -> sqlite3.Connection:
        db: sqlite3.Connection | None = getattr(self._local, "db", None)
        if db is None:
            db = sqlite3.connect(self.folder / "cloud.sqlite3", timeout=30, isolation_level=None)
            db.execute("PRAGMA journal_mode=WAL")
            db.execute("PRAGMA synchronous=OFF")  # a killed process loses nothing, and no test cuts the power
            self._local.db = db
        return db

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        db = self._connection()
        db.execute("BEGIN IMMEDIATE")
        try:
            yield db
        except BaseException:
            db.execute("ROLLBACK")
            raise
        db.execute("COMMIT")

    @contextlib.contextmanager
    def _changing(self, stored: _Content | None = None) -> Iterator[sqlite3.Connection]:
        try:
            with self._transaction() as db:
                db.execute("UPDATE settings SET value = value + 1 WHERE key='changes'")
                yield db
        except BaseException:
            if stored is not None:
                self._drop_blob(stored.blob)
            raise

    @staticmethod
    def _now(db: sqlite3.Connection) -> float:
        """Two changes never bear the same millisecond, which is as fine as the API tells it."""
        latest = db.execute("SELECT COALESCE(MAX(modified), 0) FROM files").fetchone()[0]
        return max(time.time(), latest + 0.001)

    def _one(self, db: sqlite3.Connection, file_id: str) -> Entry:
        found = self._many(db, "id=?", (file_id,))
        if not found:
            raise NoSuchFile(file_id)
        return found[0]

    def _below(self, db: sqlite3.Connection, file_id: str) -> list[Entry]:
        found: list[Entry] = []
        waiting = [file_id]
        while waiting:
            children = self._many(db, "parent=?", (waiting.pop(),))
            found += children
            waiting += [child.id for child in children if child.folder]
        return found

    @staticmethod
    def _many(db: sqlite3.Connection, where: str, values: tuple[object, ...]) -> list[Entry]:
        rows = db.execute(f"SELECT {_COLUMNS} FROM files WHERE {where} ORDER BY seq", values).fetchall()
        return [
            Entry(*row[:4], bool(row[4]), bool(row[5]), *row[6:13], json.loads(row[13]))  # ten plain columns between
            for row in rows
        ]

    def _usage(self, db: sqlite3.Connection) -> Usage:
        limit = db.execute("SELECT value FROM settings WHERE key='quota'").fetchone()
        used, trashed = db.execute(
            "SELECT COALESCE(SUM(size), 0), COALESCE(SUM(CASE WHEN trashed THEN size ELSE 0 END), 0) FROM files"
        ).fetchone()
        return Usage(limit[0] if limit else None, used, trashed)

    def _room_for(self, db: sqlite3.Connection, more_bytes: int) -> None:
        usage = self._usage(db)
        if usage.limit is not None and more_bytes > 0 and usage.used + more_bytes > usage.limit:
            raise QuotaExceeded(f"{usage.used} of {usage.limit} bytes are used")

    def _store(self, content: bytes | Path) -> _Content:
        blob = secrets.token_hex(12)
        path = self._blobs / blob
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            shutil.copyfile(content, path)
        md5, sha256, size = hashlib.md5(), hashlib.sha256(), 0
        with path.open("rb") as handle:
            while piece := handle.read(1 << 20):
                md5.update(piece)
                sha256.update(piece)
                size += len(piece)
        return _Content(size, md5.hexdigest(), sha256.hexdigest(), blob)

    def _drop_blob(self, blob: str) -> None:
        if blob:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._blobs / blob)


@dataclass(frozen=True)
class _Content:
    size: int = 0
    md5: str = ""
    sha256: str = ""
    blob: str = ""
