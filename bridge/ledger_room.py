"""What the laptop had no room for, as the bridge last counted it. Functions of one open transaction each."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from dataclasses import astuple, dataclass
from typing import Final

SCHEMA: Final = (
    "CREATE TABLE IF NOT EXISTS no_room (path TEXT PRIMARY KEY, wanted_bytes INTEGER NOT NULL, times INTEGER NOT NULL,"
    " since REAL NOT NULL, last REAL NOT NULL) WITHOUT ROWID",
)


@dataclass(frozen=True)
class Shortage:
    """`path` below in/: `<run>/<file>`, or `<run>/` for a batch of small files. Times in seconds since 1970."""

    path: str
    wanted_bytes: int
    times: int  # how often it was refused
    since: float
    last: float

    @property
    def run_id(self) -> str:
        return self.path.partition("/")[0]


def read(db: sqlite3.Connection) -> list[Shortage]:
    return [Shortage(*row) for row in db.execute("SELECT * FROM no_room ORDER BY path")]


def write(db: sqlite3.Connection, items: Iterable[Shortage]) -> None:
    db.execute("DELETE FROM no_room")
    db.executemany("INSERT INTO no_room VALUES (?, ?, ?, ?, ?)", [astuple(item) for item in items])
