"""Reading a run's log on the laptop: the end of it, or on and on, made safe to show.

A log is raw bytes: it may hold binary, escape sequences that would repaint a terminal, and a `\\r` progress bar that is
one line of a million characters. The file itself, in/<run>/log, is left as it is.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-Z\\-_]")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_BLOCK_BYTES = 64 * 1024
TAIL_MAX_BYTES = 8 * 2**20
LINE_MAX = 2000  # characters of one line that are shown
_POLL_S = 0.1


def tail(path: Path, count: int, *, complete_only: bool = False) -> tuple[list[str], int]:
    """The last `count` lines as text safe to show, and the offset in bytes where they end.

    Looks at no more than the last 8 MiB. A file that is not there yet has no lines. `complete_only` leaves an
    unfinished last line to whoever reads on from the offset.
    """
    if not path.exists():
        return [], 0
    with path.open("rb") as handle:
        end = handle.seek(0, 2)
        start, data = end, b""
        while start > 0 and end - start < TAIL_MAX_BYTES and data.count(b"\n") <= count:
            size = min(_BLOCK_BYTES, start)
            start -= size
            handle.seek(start)
            data = handle.read(size) + data
    lines = data.split(b"\n")
    unfinished = lines.pop()
    if complete_only:
        end -= len(unfinished)
    elif unfinished:
        lines.append(unfinished)
    kept = lines[-count:] if count else []
    return [shown(line) for line in kept], end


def follow(path: Path, offset: int, ended: Callable[[], bool], *, poll_s: float = _POLL_S) -> Iterator[str]:
    """New lines from `offset` on, as they come, until `ended()` and nothing more is there.

    An unfinished last line is held back until its newline comes or the run has ended.
    """
    rest = b""
    while True:
        last_round = ended()  # asked first: what was written before the end is then read below
        while piece := _read(path, offset):
            offset += len(piece)
            *lines, rest = (rest + piece).split(b"\n")
            rest = rest[rest.rstrip(b"\r").rfind(b"\r") + 1 :][-TAIL_MAX_BYTES:]  # the bar's last state is enough
            yield from map(shown, lines)
        if last_round:
            if rest:
                yield shown(rest)
            return
        time.sleep(poll_s)


def shown(line: bytes) -> str:
    """One line as a terminal would leave it: the last state of a progress bar, no escapes, no control characters."""
    states = [part for part in line.rstrip(b"\r").split(b"\r") if part]
    text = (states[-1] if states else b"").decode("utf-8", errors="replace")
    text = _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", _ESCAPES.sub("", text))
    return text if len(text) <= LINE_MAX else text[:LINE_MAX] + f"… ({len(text) - LINE_MAX} more characters)"


def _read(path: Path, offset: int) -> bytes:
    try:
        with path.open("rb") as handle:
            handle.seek(offset)
            return handle.read(_BLOCK_BYTES)
    except FileNotFoundError:
        return b""
