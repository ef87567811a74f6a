"""Any part of a log of any size: a page at an offset, the next place where a text or an error stands.

Offsets are bytes of in/<run>/log as it is on the disk; a page holds whole lines. Nothing reads more than it shows but a
search, and that stops after SEARCH_BYTES and says where to go on.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

PAGE_BYTES: Final = 64 * 1024
PAGE_LINES: Final = 400
SEARCH_BYTES: Final = 4 * 2**30  # of one request
_BLOCK_BYTES: Final = 2**20  # a search lets other threads have a turn after each
_NEEDLE_MAX_BYTES: Final = 1000
_BEFORE_BYTES: Final = 16 * 1024  # at most, shown above what was found
_BEFORE_LINES: Final = 30
_WORDS = ("ERROR", "CRITICAL", "FATAL", "CUDA out of memory", "Segmentation fault")
_TRACEBACK = r"Traceback \(most recent call last\)"
_NAME = r"(?:[A-Za-z_][A-Za-z0-9_.]{0,80})?"  # of an exception, before its Error or Exception
# In one line of clean text.
ERROR: Final = re.compile(rf"{_TRACEBACK}|\b(?:{'|'.join(_WORDS)})\b|^{_NAME}(?:Error|Exception)\b ?[:(]")
# In raw bytes: each begins with fixed text, which is found many times as fast as one pattern with all of them; what has
# to stand before it is looked at where it was found. Escape sequences that paint a word may stand there.
_ANYWHERE = re.compile(rb"")
_APART: Final = re.compile(rb"(?:[^A-Za-z0-9_]|\x1b\[[0-9;]{0,20}m)\Z")
_RAISED: Final = re.compile(rb"[\n\r](?:\x1b\[[0-9;]{0,20}m){0,4}" + _NAME.encode() + rb"\Z")
_SEEKS: Final = (
    (re.compile(_TRACEBACK.encode()), _ANYWHERE),
    *((re.compile(rf"{word}\b".encode()), _APART) for word in _WORDS),
    *((re.compile(rf"{word}\b ?[:(]".encode()), _RAISED) for word in ("Error", "Exception")),
)
_LOOK_BACK: Final = 200  # bytes before a find that decide


_Seek = tuple[re.Pattern[bytes], re.Pattern[bytes]]  # what is looked for, and what has to stand before it


@dataclass(frozen=True)
class Page:
    """Lines as raw bytes, each with the offset at which it begins."""

    lines: list[tuple[int, bytes]]
    from_bytes: int
    to_bytes: int
    size_bytes: int
    hit_bytes: int | None = None  # where the line begins in which something was found
    searched_to: int | None = None  # nothing found so far: go on from here; None: all was searched


def page(path: Path, *, from_bytes: int | None = None, to_bytes: int | None = None) -> Page:
    """The whole lines from an offset on, or those before one; with neither the end. No file: an empty page."""
    try:
        handle = path.open("rb")
    except FileNotFoundError:
        return Page([], 0, 0, 0)
    with handle:
        size = handle.seek(0, 2)
        if from_bytes is None:
            end = size if to_bytes is None else min(max(0, to_bytes), size)
            return _before(handle, end, size)
        return _after(handle, min(max(0, from_bytes), size), size)


def search(path: Path, text: str, *, from_bytes: int = 0) -> Page:
    """The page with the next line at or after `from_bytes` that holds `text`, whatever its case in ASCII."""
    needle = text.encode()[:_NEEDLE_MAX_BYTES]
    return _find(path, ((re.compile(re.escape(needle), re.IGNORECASE), _ANYWHERE),), from_bytes)


def first_error(path: Path, *, from_bytes: int = 0) -> Page:
    """The page with the next line at or after `from_bytes` that reads like an error."""
    return _find(path, _SEEKS, from_bytes)


def _find(path: Path, seeks: Sequence[_Seek], from_bytes: int) -> Page:
    try:
        handle = path.open("rb")
    except FileNotFoundError:
        return Page([], 0, 0, 0)
    with handle:
        size = handle.seek(0, 2)
        begin = _next_line(handle, min(max(0, from_bytes), size))
        end = min(size, begin + SEARCH_BYTES)
        for start, block in _blocks(handle, begin, end):
            found = [at for seek in seeks if (at := _first(block, *seek)) is not None]
            if found:
                return _around(handle, start + min(found), size)
        end = end if end == size else max(begin + 1, _line_start(handle, end))  # it may end in the middle of a match
        return Page([], end, end, size, searched_to=end if end < size else None)


def _first(block: bytes, pattern: re.Pattern[bytes], before: re.Pattern[bytes]) -> int | None:
    """Where in the block `pattern` stands first behind what `before` wants."""
    for match in pattern.finditer(block):
        at = match.start()
        if before is _ANYWHERE or before.search(block[max(0, at - _LOOK_BACK) : at]):
            return at
    return None


def _next_line(handle: BinaryIO, at: int) -> int:
    """`at` when a line begins there, else where the next one does."""
    if at == 0:
        return 0
    handle.seek(at - 1)
    while block := handle.read(PAGE_BYTES):
        newline = block.find(b"\n")
        if newline >= 0:
            return handle.tell() - len(block) + newline + 1
    return handle.tell()


def _blocks(handle: BinaryIO, start: int, end: int) -> Iterator[tuple[int, bytes]]:
    """(offset, bytes), each with the end of the one before, so that nothing falls between two.

    The very first has a newline in front, as every other line has.
    """
    kept = b"\n"
    while start < end:
        handle.seek(start)
        block = handle.read(min(_BLOCK_BYTES, end - start))
        if not block:
            return
        yield start - len(kept), kept + block
        start += len(block)
        kept = (kept + block)[-_NEEDLE_MAX_BYTES:]


def _around(handle: BinaryIO, at: int, size: int) -> Page:
    line_start = _line_start(handle, at)
    before = [
        at for at, _ in _before(handle, line_start, size).lines[-_BEFORE_LINES:] if line_start - at < _BEFORE_BYTES
    ]
    found = _after(handle, before[0] if before else line_start, size)
    return Page(found.lines, found.from_bytes, found.to_bytes, size, hit_bytes=line_start)


def _line_start(handle: BinaryIO, at: int) -> int:
    """Where the line begins that holds byte `at`; looks back over one page at most."""
    start = max(0, at - PAGE_BYTES)
    handle.seek(start)
    newline = handle.read(at - start).rfind(b"\n")
    return start + newline + 1 if newline >= 0 else start


def _after(handle: BinaryIO, start: int, size: int) -> Page:
    handle.seek(start)
    data = handle.read(PAGE_BYTES)
    lines = _cut(data, start)
    whole_file = start + len(data) >= size
    if len(lines) > 1 and not whole_file and not data.endswith(b"\n"):
        lines.pop()  # cut in the middle: the next page has it whole
    lines = lines[:PAGE_LINES]
    end = lines[-1][0] + len(lines[-1][1]) + 1 if lines else start
    return Page([(at, line) for at, line in lines], start, min(end, start + len(data)), size)


def _before(handle: BinaryIO, end: int, size: int) -> Page:
    start = max(0, end - PAGE_BYTES)
    handle.seek(start)
    data = handle.read(end - start)
    lines = _cut(data, start)
    if start > 0 and len(lines) > 1:
        lines.pop(0)  # its beginning lies before this page
    lines = lines[-PAGE_LINES:]
    return Page(lines, lines[0][0] if lines else end, end, size)


def _cut(data: bytes, start: int) -> list[tuple[int, bytes]]:
    pieces = data.split(b"\n")
    if pieces and not pieces[-1]:
        pieces.pop()
    lines = []
    for piece in pieces:
        lines.append((start, piece))
        start += len(piece) + 1
    return lines


def to_json(found: Page, lines: list[dict[str, Any]]) -> dict[str, Any]:
    """A page whose `lines` the caller has made safe to show."""
    return {
        "lines": lines,
        "from_bytes": found.from_bytes,
        "to_bytes": found.to_bytes,
        "size": found.size_bytes,
        "hit_bytes": found.hit_bytes,
        "searched_to": found.searched_to,
    }
