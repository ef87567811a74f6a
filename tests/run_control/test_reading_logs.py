"""Logs as they are shown: the end of a big file, progress bars, binary, escapes, and following to the end."""

from __future__ import annotations

import threading
from pathlib import Path

from run_control import logs


def test_the_tail_of_a_big_log_is_read_from_its_end(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with path.open("wb") as handle:
        handle.truncate(2 * 2**30)  # a hole: reading all of it would take long and 2 GiB
        handle.seek(0, 2)
        handle.write(b"\none\ntwo\n")
    lines, offset = logs.tail(path, 2)
    assert lines == ["one", "two"] and offset == path.stat().st_size


def test_a_missing_log_has_no_lines(tmp_path: Path) -> None:
    assert logs.tail(tmp_path / "log", 5) == ([], 0)


def test_no_lines_asked_for_gives_none(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("a\nb\n")
    assert logs.tail(tmp_path / "log", 0) == ([], 4)


def test_an_unfinished_line_is_shown_or_left_to_the_follower(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("a\nb\nhal")
    assert logs.tail(tmp_path / "log", 2) == (["b", "hal"], 7)
    assert logs.tail(tmp_path / "log", 2, complete_only=True) == (["a", "b"], 4)


def test_a_progress_bar_shows_its_last_state() -> None:
    bar = b"".join(b"\r%3d%%|####    |" % percent for percent in range(101))
    assert logs.shown(bar) == "100%|####    |"


def test_a_bar_of_an_hour_is_one_short_line(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"start\n" + b"\r  5% of it" * 1_500_000 + b"\r100% of it\n")
    assert logs.tail(tmp_path / "log", 1)[0] == ["100% of it"]


def test_escapes_and_control_characters_do_nothing_to_a_terminal() -> None:
    hostile = b"\x1b[2J\x1b]0;title\x07\x1b[31mred\x1b[0m \x07bell \x00nul \x9b31m"
    text = logs.shown(hostile)
    assert "red" in text and all(character.isprintable() for character in text)


def test_binary_is_shown_as_text() -> None:
    assert all(character.isprintable() for character in logs.shown(bytes(range(256))))


def test_a_line_of_a_million_characters_is_cut() -> None:
    assert len(logs.shown(b"x" * 1_000_000)) < 2100


def test_following_gives_every_line_once_until_the_run_has_ended(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"one\ntw")
    ended = threading.Event()
    seen: list[str] = []
    second = threading.Event()

    def read() -> None:
        for line in logs.follow(path, 0, ended.is_set, poll_s=0.005):
            seen.append(line)
            if line == "two":
                second.set()

    reader = threading.Thread(target=read)
    reader.start()
    with path.open("ab") as handle:
        handle.write(b"o\n")
        handle.flush()
        assert second.wait(100)
        handle.write(b"last without newline")
    ended.set()
    reader.join(timeout=100)
    assert seen == ["one", "two", "last without newline"]


def test_following_a_log_that_is_not_there_yet_waits_for_it(tmp_path: Path) -> None:
    ended = threading.Event()
    lines = logs.follow(tmp_path / "log", 0, ended.is_set, poll_s=0.005)
    timer = threading.Timer(0.05, lambda: ((tmp_path / "log").write_text("here\n"), ended.set()))
    timer.start()
    assert list(lines) == ["here"]


def _followed(path: Path, steps: list[object]) -> tuple[list[str], list[str]]:
    """(lines, what the bar showed) of following `path` while each step is done between two looks at it."""
    left = list(steps)
    bars: list[str] = []

    def ended() -> bool:
        if left:
            left.pop(0)()  # type: ignore[operator]
        return not left

    return list(logs.follow(path, 0, ended, poll_s=0.0, on_bar=bars.append)), bars


def _added(path: Path, data: bytes) -> object:
    def add() -> None:
        with path.open("ab") as handle:
            handle.write(data)

    return add


def test_a_bar_moves_while_its_line_is_not_finished(tmp_path: Path) -> None:
    path = tmp_path / "log"
    steps = [_added(path, b"\r 1%"), _added(path, b"\r 2"), _added(path, b"%"), _added(path, b"\r 3%\ndone\n"), int]
    assert _followed(path, steps) == ([" 3%", "done"], [" 1%", " 2", " 2%", ""])


def test_a_character_that_arrives_in_two_halves_is_never_shown_broken(tmp_path: Path) -> None:
    path = tmp_path / "log"
    bar = "\r█▌ 12% ∑".encode()
    lines, bars = _followed(
        path, [_added(path, bar[at : at + 1]) for at in range(len(bar))] + [_added(path, b"\n"), int]
    )
    assert lines == ["█▌ 12% ∑"]
    assert not any("�" in shown for shown in bars) and bars[-2] == "█▌ 12% ∑"


def test_a_carriage_return_and_a_newline_in_two_pieces_are_one_end_of_a_line(tmp_path: Path) -> None:
    path = tmp_path / "log"
    assert _followed(path, [_added(path, b"one\r"), _added(path, b"\ntwo\r\n"), int])[0] == ["one", "two"]


def test_following_goes_on_across_a_rotation(tmp_path: Path) -> None:
    path = tmp_path / "log"

    def rotate() -> None:
        path.rename(tmp_path / "log.1")
        path.write_bytes(b"--- rotated\n")

    steps = [_added(path, b"one\n"), _added(path, b"two\n"), rotate, _added(path, b"three\n"), int]
    assert _followed(path, steps)[0] == ["one", "two", "--- rotated", "three"]


def test_the_tail_of_a_log_that_was_just_rotated_reaches_back(tmp_path: Path) -> None:
    (tmp_path / "log.1").write_bytes(b"one\ntwo\n")
    (tmp_path / "log").write_bytes(b"--- rotated\nthree\n")
    assert logs.tail(tmp_path / "log", 3) == (["two", "--- rotated", "three"], 18)
