"""Reading a run's log on the laptop: the end of it, or on and on, made safe to show.

A log is raw bytes: it may hold binary, escape sequences that would repaint a terminal, and a `\\r` progress bar that is
one line of a million characters. The file itself, in/<run>/log, is left as it is.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from bridgehead import names

_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-Z\\-_]")
# Control characters, and those that turn the direction of text or draw nothing: with them a line shows what it is not.
_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)
_BLOCK_BYTES = 64 * 1024
TAIL_MAX_BYTES = 8 * 2**20
LINE_MAX = 2000  # characters of one line that are shown
_POLL_S = 0.1


def tail(path: Path, count: int, *, complete_only: bool = False) -> tuple[list[str], int]:
    """The last `count` lines as text safe to show, and the offset in bytes where they end.

    Looks at no more than the last 8 MiB, of `log.1` too when the log has just been rotated. A file that is not there
    yet has no lines. `complete_only` leaves an unfinished last line to whoever reads on from the offset.
    """
    if not path.exists():
        return [], 0
    lines, unfinished, end = _last(path, count)
    if len(lines) < count and (before := path.with_name(names.LOG_BEFORE)).exists():
        older, cut, _ = _last(before, count - len(lines))
        lines = [*older, *([cut] if cut else []), *lines]
    if complete_only:
        end -= len(unfinished)
    elif unfinished:
        lines.append(unfinished)
    kept = lines[-count:] if count else []
    return [shown(line) for line in kept], end


def _last(path: Path, count: int) -> tuple[list[bytes], bytes, int]:
    """At least the last `count` lines where there are so many, the unfinished one after them, and the file's end."""
    with path.open("rb") as handle:
        end = handle.seek(0, 2)
        start, data = end, b""
        while start > 0 and end - start < TAIL_MAX_BYTES and data.count(b"\n") <= count:
            size = min(_BLOCK_BYTES, start)
            start -= size
            handle.seek(start)
            data = handle.read(size) + data
    *lines, unfinished = data.split(b"\n")
    return lines, unfinished, end


def follow(
    path: Path,
    offset: int,
    ended: Callable[[], bool],
    *,
    poll_s: float = _POLL_S,
    on_bar: Callable[[str], object] = lambda text: None,
) -> Iterator[str]:
    """New lines from `offset` on, as they come, until `ended()` and nothing more is there.

    An unfinished last line is held back until its newline comes or the run has ended; `on_bar` hears what it shows
    meanwhile, which is how a progress bar moves.
    """
    reader = _Reader(path, offset)
    rest, told = b"", b""
    while True:
        last_round = ended()  # asked first: what was written before the end is then read below
        while piece := reader.read():
            *lines, rest = (rest + piece).split(b"\n")
            rest = rest[rest.rstrip(b"\r").rfind(b"\r") + 1 :][-TAIL_MAX_BYTES:]  # the bar's last state is enough
            yield from map(shown, lines)
        if last_round:
            if rest:
                yield shown(rest)
            return
        if rest != told:
            on_bar(shown(_whole_characters(rest)))
            told = rest
        time.sleep(poll_s)


class _Reader:
    """Reads on from an offset; when the log was rotated meanwhile, first the rest of what it was and then the new one.

    The file is not kept open: on Windows it could not be rotated then.
    """

    def __init__(self, path: Path, offset: int) -> None:
        self._path = path
        self._offset = offset
        self._inode = _inode(path)

    def read(self) -> bytes:
        """The next bytes; empty when there are none yet."""
        if self._inode is None:
            self._inode = _inode(self._path)
        if _inode(self._path) == self._inode:
            return self._piece(self._path)
        before = self._path.with_name(names.LOG_BEFORE)
        if _inode(before) == self._inode and (piece := self._piece(before)):
            return piece
        self._inode, self._offset = _inode(self._path), 0
        return self._piece(self._path)

    def _piece(self, path: Path) -> bytes:
        try:
            with path.open("rb") as handle:
                handle.seek(self._offset)
                piece = handle.read(_BLOCK_BYTES)
        except FileNotFoundError:
            return b""
        self._offset += len(piece)
        return piece


def shown(line: bytes) -> str:
    """One line as a terminal would leave it: the last state of a progress bar, no escapes, no control characters."""
    states = [part for part in line.rstrip(b"\r").split(b"\r") if part]
    text = (states[-1] if states else b"").decode("utf-8", errors="replace")
    text = _CONTROL.sub(_escaped, _ESCAPES.sub("", text))
    return text if len(text) <= LINE_MAX else text[:LINE_MAX] + f"… ({len(text) - LINE_MAX} more characters)"


def _escaped(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def _whole_characters(data: bytes) -> bytes:
    """Without the first bytes of a character whose others are still to come."""
    for length in range(1, min(4, len(data) + 1)):
        byte = data[-length]
        if byte >= 0xC0:  # begins a character of two to four bytes
            wanted = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return data[:-length] if length < wanted else data
        if byte < 0x80:
            return data
    return data


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return None
