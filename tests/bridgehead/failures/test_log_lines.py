"""Logs of any size and any bytes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bridgehead.errors import UsageError
from bridgehead.failures import log_lines
from bridgehead.failures.classify import classify
from bridgehead.failures.findings import find
from bridgehead.failures.table import PATTERNS
from bridgehead.names import FailureClass as F

HEAD, TAIL = log_lines.HEAD_BYTES, log_lines.TAIL_BYTES


def _log(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def test_a_first_cause_between_head_and_tail_is_found(tmp_path: Path) -> None:
    filler = (b"all is well " * 20 + b"\n") * (HEAD // 100)
    text = filler + b"RuntimeError: CUDA out of memory. Tried to allocate\n" + (b"quiet " * 30 + b"\n") * (TAIL // 150)
    found = log_lines.read(_log(tmp_path / "log", text))
    assert found.unread_bytes == 0 and classify(found, limit_s=100.0).failure == F.GPU_OOM


def test_when_time_is_up_head_and_tail_are_there_and_the_rest_is_named(tmp_path: Path) -> None:
    ticks = iter(range(0, 10_000, 100))
    path = _log(
        tmp_path / "log", (b"a long line " * 20 + b"\n") * 20_000 + b"OSError: [Errno 28] No space left on device\n"
    )
    found = log_lines.read(path, limit_s=1.0, clock=lambda: float(next(ticks)))
    assert found.unread_bytes == path.stat().st_size - HEAD - TAIL
    assert classify(found, limit_s=100.0).failure == F.DISK_FULL


@pytest.mark.parametrize(
    "data",
    [
        b"", b"\x00" * 5000, os.urandom(200_000), b"\xff\xfe" + "Loss is nan, stopping".encode("utf-16-le"),
        b"x" * 3_000_000,
        b"\x1b]0;evil\x07\x1b[2J" * 2000, b"((((((" * 50_000 + b"\n", b"loss " * 60_000, b"\r" * 100_000,
    ],
    ids=["empty", "zeros", "random", "utf16", "one-long-line", "escapes", "brackets", "words", "returns"],
)  # fmt: skip
def test_hostile_bytes_are_survived(tmp_path: Path, data: bytes) -> None:
    found = log_lines.read(_log(tmp_path / "log", data))
    assert all(len(line) <= log_lines.LINE_CHARS + 10 and "\x1b" not in line for _, line in found.lines)
    assert classify(found).failure in F


def test_letters_among_random_bytes_are_no_evidence() -> None:
    noise = b"\xd9a\xf0. \xe2\x9d eio \xb5\xc4J ENOSPC \xfe\xa1* Killed \x90k\xdd|EIO\xcc"
    assert classify(log_lines.from_bytes(noise * 3)).failure == F.UNKNOWN
    bar = b" 40%|" + b"\xdb" * 60 + b"| 4/10 OSError: [Errno 5] Input/output error"
    assert classify(log_lines.from_bytes(bar)).failure == F.MOUNT_LOST


def test_what_a_progress_bar_glued_to_itself_is_a_line_of_its_own() -> None:
    found = log_lines.from_bytes(b"10%|#\r20%|##\rclient_loop: send disconnect: Broken pipe")
    assert found.lines[-1][1].startswith("client_loop")


def test_a_pipe_or_a_folder_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path):
        with pytest.raises(UsageError):
            log_lines.read(path)


def test_when_time_is_up_the_end_of_the_log_was_looked_at_first() -> None:
    ticks = iter(range(1_000_000))
    text = "".join(f"line {'x' * (number % 977)}\n" for number in range(6000)) + "OSError: No space left on device\n"
    lines = log_lines.from_bytes(text.encode())
    found = find(lines, PATTERNS, limit_s=63.5, clock=lambda: float(next(ticks)))
    assert found.cut_short and found.found[0].pattern.failure == F.DISK_FULL


def test_a_source_line_in_the_middle_of_a_huge_log_is_not_kept(tmp_path: Path) -> None:
    trace = '  File "x.py", line 3, in f\n    raise OSError("No space left on device")\nKeyError: error here\n'
    size = log_lines.HEAD_BYTES + log_lines.TAIL_BYTES
    (tmp_path / "log").write_text("x\n" * (size // 2) + trace + "x\n" * (size // 2))
    kept = [text for _, text in log_lines.read(tmp_path / "log").lines if text != "x"]
    assert kept == ["KeyError: error here"]
