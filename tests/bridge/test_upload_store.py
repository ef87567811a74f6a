"""What counts of an upload is what was verified, whoever dies or is overtaken in between."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from bridge import upload_store
from bridge.upload_store import OffsetMismatch, Progress, UploadStore
from bridgehead.errors import NotFoundError, UsageError, VerificationError

PATH = "run/model"
SIZE = 1000
OLD_TABLE = """
CREATE TABLE uploads(id INTEGER PRIMARY KEY AUTOINCREMENT, path TEXT NOT NULL, generation TEXT NOT NULL,
    base INTEGER NOT NULL, length INTEGER, digest BLOB, temp TEXT NOT NULL DEFAULT '',
    complete INTEGER NOT NULL DEFAULT 0, UNIQUE(path, generation));
INSERT INTO uploads(path, generation, base, length, temp) VALUES('run/model', '1', 0, 1000, '.tmp-old');
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    return tmp_path


@pytest.fixture
def store(root: Path) -> Iterator[UploadStore]:
    with opened(root) as store:
        yield store


@contextlib.contextmanager
def opened(root: Path) -> Iterator[UploadStore]:
    store = UploadStore(root / "uploads", root / "in")
    try:
        yield store
    finally:
        store.close()


def add(store: UploadStore, offset: int, data: bytes, *, last: bool = False) -> Progress:
    part = store.begin(PATH, "1", offset, last=last)
    try:
        part.write(data)
        return part.commit()
    finally:
        part.drop()


def temp_of(root: Path) -> Path:
    (temp,) = (root / "in/run").glob(".tmp-*")
    return temp


def test_what_a_killed_bridge_had_not_verified_is_cut_when_the_upload_is_opened_again(
    store: UploadStore, root: Path
) -> None:
    store.open(PATH, "1", SIZE, None)
    add(store, 0, b"verified")
    store.begin(PATH, "1", 8, last=False).write(b"arrived, and then the process was killed")
    assert temp_of(root).stat().st_size > 8
    with opened(root) as after:
        assert after.progress(PATH, "1").offset == 8
        assert after.open(PATH, "1", SIZE, None).offset == 8
    assert temp_of(root).read_bytes() == b"verified"


def test_a_part_begins_where_the_verified_bytes_end(store: UploadStore, root: Path) -> None:
    store.open(PATH, "1", SIZE, None)
    add(store, 0, b"verified")
    store.begin(PATH, "1", 8, last=False).write(b"arrived, and then the process was killed")
    with opened(root) as after:
        add(after, 8, b" too")
    assert temp_of(root).read_bytes() == b"verified too"


def test_bytes_lost_in_a_power_cut_do_not_count_and_what_replaces_them_neither_until_verified(
    store: UploadStore, root: Path
) -> None:
    store.open(PATH, "1", SIZE, None)
    add(store, 0, b"verified")
    os.truncate(temp_of(root), 3)
    with pytest.raises(OffsetMismatch):
        store.begin(PATH, "1", 8, last=False)
    store.begin(PATH, "1", 3, last=False).write(b"not verified")
    with opened(root) as after:
        assert after.progress(PATH, "1").offset == 3


def test_a_dropped_part_leaves_the_verified_bytes(store: UploadStore, root: Path) -> None:
    store.open(PATH, "1", SIZE, None)
    add(store, 0, b"verified")
    part = store.begin(PATH, "1", 8, last=False)
    part.write(b"damaged")
    part.drop()
    part.drop()
    assert temp_of(root).read_bytes() == b"verified"


def test_the_newest_part_overtakes_the_one_before(store: UploadStore, root: Path) -> None:
    store.open(PATH, "1", SIZE, None)
    slow = store.begin(PATH, "1", 0, last=False)
    slow.write(b"slow and long")
    fast = store.begin(PATH, "1", 0, last=False)
    for late in (lambda: slow.write(b"late"), slow.commit):
        with pytest.raises(OffsetMismatch):
            late()
    fast.write(b"fast")
    slow.drop()
    assert fast.commit() == Progress(4, complete=False)
    with pytest.raises(OffsetMismatch) as refused:
        slow.write(b"later still")
    assert refused.value.progress.offset == 4
    assert temp_of(root).read_bytes() == b"fast"


