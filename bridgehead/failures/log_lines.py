"""A log as lines to look through: any size, any bytes, in bounded memory and time."""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final

from bridgehead.errors import UsageError
from bridgehead.failures.masks import source_lines

HEAD_BYTES: Final = 512 * 2**10
TAIL_BYTES: Final = 2**20
BLOCK_BYTES: Final = 2**20
MIDDLE_LINES: Final = 4000  # kept of what lies between head and tail
LINE_CHARS: Final = 2000
# What nearly every failure's line has in it: between head and tail of a huge log only such lines are looked at.
_TELLING: Final = (b"rror", b"xception", b"illed", b"emory", b"ANCEL", b"No space", b"imed out", b"Xid", b"signal")
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]{0,200}(?:\x07|\x1b\\)|[@-Z\\-_])")
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]+")


@dataclass(frozen=True)
class LogText:
    """`lines`: (offset in bytes, text) in the order of the file. `unread_bytes`: of the middle, when time was up."""

    lines: list[tuple[int, str]]
    size_bytes: int = 0
    unread_bytes: int = 0
    head: list[str] = field(default_factory=list)
    tail: list[str] = field(default_factory=list)


def read(path: Path, *, limit_s: float = 10.0, clock: Callable[[], float] = time.monotonic) -> LogText:
    """Head and tail whole, and of what lies between them the telling lines, block by block, for `limit_s` seconds.

    Raises UsageError for what is no plain file, OSError for one that can't be read.
    """
    if not stat.S_ISREG(os.stat(path).st_mode):  # a FIFO would hang us, a device has no end
        raise UsageError(f"{path} is not a file", hint="name a log file")
    deadline = clock() + limit_s
    with path.open("rb") as handle:
        size = os.fstat(handle.fileno()).st_size
        if size <= HEAD_BYTES + TAIL_BYTES:
            return from_bytes(handle.read(HEAD_BYTES + TAIL_BYTES))
        head = handle.read(HEAD_BYTES)
        middle, unread = _middle(handle, HEAD_BYTES, size - TAIL_BYTES, lambda: clock() > deadline)
        handle.seek(size - TAIL_BYTES)
        tail = handle.read(TAIL_BYTES)
    wide = _is_wide(head)
    first, last = list(_lines(head, 0, wide=wide)), list(_lines(tail, size - TAIL_BYTES, wide=wide))
    return LogText([*first, *middle, *last], size, unread, *_ends(first, last))


def from_bytes(data: bytes) -> LogText:
    lines = list(_lines(data, 0, wide=_is_wide(data)))
    return LogText(lines, len(data), 0, *_ends(lines, lines))


def _ends(first: list[tuple[int, str]], last: list[tuple[int, str]]) -> tuple[list[str], list[str]]:
    """What a person is shown: 20 lines of the beginning and 40 of the end."""
    return [text for _, text in first[:20]], [text for _, text in last[-40:]]


def _middle(handle: BinaryIO, start: int, end: int, late: Callable[[], bool]) -> tuple[list[tuple[int, str]], int]:
    kept: list[tuple[int, str]] = []
    at = start
    while at < end and not late() and len(kept) < MIDDLE_LINES:
        block = handle.read(min(BLOCK_BYTES, end - at))
        if not block:
            break
        if any(word in block for word in _TELLING):
            lines = list(_lines(block, at, wide=False))
            source = source_lines(lines)  # while the frames above are still there
            for number, (offset, line) in enumerate(lines):
                telling = number not in source and any(word.decode() in line for word in _TELLING)
                if telling and len(kept) < MIDDLE_LINES:
                    kept.append((offset, line))
        at += len(block)
    return kept, max(0, end - at)


def _is_wide(data: bytes) -> bool:
    """Whether it is UTF-16, as PowerShell's > writes."""
    return data[:2] in (b"\xff\xfe", b"\xfe\xff")


def _lines(data: bytes, offset: int, *, wide: bool) -> Iterator[tuple[int, str]]:
    """A carriage return ends a line too: progress bars glue what follows to themselves."""
    if wide:
        data = data.decode("utf-16", errors="replace").encode("utf-8", errors="replace")
    at = 0
    for piece in re.split(rb"\r\n|\n|\r", data):
        text = clean(piece)
        if text:
            yield offset + at, text
        at += len(piece) + 1


def clean(piece: bytes) -> str:
    """One line without colours and control characters, its middle cut out when it is long."""
    if len(piece) > 4 * LINE_CHARS:
        piece = piece[: 3 * LINE_CHARS] + piece[-LINE_CHARS:]
    text = _UNPRINTABLE.sub(" ", _ANSI.sub("", piece.decode("utf-8", errors="replace"))).rstrip()
    if len(text) > LINE_CHARS:
        text = text[: LINE_CHARS - 803] + " … " + text[-800:]
    return text
