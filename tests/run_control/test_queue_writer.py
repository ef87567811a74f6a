"""Adding lines to queue.txt: whole lines at the end, nothing else touched."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from bridgehead.errors import UsageError
from bridgehead.queue_lines import parse_line
from run_control import queue_writer


def test_lines_go_to_the_end(tmp_path: Path) -> None:
    path = tmp_path / "queue.txt"
    path.write_text("# mine\nrun:a\n")
    queue_writer.append(path, ["run:b", "stop:a"])
    assert path.read_text() == "# mine\nrun:a\nrun:b\nstop:a\n"


def test_a_missing_last_newline_is_added_first(tmp_path: Path) -> None:
    path = tmp_path / "queue.txt"
    path.write_text("run:a")
    queue_writer.append(path, ["run:b"])
    assert path.read_text() == "run:a\nrun:b\n"


def test_a_missing_file_is_made(tmp_path: Path) -> None:
    queue_writer.append(tmp_path / "queue.txt", ["run:a"])
    assert (tmp_path / "queue.txt").read_text() == "run:a\n"


def test_many_writers_at_once_lose_and_mix_no_line(tmp_path: Path) -> None:
    path = tmp_path / "queue.txt"
    wanted = [[f"run:stage-{writer} n={number}" for number in range(50)] for writer in range(8)]

    def write(lines: list[str]) -> None:
        for line in lines:
            queue_writer.append(path, [line])

    threads = [threading.Thread(target=write, args=(lines,)) for lines in wanted]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=100)
    written = [line for line in path.read_text().splitlines() if line]
    assert sorted(written) == sorted(line for lines in wanted for line in lines)


@pytest.mark.parametrize("line", ["run:a\nrun:b", "", "# only a comment", "jump:a"])
def test_what_is_no_single_queue_line_is_refused(tmp_path: Path, line: str) -> None:
    with pytest.raises(UsageError):
        queue_writer.append(tmp_path / "queue.txt", [line])
    assert not (tmp_path / "queue.txt").exists()


def test_a_run_line_reads_back() -> None:
    parsed = parse_line(queue_writer.run_line("pretrain", ["epochs=3"], "vm-1"))
    assert parsed is not None
    assert (parsed.argument, parsed.overrides, parsed.vm) == ("pretrain", {"epochs": 3}, "vm-1")


@pytest.mark.parametrize("words", [["name=a b"], ["epochs"], ["=3"], [""]])
def test_an_override_that_fits_no_line_is_refused(words: list[str]) -> None:
    with pytest.raises(UsageError):
        queue_writer.run_line("pretrain", words)


def test_a_shell_line_carries_any_text() -> None:
    text = "echo 'ünï' | tr a b\nexit 3"
    parsed = parse_line(queue_writer.shell_line(text))
    assert parsed is not None and parsed.argument == text


def test_an_empty_shell_command_is_refused() -> None:
    with pytest.raises(UsageError):
        queue_writer.shell_line("  ")
