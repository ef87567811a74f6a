"""Atomic files."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from bridgehead import files


def test_an_interrupted_write_leaves_the_old_file_and_no_temp(tmp_path: Path) -> None:
    target = tmp_path / "state.json"
    files.write_atomic(target, b"old")
    with pytest.raises(RuntimeError), files.atomic_writer(target) as handle:
        handle.write(b"half of the ne")
        raise RuntimeError
    assert target.read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["state.json"]


def test_the_mode_is_as_asked(tmp_path: Path) -> None:
    files.write_json(tmp_path / "secret.json", {"a": 1}, mode=0o600)
    assert (tmp_path / "secret.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("content", [None, b"", b"{", b"\xff\xfe"])
def test_a_reader_is_tolerant(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "x.json"
    if content is not None:
        path.write_bytes(content)
    assert files.read_json(path) is None


def test_canonical_json_has_one_form() -> None:
    assert files.canonical_json({"b": 1, "a": "é"}) == b'{"a":"\\u00e9","b":1}'


def test_append_line_adds_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "j"
    for number in range(3):
        files.append_line(path, json.dumps({"n": number}))
    assert [json.loads(line)["n"] for line in path.read_text().splitlines()] == [0, 1, 2]


def test_sweep_takes_only_old_temp_files(tmp_path: Path) -> None:
    (tmp_path / f"{files.TEMP_PREFIX}abc").write_text("x")
    (tmp_path / "keep").write_text("x")
    assert files.sweep_temp_files(tmp_path, older_than_s=3600) == 0
    assert files.sweep_temp_files(tmp_path, older_than_s=-1) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["keep"]


def test_a_write_on_a_full_disk_is_tried_until_there_is_room() -> None:
    answers: list[OSError | str] = [OSError(errno.ENOSPC, "full"), OSError(errno.EDQUOT, "quota"), "written"]
    heard: list[str] = []

    def write() -> str:
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer

    done = files.with_room(write, on_full=lambda: heard.append("full"), pause=lambda _: None)
    assert (done, heard) == ("written", ["full"])


def test_other_trouble_with_a_write_is_not_waited_for() -> None:
    def write() -> None:
        raise OSError(errno.EIO, "sick")

    with pytest.raises(OSError, match="sick"):
        files.with_room(write, on_full=lambda: None, pause=lambda _: None)


def test_a_disk_that_stays_full_is_said_at_last() -> None:
    def write() -> None:
        raise OSError(errno.ENOSPC, "full")

    with pytest.raises(OSError, match="full"):
        files.with_room(write, on_full=lambda: None, pause=lambda _: None)


def scanner_holds(monkeypatch: pytest.MonkeyPatch, tries: int, winerror: int) -> list[int]:
    """As on Windows, where a virus scanner or an indexer has the target open for so many tries."""
    real, left = os.replace, [tries]

    def replace(source: Path, target: Path) -> None:
        if left[0]:
            left[0] -= 1
            error = PermissionError(errno.EACCES, "held")
            error.winerror = winerror  # type: ignore[attr-defined]
            raise error
        real(source, target)

    monkeypatch.setattr(files.os, "replace", replace)
    monkeypatch.setattr(files.time, "sleep", lambda seconds: None)
    return left


@pytest.mark.parametrize("winerror", [5, 32, 33])
def test_a_target_that_a_scanner_holds_is_replaced_once_it_lets_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, winerror: int
) -> None:
    (tmp_path / "new").write_bytes(b"new")
    (tmp_path / "old").write_bytes(b"old")
    scanner_holds(monkeypatch, 5, winerror)
    with monkeypatch.context() as windows:
        windows.setattr(files, "_on_windows", lambda: True)
        files.replace(tmp_path / "new", tmp_path / "old")
    assert (tmp_path / "old").read_bytes() == b"new"


def test_a_target_that_is_never_let_go_is_an_error_and_stays_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "new").write_bytes(b"new")
    (tmp_path / "old").write_bytes(b"old")
    scanner_holds(monkeypatch, 1000, 32)
    monkeypatch.setattr(files, "_on_windows", lambda: True)
    with pytest.raises(PermissionError):
        files.replace(tmp_path / "new", tmp_path / "old")
    assert (tmp_path / "old").read_bytes() == b"old"


def test_elsewhere_a_forbidden_replace_is_told_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = scanner_holds(monkeypatch, 1000, 5)
    with pytest.raises(PermissionError):
        files.replace(tmp_path / "new", tmp_path / "old")
    assert left == [999]
