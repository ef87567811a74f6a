"""SQLite files of the bridge that only save work: when one is damaged, it is made anew and things are sent again.

One that a newer Bridgehead wrote is not damaged: it is refused, as the ledger does it, and stays as it is.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from bridge.sqlite_faults import is_passing, not_now
from bridgehead.errors import VerificationError

log = logging.getLogger(__name__)
VERSION: Final = 1
_Values = Sequence[object]


def check_version(db: sqlite3.Connection, path: Path) -> None:
    """Raises VerificationError for a file of another version; 0 is a new one, or one from before there were any."""
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if version not in (0, VERSION):
        raise VerificationError(
            f"{path} is of version {version}, this is {VERSION}",
            hint="update Bridgehead; or move it and its -wal and -shm away and start again: things are sent anew then",
        )


class SmallDb:
    """One connection for all threads. The newest commits may be lost in a power cut: what is in it proves nothing."""

    def __init__(self, path: Path, schema: str) -> None:
        """Raises VerificationError when the file is of another version, and OSError."""
        self._lock = threading.Lock()
        try:
            self._db = _open(path, schema)
        except sqlite3.DatabaseError as error:
            if is_passing(error):
                raise not_now(path, error) from None
            log.warning("%s is damaged (%s) and made anew", path.name, error)
            for suffix in ("", "-wal", "-shm"):
                path.with_name(path.name + suffix).unlink(missing_ok=True)
            self._db = _open(path, schema)

    def rows(self, sql: str, values: _Values = ()) -> list[Any]:
        with self._lock:
            return self._db.execute(sql, values).fetchall()

    def write(self, *statements: tuple[str, _Values]) -> int:
        """All of them or none; returns the row id of the last insert."""
        with self._lock, self._transaction():
            for sql, values in statements:
                row = self._db.execute(sql, values).lastrowid
        return row or 0

    def write_many(self, sql: str, many: Iterable[_Values]) -> None:
        with self._lock, self._transaction():
            self._db.executemany(sql, many)

    def close(self) -> None:
        with self._lock:
            self._db.close()

    @contextlib.contextmanager
    def _transaction(self) -> Any:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            self._db.execute("ROLLBACK")
            raise


def _open(path: Path, schema: str) -> sqlite3.Connection:
    db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
    try:
        check_version(db, path)
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=NORMAL")
        db.executescript(schema)
        db.execute(f"PRAGMA user_version = {VERSION}")
    except BaseException:
        db.close()
        raise
    return db
