"""Log lines: hostile bytes made fit to show, the tail of files of any size, and the ring's bounds."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridgehead import names
from control_panel.log_ring import LogRing
from control_panel.log_text import FIRST_BYTES, READ_MAX_BYTES, LogTail, Reader, clean, plain
from control_panel.shapes import LINE_MAX, Level, LogLine

NOW = 1000.0


def _texts(lines: list[LogLine]) -> list[str]:
    return [line.text for line in lines]


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        (b"\x1b[31mred\x1b[0m", "red"),
        (b"\x1b]0;title\x07text", "text"),
        (b"\x1b]8;;http://evil\x1b\\link\x1b]8;;\x1b\\", "link"),
        (b" 10%|#   |\r 50%|##  |\r100%|####|\r", "100%|####|"),
        (b"a\x00b\x07c", "a\\x00b\\x07c"),
        (b"a\tb", "a    b"),
        ("user\u202egnp.exe".encode(), "user\\u202egnp.exe"),
        ("a\u2066b\u200fc\ufeff".encode(), "a\\u2066b\\u200fc\\ufeff"),
        (b"\xff\xfe", "\ufffd\ufffd"),
        ("日本語 ✔".encode(), "日本語 ✔"),
        (b"", ""),
    ],
)
def test_a_line_is_shown_as_text_whatever_it_holds(raw: bytes, shown: str) -> None:
    assert clean(raw) == shown


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200) | st.text(max_size=200).map(lambda text: text.encode(errors="replace")))
def test_no_bytes_make_a_line_long_or_able_to_act(raw: bytes) -> None:
    text = clean(raw * 30)
    assert len(text) <= LINE_MAX
    allowed = {"\u200b", "\u200c", "\u200d", "\u00ad"}  # joiners that scripts and emoji need
    bad = [char for char in text if unicodedata.category(char) in ("Cc", "Cs", "Zl", "Zp") and char not in allowed]
    assert not bad


def test_a_pairing_code_in_a_log_is_not_passed_on() -> None:
    code = "bh1." + "eyJrZXkiOiJzZWNyZXQi" * 5
    assert clean(f"PAIRING = {code!r}".encode()) == "PAIRING = 'bh1.(hidden)'"
    assert plain(f"run failed: {code}") == "run failed: bh1.(hidden)"


def test_a_traceback_is_an_error_from_its_first_line_to_its_last() -> None:
    text = (
        "ok\nTraceback (most recent call last):\n  File 'a.py'\n    x()\nValueError: no\nok\nUserWarning: hm\nERROR: x"
    )
    levels = [line.level for line in Reader("r").lines(text.encode().split(b"\n"), "vm", NOW)]
    assert levels == [Level.INFO, *[Level.ERROR] * 4, Level.INFO, Level.WARN, Level.ERROR]


def test_a_traceback_behind_the_mark_of_a_rank_is_one_too() -> None:
    text = (
        "[rank0]: Traceback (most recent call last):\n[rank0]:   File 'a.py'\n[rank0]:     x()\n"
        "[rank0]: torch.OutOfMemoryError: CUDA is full\n[rank0]: bye"
    )
    levels = [line.level for line in Reader("r").lines(text.encode().split(b"\n"), "vm", NOW)]
    assert levels == [*[Level.ERROR] * 4, Level.INFO]


@pytest.mark.parametrize(
    ("line", "level"),
    [
        ("12:01 trainer RuntimeError: no such file", Level.ERROR),
        ("main.c:3:5: warning: unused", Level.WARN),
        ("FutureWarning: it goes", Level.WARN),
        ("Validation Error: 0.031", Level.INFO),
        ("no errors found, 0 warnings", Level.INFO),
        ("Error rate 3 %", Level.INFO),
    ],
)
def test_a_line_is_marked_by_its_text(line: str, level: Level) -> None:
    assert Reader("r").level(line) is level


def test_the_tail_brings_new_whole_lines_once(tmp_path: Path) -> None:
    log = tmp_path / names.LOG
    tail = LogTail(log, "r")
    assert tail.look("vm", NOW) == []
    log.write_bytes(b"one\ntwo\nhal")
    assert _texts(tail.look("vm", NOW)) == ["one", "two"] and tail.bar == "hal"
    assert tail.look("vm", NOW) == []
    with log.open("ab") as handle:
        handle.write(b"f\nthree\n")
    assert _texts(tail.look("vm", NOW)) == ["half", "three"] and tail.bar == ""


def test_a_progress_bar_moves_without_a_line_for_each_state(tmp_path: Path) -> None:
    log = tmp_path / names.LOG
    tail = LogTail(log, "r")
    for number in range(5):
        with log.open("ab") as handle:
            handle.write(f"\r{number * 20}%".encode())
        assert tail.look("vm", NOW) == [] and tail.bar == f"{number * 20}%"
    with log.open("ab") as handle:
        handle.write(b"\r100%\ndone\n")
    assert _texts(tail.look("vm", NOW)) == ["100%", "done"]


def test_a_huge_log_opens_at_its_end_without_being_read(tmp_path: Path) -> None:
    log = tmp_path / names.LOG
    with log.open("wb") as handle:
        handle.truncate(2**30)  # a gigabyte with no data in it
        handle.seek(0, 2)
        handle.write(b"\nlast but one\nlast\n")
    tail = LogTail(log, "r")
    lines = tail.look("vm", NOW)
    assert _texts(lines)[-2:] == ["last but one", "last"] and lines[0].level is Level.NOTE
    assert tail.size_bytes > 2**30 and len(lines) <= 4


def test_a_log_that_gets_ahead_is_taken_up_at_its_end_and_the_gap_is_told(tmp_path: Path) -> None:
    log = tmp_path / names.LOG
    log.write_bytes(b"start\n")
    tail = LogTail(log, "r")
    tail.look("vm", NOW)
    with log.open("ab") as handle:
        handle.write(b"x" * 79 + b"\n" + b"y" * 79 + b"\n" * 1)
        handle.write((b"z" * 79 + b"\n") * (2 * READ_MAX_BYTES // 80))
    lines = tail.look("vm", NOW)
    assert lines[0].level is Level.NOTE and "bytes are not shown" in lines[0].text
    assert set(_texts(lines)[1:]) == {"z" * 79} and len(lines) <= READ_MAX_BYTES // 80 + 1
    assert tail.look("vm", NOW) == []


def test_what_was_there_before_the_first_look_has_no_time_and_what_comes_after_has(tmp_path: Path) -> None:
    log = tmp_path / names.LOG
    log.write_bytes(b"old\n")
    tail = LogTail(log, "r")
    assert [line.t for line in tail.look("vm", NOW)] == [0.0]
    with log.open("ab") as handle:
        handle.write(b"new\n")
    assert [line.t for line in tail.look("vm", NOW + 1)] == [NOW + 1]
    late = LogTail(tmp_path / "late", "r")
    assert late.look("vm", NOW) == []
    (tmp_path / "late").write_bytes(b"begun since\n")
    assert [line.t for line in late.look("vm", NOW + 2)] == [NOW + 2]


def _unshown(lines: list[LogLine]) -> int:
    notes = [line.text for line in lines if line.level is Level.NOTE]
    return sum(int(text.split()[1].replace(",", "")) for text in notes)


@pytest.mark.parametrize("length", [7, 1000, 3 * READ_MAX_BYTES])
def test_every_byte_is_shown_or_counted_as_not_shown(tmp_path: Path, length: int) -> None:
    log = tmp_path / names.LOG
    tail = LogTail(log, "r")
    tail.look("vm", NOW)
    text = (b"x" * length + b"\n") * (3 * READ_MAX_BYTES // length + 1) + b"a\nb\n"
    log.write_bytes(b"begun")
    assert tail.look("vm", NOW) == []
    log.write_bytes(b"begun" + text)
    lines = tail.look("vm", NOW)
    shown = sum(len(line.text) + 1 for line in lines if line.level is not Level.NOTE)
    assert _texts(lines)[-2:] == ["a", "b"] and shown + _unshown(lines) == len(text) + len("begun")


def test_the_rest_of_a_cut_line_that_goes_on_and_on_is_told_of_once_it_ends(tmp_path: Path) -> None:
    log = tmp_path / names.LOG
    log.write_bytes(b"x" * 2 * FIRST_BYTES)
    tail = LogTail(log, "r")
    notes = tail.look("vm", NOW)
    for _ in range(4):
        with log.open("ab") as handle:
            handle.write(b"y" * 100)
        assert tail.look("vm", NOW) == []
    with log.open("ab") as handle:
        handle.write(b"\nwhole\n")
    lines = tail.look("vm", NOW)
    assert _texts(lines)[-1] == "whole" and len(notes) == 1
    assert _unshown([*notes, *lines]) == 2 * FIRST_BYTES + 401


def test_a_first_look_begins_at_a_whole_line(tmp_path: Path) -> None:
    log = tmp_path / names.LOG
    log.write_bytes(b"".join(b"line %07d\n" % number for number in range(FIRST_BYTES // 10)))
    lines = LogTail(log, "r").look("vm", NOW)
    assert lines[0].level is Level.NOTE and all(len(line.text) == 12 for line in lines[1:])


def test_after_a_rotation_nothing_is_lost_and_nothing_comes_twice(tmp_path: Path) -> None:
    log = tmp_path / names.LOG
    log.write_bytes(b"one\ntwo\n")
    tail = LogTail(log, "r")
    assert _texts(tail.look("vm", NOW)) == ["one", "two"]
    with log.open("ab") as handle:
        handle.write(b"three\n")
    log.rename(tmp_path / names.LOG_BEFORE)
    log.write_bytes(b"--- this log passed 1 MiB\nfour\n")
    assert _texts(tail.look("vm", NOW)) == ["three", "--- this log passed 1 MiB", "four"]


def test_a_log_that_goes_on_as_a_copy_of_itself_comes_once(tmp_path: Path) -> None:
    log = tmp_path / names.LOG
    log.write_bytes(b"one\n")
    tail = LogTail(log, "r")
    tail.look("vm", NOW)
    (tmp_path / "copy").write_bytes(b"one\ntwo\n")
    (tmp_path / "copy").rename(log)
    assert _texts(tail.look("vm", NOW)) == ["two"]


def test_a_shorter_file_in_its_place_is_read_from_its_beginning(tmp_path: Path) -> None:
    log = tmp_path / names.LOG
    log.write_bytes(b"one\ntwo\n")
    tail = LogTail(log, "r")
    tail.look("vm", NOW)
    log.unlink()
    log.write_bytes(b"new\n")
    assert _texts(tail.look("vm", NOW)) == ["new"]


def test_the_ring_keeps_its_bounds_and_its_count() -> None:
    ring = LogRing(10)
    for number in range(100):
        ring.extend(number + 1, [LogLine("r", str(number))])
    lines, drop = ring.since(0, 1000, 10**6)
    assert [line.n for line in lines] == list(range(91, 101)) and ring.next_n == 101
    lines, drop = ring.since(98, 1, 10**6)
    assert (_texts(lines), drop) == (["99"], 1)
    assert ring.since(100, 5, 10**6) == ([], 0)
