"""Which bytes the laptop has already: pieces of what arrived, by size and SHA-256, so that nothing is sent twice.

A hint, never a proof: whoever uses it hashes what it finds there. Each piece is known to the pairing under which it
came (its family of keys, before and after a rotation) and to no other, so that nobody can ask whether somebody else's
file is here.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from bridge.small_db import SmallDb
from bridgehead import paths
from bridgehead.errors import UsageError

CONTENT_FILE: Final = "content.sqlite3"
_TRIES: Final = 3  # places of one piece that are looked at
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS pieces(
    path TEXT NOT NULL, start INTEGER NOT NULL, size INTEGER NOT NULL, digest BLOB NOT NULL, family TEXT NOT NULL,
    PRIMARY KEY(path, start)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS by_digest ON pieces(digest);
"""


class Piece(NamedTuple):
    """`size` bytes from `start` on of a file below in/, with their SHA-256."""

    path: str
    start: int
    size: int
    digest: bytes


class KnownContent:
    """Thread-safe."""

    def __init__(self, database: Path, root: Path) -> None:
        self._root = root
        self._db = SmallDb(database, _SCHEMA)

    def close(self) -> None:
        self._db.close()

    def note(self, family: str, pieces: Iterable[Piece]) -> None:
        """These have arrived, verified; what their files held before is forgotten."""
        found = list(pieces)
        self._db.write_many("DELETE FROM pieces WHERE path=?", {(piece.path,) for piece in found})
        self._insert(family, found)

    def note_whole(self, family: str, pieces: Iterable[Piece]) -> None:
        """The same for small files, each of one piece. What is left of bigger ones under their names proves nothing."""
        self._insert(family, pieces)

    def find(self, family: str, size: int, digest: bytes) -> bytes | None:
        """The bytes themselves, read and hashed just now; None when no file of this pairing holds them any more."""
        query = "SELECT path, start FROM pieces WHERE digest=? AND size=? AND family=? LIMIT ?"
        for path, start in self._db.rows(query, (digest, size, family, _TRIES)):
            data = self._read(path, start, size)
            if data is not None and hashlib.sha256(data).digest() == digest:
                return data
            self._db.write(("DELETE FROM pieces WHERE path=? AND start=?", (path, start)))
        return None

    def is_at(self, family: str, path: str, size: int, digest: bytes) -> bool:
        """Whether the file at `path` arrived with this content, and has it still."""
        query = "SELECT 1 FROM pieces WHERE path=? AND start=0 AND size=? AND digest=? AND family=?"
        if not self._db.rows(query, (path, size, digest, family)):
            return False
        data = self._read(path, 0, size + 1)
        return data is not None and hashlib.sha256(data).digest() == digest

    def _insert(self, family: str, pieces: Iterable[Piece]) -> None:
        self._db.write_many(
            "INSERT OR REPLACE INTO pieces(path, start, size, digest, family) VALUES(?,?,?,?,?)",
            ((*piece, family) for piece in pieces),
        )

    def _read(self, path: str, start: int, size: int) -> bytes | None:
        with contextlib.suppress(OSError, UsageError):
            fd = paths.open_inside(
                self._root, path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)
            )  # a FIFO never hangs us
            with os.fdopen(fd, "rb", buffering=0) as handle:
                handle.seek(start)
                pieces, left = [], size
                while left and (piece := handle.read(left)):
                    pieces.append(piece)
                    left -= len(piece)
                return b"".join(pieces)
        return None
