"""Which press made which lines of queue.txt, kept on the disk: a kernel that dies takes no press along.

A press is written down before its lines are, with how long the file was then and which line was taken last. When the
same press comes again, to this kernel or to the next one, what is found behind that place says whether it acted.

Two views that show the same and where the same is pressed at once mean one thing: the second press is the first one's
twin, and makes no line. A view that was told so and presses again means another one.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bridgehead import files

NAME: Final = "presses.jsonl"  # in the private folder
KEPT_MAX: Final = 1000
SIZE_MAX_BYTES: Final = 1_000_000  # then only the newest KEPT_MAX stay
_READ_MAX_BYTES: Final = 16_000_000


@dataclass(frozen=True)
class Press:
    """`lines` as they go into queue.txt, which was `offset` bytes long; `after`: number of the line taken last then.

    `view`: where it was pressed, "" where that is not known. `twin`: the press that it is the same as; it has no lines.
    """

    id: str
    lines: tuple[str, ...]
    offset: int
    after: int
    view: str = ""
    twin: str = ""


class Presses:
    """Safe from several threads; other panels may write to the same file. A disk that can't take it stops no press."""

    def __init__(self, folder: Path, queue: Path) -> None:
        self._path = folder / NAME
        self._queue = queue
        self._lock = threading.Lock()

    def note(self, press_id: str, lines: Sequence[str], after: int, *, view: str = "", twin: str = "") -> Press:
        """Write it down; its lines go into the file next."""
        press = Press(press_id, tuple(lines), _size(self._queue), after, view, twin)
        with self._lock:
            self._append({**vars(press), "lines": list(press.lines)})
        return press

    def twin(self, lines: Sequence[str], view: str, seen: int, taken: Sequence[tuple[int, str]]) -> Press | None:
        """The press of another view that made these very lines, none of which `view` has shown yet.

        `seen`: number of the newest line that it showed; `taken`: (number, line) of all that a bridge took. Not one
        that this view was told of already.
        """
        known, _ = self._read()
        told = {press.twin for press in known.values() if press.view == view}
        newest = max((seq for seq, _ in taken), default=0)
        for press in reversed(known.values()):
            fits = press.lines == tuple(lines) and press.view not in ("", view) and press.id not in told
            if not fits or press.after > newest:  # of a ledger that was moved away
                continue
            found = [seq for seq, line in taken if seq > press.after and line == press.lines[-1]]
            waits = not found and press.lines[-1] in _lines_from(self._queue, press.offset)
            if waits or (found and found[0] > seen):
                return press
        return None

    def made(self, press: Press) -> None:
        """All its lines are in the file."""
        with self._lock:
            self._append({"id": press.id, "made": True})

    def find(self, press_id: str) -> Press | None:
        """The press of that id, whoever wrote it down."""
        return self._read()[0].get(press_id)

    def missing(self, press: Press, taken: Sequence[str]) -> list[str]:
        """Those of its lines that never got into queue.txt. `taken`: lines that a bridge took after `press.after`.

        A line behind the press's place that another press made is not its own.
        """
        known, made = self._read()
        if press.id in made:
            return []
        others = [line for one in known.values() if one.id in made and one.offset >= press.offset for line in one.lines]
        written = _lines_from(self._queue, press.offset)
        missing = []
        for line in dict.fromkeys(press.lines):
            found = max(written.count(line), list(taken).count(line)) - others.count(line)
            missing += [line] * max(0, press.lines.count(line) - max(0, found))
        return missing

    # --- inside ------------------------------------------------------------------------------------

    def _append(self, record: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):
            self._cut()
            fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            try:
                os.write(fd, (json.dumps(record) + "\n").encode())
            finally:
                os.close(fd)

    def _cut(self) -> None:
        if _size(self._path) > SIZE_MAX_BYTES:
            kept = self._path.read_bytes().splitlines(keepends=True)[-KEPT_MAX:]
            while kept and sum(map(len, kept)) > SIZE_MAX_BYTES // 2:
                del kept[0]
            files.write_atomic(self._path, b"".join(kept), mode=0o600)

    def _read(self) -> tuple[OrderedDict[str, Press], set[str]]:
        """(presses by id, ids of those whose lines are all in the file). What can't be read is passed over."""
        known: OrderedDict[str, Press] = OrderedDict()
        made: set[str] = set()
        data = b""
        with contextlib.suppress(OSError), self._path.open("rb") as stream:
            data = stream.read(_READ_MAX_BYTES)
        for raw in data.splitlines():
            with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError, RecursionError):
                record = json.loads(raw)
                if record.get("made"):
                    made.add(str(record["id"]))
                    continue
                lines, view, twin = (record.get(name, "") for name in ("lines", "view", "twin"))
                press = Press(
                    str(record["id"]), tuple(map(str, lines)), record["offset"], record["after"], str(view), str(twin)
                )
                known[press.id] = press
        return known, made


def _size(path: Path) -> int:
    with contextlib.suppress(OSError):
        return path.stat().st_size
    return 0


def _lines_from(path: Path, offset: int) -> list[str]:
    """The lines behind that byte; those of the whole file when it has become shorter since."""
    with contextlib.suppress(OSError), path.open("rb") as stream:
        stream.seek(offset if offset <= _size(path) else 0)
        return [line.strip() for line in stream.read(_READ_MAX_BYTES).decode(errors="replace").splitlines()]
    return []
