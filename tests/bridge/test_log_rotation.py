"""A runaway log: the laptop keeps the newest of it, says so, and the VM's offsets never notice."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from bridge import log_rotation
from bridge.upload_store import Progress, UploadStore

PATH = "run/log"
CAP = 500
LINE = b"0123456789" * 9 + b"012345678\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    return tmp_path


@contextlib.contextmanager
def opened(root: Path) -> Iterator[UploadStore]:
    store = UploadStore(root / "uploads", root / "in", lambda: CAP)
    try:
        yield store
    finally:
        store.close()


def add(store: UploadStore, offset: int, data: bytes, path: str = PATH) -> Progress:
    part = store.begin(path, "1", offset, last=False)
    try:
        part.write(data)
        return part.commit()
    finally:
        part.drop()


def fill(store: UploadStore, lines: int) -> None:
    store.open(PATH, "1", None, None)
    for number in range(lines):
        add(store, number * len(LINE), LINE)


def test_beyond_the_cap_it_begins_anew_and_says_so(root: Path) -> None:
    with opened(root) as store:
        fill(store, 8)
        assert store.progress(PATH, "1").offset == 8 * len(LINE)
    assert (root / "in/run/log.1").read_bytes() == 6 * LINE
    first, rest = (root / "in/run/log").read_bytes().split(b"\n", 1)
    assert first.startswith(b"--- this log passed") and rest == 2 * LINE


def test_it_goes_on_and_keeps_the_newest_before(root: Path) -> None:
    with opened(root) as store:
        fill(store, 30)
        kept = (root / "in/run/log.1").read_bytes() + (root / "in/run/log").read_bytes()
        assert store.progress(PATH, "1").offset == 30 * len(LINE)
    assert len(kept) < 4 * CAP


def test_a_line_is_not_cut_in_two(root: Path) -> None:
    with opened(root) as store:
        fill(store, 5)
        add(store, 5 * len(LINE), b"half of ")
        assert not (root / "in/run/log.1").exists()
        add(store, 5 * len(LINE) + 8, b"a line\n")
    assert (root / "in/run/log.1").read_bytes().endswith(b"half of a line\n")


@pytest.mark.parametrize("killed_at", ["before the rename", "before the first line", "after it"])
def test_a_kill_in_between_loses_and_repeats_nothing(
    root: Path, monkeypatch: pytest.MonkeyPatch, killed_at: str
) -> None:
    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with opened(root) as store, monkeypatch.context() as patched:
        fill(store, 5)
        if killed_at == "before the rename":
            patched.setattr(log_rotation.files, "replace", die)
        elif killed_at == "before the first line":
            patched.setattr(log_rotation.os, "fdopen", die)
        else:
            patched.setattr(log_rotation.files, "fsync_folder", die)
        with pytest.raises(KeyboardInterrupt):
            add(store, 5 * len(LINE), LINE)
    with opened(root) as store:
        assert store.progress(PATH, "1").offset == 6 * len(LINE)
        add(store, 6 * len(LINE), LINE)
    assert (root / "in/run/log.1").read_bytes() == 6 * LINE
    assert (root / "in/run/log").read_bytes().endswith(LINE)


def test_a_copy_that_the_owner_removed_after_that_is_not_sent_from_the_beginning(root: Path) -> None:
    with opened(root) as store:
        fill(store, 8)
        (root / "in/run/log").unlink()
        assert store.progress(PATH, "1").offset == 6 * len(LINE)


def test_other_growing_files_are_not_rotated(root: Path) -> None:
    with opened(root) as store:
        store.open("run/progress.jsonl", "1", None, None)
        add(store, 0, LINE * 20, "run/progress.jsonl")
    assert sorted(os.listdir(root / "in/run")) == ["progress.jsonl"]
