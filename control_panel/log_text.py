"""Lines of a run's log made fit to show: whatever they hold, they are text of bounded length, and no secret of ours."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, Final

from bridgehead import names
from control_panel.shapes import LINE_MAX, Level, LogLine
from run_control import logs
from run_control.log_pages import ERROR

READ_MAX_BYTES: Final = 1 << 20  # of one log at one look; what is beyond is only counted
FIRST_BYTES: Final = 128 * 1024  # of a log that is there already
BAR_MAX: Final = 200
_UNFINISHED_MAX_BYTES: Final = 1 << 16
_PAIRING: Final = re.compile(r"bh1\.[A-Za-z0-9_-]{16,}")
_WARN: Final = re.compile(r"\b(?:WARN(?:ING)?|[A-Za-z]*Warning|warning(?=:))\b")
# Behind a prefix, as of a rank or a logger. A figure of that name ("Error: 0.03") is none.
_RAISED: Final = re.compile(r"\b[A-Za-z_.]*Error: +(?![-+.\d])")
# A line with none of these is plain: most are, and looking for fixed text costs a tenth.
_MARKS: Final = ("rror", "ERROR", "xception", "arn", "WARN", "CRITICAL", "FATAL", "Traceback", "memory", "fault")
_TRACEBACK: Final = "Traceback (most recent call last)"


def clean(line: bytes) -> str:
    """Text of at most LINE_MAX printable characters: the last state of a progress bar, no escapes, no pairing code."""
    text = line.decode("utf-8", errors="replace") if len(line) <= LINE_MAX else ""
    if not (text.isascii() and text.isprintable()) or not text:  # seldom: most lines are plain
        text = logs.shown(line).replace("\t", "    ").replace("\n", " ")
        text = text.encode("utf-8", errors="replace").decode("utf-8")
    if "bh1." in text:
        text = _PAIRING.sub("bh1.(hidden)", text)
    return text if len(text) <= LINE_MAX else text[: LINE_MAX - 1] + "…"


def plain(text: str, limit: int = LINE_MAX) -> str:
    """The same for what VMs and queue lines say, in one line of at most `limit` characters."""
    if text.isascii() and text.isprintable() and len(text) <= limit and "bh1." not in text:
        return text
    cleaned = clean(" ".join(text.split("\n")).encode("utf-8", errors="replace"))
    return cleaned if len(cleaned) <= limit else cleaned[: limit - 1] + "…"


class Reader:
    """Lines to LogLines of one run; remembers whether a traceback is under way, and what stands before its lines."""

    def __init__(self, run: str) -> None:
        self._run = run
        self._in_traceback = False
        self._prefix = ""

    def lines(self, raw: Sequence[bytes], vm: str, now: float) -> list[LogLine]:
        texts = [clean(piece) for piece in raw]
        return [LogLine(self._run, text, self.level(text), vm, now) for text in texts]

    def level(self, text: str) -> Level:
        """By its words: the two streams of a run are one file."""
        if self._in_traceback:
            rest = text.removeprefix(self._prefix)
            self._in_traceback = (
                not rest or rest[0] in " \t" or _TRACEBACK in rest or rest.startswith("During handling")
            )
            return Level.ERROR
        if not any(mark in text for mark in _MARKS):
            return Level.INFO
        if _TRACEBACK in text:
            self._in_traceback, self._prefix = True, text[: text.index(_TRACEBACK)]
            return Level.ERROR
        if ERROR.search(text) or _RAISED.search(text):
            return Level.ERROR
        return Level.WARN if _WARN.search(text) else Level.INFO


class LogTail:
    """The end of one growing file, from look to look. A file that gets ahead is not caught up with: its end counts."""

    def __init__(self, path: Path, run: str) -> None:
        self.path = path
        self.size_bytes = 0
        self.bar = ""  # the unfinished last line as it stands
        self._reader = Reader(run)
        self._run = run
        self._inode = 0
        self._offset = -1  # -1: not read yet
        self._rest = b""
        self._skip = False  # up to the next newline: it was begun in the middle of a line
        self._unshown = 0  # bytes that were left out and not told of yet
        self._begins = False  # such a gap begins with the next look, and is told of at once
        self._first = True  # what is there before the first look is older than anybody here knows
        self._mtime_ns = 0

    @property
    def changed_at(self) -> float:
        """When the file last grew, in seconds since 1970; 0 when it is not there."""
        return self._mtime_ns / 1e9

    def look(self, vm: str, now: float) -> list[LogLine]:
        """New whole lines, and a note where some are left out. Reads at most READ_MAX_BYTES.

        Lines have `now` as their time, those of a log that is there at the first look have none: 0.
        """
        try:
            found = self.path.stat()
        except OSError:
            self._first = False
            return []
        if (found.st_ino, found.st_size) == (self._inode, self._offset):
            return []
        self.size_bytes, self._mtime_ns = found.st_size, found.st_mtime_ns
        now, self._first = 0.0 if self._first else now, False
        lines = self._turned(found.st_ino, found.st_size, vm, now)
        try:
            with self.path.open("rb") as handle:
                return [*lines, *self._read(handle, found.st_size, vm, now)]
        except OSError:
            return lines

    def _turned(self, inode: int, size: int, vm: str, now: float) -> list[LogLine]:
        """Find the place to read from: at the first look, after a rotation, and when a shorter file took its place."""
        if self._offset < 0:
            self._inode, self._offset = inode, max(0, size - FIRST_BYTES)
            self._skip = self._begins = self._offset > 0
            self._unshown = self._offset
            return []
        lines: list[LogLine] = []
        if inode != self._inode and self._is_former(self.path.with_name(names.LOG_BEFORE)):
            lines, size = self._rest_of_former(vm, now), -1
        self._inode = inode
        if size < self._offset:
            self._offset, self._rest, self._skip = 0, b"", False
        return lines

    def _is_former(self, path: Path) -> bool:
        try:
            return path.stat().st_ino == self._inode
        except OSError:
            return False

    def _rest_of_former(self, vm: str, now: float) -> list[LogLine]:
        """What came between the last look and the rotation lies in log.1."""
        try:
            with self.path.with_name(names.LOG_BEFORE).open("rb") as handle:
                return self._read(handle, handle.seek(0, 2), vm, now)
        except OSError:
            return []

    def _read(self, handle: BinaryIO, size: int, vm: str, now: float) -> list[LogLine]:
        begins, self._begins = self._begins, False
        behind = size - READ_MAX_BYTES - self._offset
        if behind > 0:
            self._unshown += behind + len(self._rest)
            self._offset, self._rest, self._skip, begins = self._offset + behind, b"", True, True
        handle.seek(self._offset)
        data = handle.read(max(0, size - self._offset))
        self._offset += len(data)
        *whole, last = (self._rest + data).split(b"\n")
        if self._skip:  # the line that was cut in the middle: what is left of it counts as not shown
            self._unshown += len(whole[0]) + 1 if whole else len(last)
            self._skip, whole, last = not whole, whole[1:], last if whole else b""
        self._rest = last[last.rstrip(b"\r").rfind(b"\r") + 1 :][-_UNFINISHED_MAX_BYTES:]
        self.bar = clean(self._rest)[:BAR_MAX] if self._rest else ""
        notes = self._gap(vm, now) if begins or not self._skip else []
        return [*notes, *self._reader.lines(whole, vm, now)]

    def _gap(self, vm: str, now: float) -> list[LogLine]:
        unshown, self._unshown = self._unshown, 0
        text = f"… {unshown:,} bytes are not shown here; they are in the file"
        return [self._note(text, vm, now)] if unshown else []

    def _note(self, text: str, vm: str, now: float) -> LogLine:
        return LogLine(self._run, text, Level.NOTE, vm, now)
