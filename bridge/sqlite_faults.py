"""What SQLite could not do: a file is damaged, which is for good, or a disk is full or away just now."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from bridgehead.errors import BridgeDownError

# https://www.sqlite.org/rescode.html; an extended code holds the primary one in its low byte.
_PASSING = frozenset(
    {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_PERM,
    }
)


def is_passing(error: sqlite3.Error) -> bool:
    """Whether the file itself may be whole: even a reader needs room for its share of the write-ahead log."""
    return (getattr(error, "sqlite_errorcode", 0) & 0xFF) in _PASSING


def means_full(error: sqlite3.Error) -> bool:
    """Whether there was no room for it: on a full disk SQLite also speaks of an input or output error."""
    return (getattr(error, "sqlite_errorcode", 0) & 0xFF) in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)


def not_now(path: Path, error: sqlite3.Error) -> BridgeDownError:
    return BridgeDownError(
        f"{path.name} can't be opened just now: {error}",
        hint=f"make room on the disk of {path.parent.name}/ and see that you may write there; nothing in it is lost",
    )