@pytest.mark.parametrize("how", ["forgotten", "another file", "opened again"])
def test_a_part_of_an_upload_that_is_no_more_writes_nothing(store: UploadStore, root: Path, how: str) -> None:
    store.open(PATH, "1", SIZE, None)
    part = store.begin(PATH, "1", 0, last=False)
    part.write(b"first")
    if how == "forgotten":
        store.forget(PATH)
    else:
        store.open(PATH, "1", SIZE + 1 if how == "another file" else SIZE, None)
    with pytest.raises(NotFoundError if how == "forgotten" else OffsetMismatch):
        part.write(b"late")
    part.drop()
    assert all(path.stat().st_size == 0 for path in (root / "in/run").iterdir())


def test_a_late_opening_of_an_old_generation_does_not_disturb_the_new_one(store: UploadStore) -> None:
    store.open(PATH, "0", SIZE, None)
    store.open(PATH, "1", SIZE, None)
    part = store.begin(PATH, "1", 0, last=False)
    part.write(b"new")
    with pytest.raises(upload_store.SupersededError):
        store.open(PATH, "0", SIZE, None)
    assert part.commit().offset == 3


def test_a_full_disk_leaves_the_verified_bytes(store: UploadStore, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store.open(PATH, "1", SIZE, None)
    add(store, 0, b"verified")
    part = store.begin(PATH, "1", 8, last=False)
    part.write(b"fits")
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full_after(os.write, 3))
        with pytest.raises(OSError, match="full"):
            part.write(b"does not fit")
    part.drop()
    assert (store.progress(PATH, "1").offset, temp_of(root).read_bytes()) == (8, b"verified")


def full_after(write: object, room: int) -> object:
    def full(fd: int, data: memoryview) -> int:
        nonlocal room
        if not room:
            raise OSError(errno.ENOSPC, "full")
        count, room = write(fd, data[:room]), 0  # type: ignore[operator]
        return int(count)

    return full


def test_more_than_was_announced_is_not_written(store: UploadStore, root: Path) -> None:
    store.open(PATH, "1", 5, None)
    part = store.begin(PATH, "1", 0, last=True)
    part.write(b"1234")
    with pytest.raises(UsageError):
        part.write(b"56")
    assert temp_of(root).read_bytes() == b"1234"


def test_a_whole_with_a_wrong_hash_begins_at_nothing(store: UploadStore, root: Path) -> None:
    store.open(PATH, "1", 8, hashlib.sha256(b"another").digest())
    add(store, 0, b"1234")
    with pytest.raises(VerificationError):
        add(store, 4, b"5678", last=True)
    assert store.progress(PATH, "1").offset == 0
    with opened(root) as after:
        assert after.progress(PATH, "1").offset == 0
    assert list((root / "in/run").iterdir()) == []


def test_a_large_part_is_written_in_order(store: UploadStore, root: Path) -> None:
    piece = os.urandom(3 * 2**20 + 1)  # across what is handed to the disk at a time
    store.open(PATH, "1", 8 * len(piece), hashlib.sha256(piece * 8).digest())
    part = store.begin(PATH, "1", 0, last=True)
    for _ in range(8):
        part.write(memoryview(bytearray(piece)))
    assert part.commit().complete
    assert (root / "in/run/model").read_bytes() == piece * 8


def test_a_growing_file_shows_nothing_before_it_is_verified(store: UploadStore, root: Path) -> None:
    store.open(PATH, "1", None, None)
    part = store.begin(PATH, "1", 0, last=False)
    lent = bytearray(b"line\n")
    part.write(memoryview(lent))
    lent[:] = b"next\n"  # a piece is only lent
    part.write(memoryview(lent))
    assert not (root / "in/run/model").exists()
    part.commit()
    assert (root / "in/run/model").read_bytes() == b"line\nnext\n"


def test_an_unfinished_upload_of_an_earlier_bridge_is_sent_again(root: Path) -> None:
    with contextlib.closing(sqlite3.connect(root / "uploads")) as db:
        db.executescript(OLD_TABLE)
    (root / "in/run").mkdir()
    (root / "in/run/.tmp-old").write_bytes(b"from an earlier bridge")
    with opened(root) as store:
        assert store.progress(PATH, "1").offset == 0
        add(store, 0, b"anew")
    assert (root / "in/run/.tmp-old").read_bytes() == b"anew"
