"""Pages of a log by byte offset, and finding things in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from run_control import log_pages
from run_control.log_pages import Page, first_error, page, search


def _texts(found: Page) -> list[bytes]:
    return [line for _, line in found.lines]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "log"
    path.write_bytes(b"".join(b"line %06d of a log\n" % number for number in range(20_000)))
    return path


def test_pages_forward_hold_every_line_once(log: Path) -> None:
    at, found = 0, []
    while at < log.stat().st_size:
        told = page(log, from_bytes=at)
        assert told.from_bytes == at and len(told.lines) <= log_pages.PAGE_LINES
        found += _texts(told)
        at = told.to_bytes
    assert b"\n".join(found) + b"\n" == log.read_bytes()


def test_pages_backward_hold_every_line_once(log: Path) -> None:
    at, found = log.stat().st_size, []
    while at > 0:
        told = page(log, to_bytes=at)
        assert told.to_bytes == at
        found = _texts(told) + found
        at = told.from_bytes
    assert b"\n".join(found) + b"\n" == log.read_bytes()


def test_each_line_says_where_it_begins(log: Path) -> None:
    data = log.read_bytes()
    for at, line in page(log).lines:
        assert data[at : at + len(line)] == line


def test_a_search_finds_the_next_line_wherever_it_lies(log: Path) -> None:
    first = search(log, "LINE 012345")
    assert first.hit_bytes is not None and (first.hit_bytes, b"line 012345 of a log") in first.lines
    second = search(log, "line 01234", from_bytes=first.hit_bytes + 1)
    assert second.hit_bytes is not None and (second.hit_bytes, b"line 012346 of a log") in second.lines
    none = search(log, "not in there")
    assert (none.hit_bytes, none.lines, none.searched_to) == (None, [], None)


def test_what_lies_across_two_blocks_is_found(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_pages, "_BLOCK_BYTES", 1001)
    for number in range(0, 2000, 37):
        found = search(log, f"line {number:06d} of")
        assert found.hit_bytes == number * 21


def test_a_long_search_stops_and_says_where_to_go_on(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_pages, "SEARCH_BYTES", 100_000)
    found = search(log, "line 015000")
    tries = 1
    while found.searched_to is not None:
        found = search(log, "line 015000", from_bytes=found.searched_to)
        tries += 1
    assert found.hit_bytes == 15_000 * 21 and tries == 4


@pytest.mark.parametrize(
    "text",
    [
        b"Traceback (most recent call last):",
        b"2026-01-01 ERROR: disk",
        b"RuntimeError: CUDA out of memory.",
        b"torch.cuda.OutOfMemoryError: no",
        b"\x1b[31mERROR\x1b[0m red",
        b"\x1b[1m\x1b[31mValueError: red\x1b[0m",
    ],
)
def test_the_first_error_of_a_log(tmp_path: Path, text: bytes) -> None:
    log = tmp_path / "log"
    before = b"mean_error 0.5 errors=0 no Errors yet\n" * 5000
    log.write_bytes(before + text + b"\nlater\nERROR again\n")
    found = first_error(log)
    assert found.hit_bytes == len(before) and (len(before), text) in found.lines
    assert found.from_bytes < found.hit_bytes  # what came before it is on the page


def test_odd_files(tmp_path: Path) -> None:
    assert page(tmp_path / "none") == Page([], 0, 0, 0)
    assert search(tmp_path / "none", "x") == Page([], 0, 0, 0)
    empty = tmp_path / "empty"
    empty.write_bytes(b"")
    assert page(empty) == Page([], 0, 0, 0)
    one = tmp_path / "one"
    one.write_bytes(b"no newline")
    assert _texts(page(one)) == [b"no newline"] and page(one, from_bytes=99).lines == []


def test_a_line_longer_than_a_page_still_moves_on(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"x" * (3 * log_pages.PAGE_BYTES) + b"\nend\n")
    at, looks = 0, 0
    while at < log.stat().st_size:
        told = page(log, from_bytes=at)
        assert told.to_bytes > at
        at, looks = told.to_bytes, looks + 1
    assert looks == 4
    found = search(log, "end")
    assert found.hit_bytes == 3 * log_pages.PAGE_BYTES + 1 and (found.hit_bytes, b"end") in found.lines
