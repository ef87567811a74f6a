"""A database on a disk that is full: it is whole, and nobody may be told to move it away or throw it away."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from bridge.ledger import Ledger
from bridge.small_db import SmallDb
from bridge.sqlite_faults import is_passing, means_full
from bridge.upload_store import UploadStore
from bridgehead.errors import BridgeDownError

SCHEMA = "CREATE TABLE IF NOT EXISTS things (name TEXT)"


@pytest.fixture
def full(tmp_path: Path) -> Iterator[Path]:
    """A small disk with one whole database of each kind, and then no byte of room."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if os.getuid() != 0 or shutil.which("mount") is None:
        pytest.skip("only root may mount a small disk")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)], check=True)
    try:
        Ledger(disk / "ledger.sqlite3").close()
        UploadStore(disk / "uploads.sqlite3", disk)._db.close()
        db = SmallDb(disk / "small.sqlite3", SCHEMA)
        db.write(("INSERT INTO things VALUES ('kept')", ()))
        db.close()
        with (disk / "filler").open("wb", buffering=0) as filler, pytest.raises(OSError, match="No space"):
            while True:
                filler.write(bytes(4096))
        yield disk
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


@pytest.mark.parametrize("name", ["ledger", "uploads", "small"])
def test_on_a_full_disk_it_is_not_called_damaged_and_is_whole_afterwards(full: Path, name: str) -> None:
    def reopen() -> Ledger | UploadStore | SmallDb:
        path = full / f"{name}.sqlite3"
        if name == "ledger":
            return Ledger(path)
        return UploadStore(path, full) if name == "uploads" else SmallDb(path, SCHEMA)

    with pytest.raises(BridgeDownError, match="can't be opened just now") as caught:
        reopen()
    assert "make room" in caught.value.hint
    (full / "filler").unlink()
    opened = reopen()
    if isinstance(opened, SmallDb):
        assert [
            row["name"] if isinstance(row, sqlite3.Row) else row[0] for row in opened.rows("SELECT * FROM things", ())
        ]


def test_what_sqlite_says_of_a_full_disk_in_more_detail_is_a_full_disk_too() -> None:
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = sqlite3.SQLITE_IOERR_WRITE  # an extended code: 778, where the plain one is 10
    assert means_full(error)
    error.sqlite_errorcode = sqlite3.SQLITE_BUSY_SNAPSHOT
    assert not means_full(error)


def test_a_damaged_file_is_not_a_passing_fault(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite3"
    path.write_bytes(b"no database" * 1000)
    with pytest.raises(sqlite3.DatabaseError) as caught:
        sqlite3.connect(path).execute("SELECT * FROM sqlite_master").fetchall()
    assert not is_passing(caught.value)
