"""The newest log lines of the whole panel, numbered, within bounds."""

from __future__ import annotations

import dataclasses
import itertools
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator

from control_panel.shapes import LogLine

_LINE_OVERHEAD_BYTES = 90  # of its JSON beside the text


class LogRing:
    """Not safe from several threads: its model holds a lock."""

    def __init__(self, lines_max: int) -> None:
        self._lines: deque[LogLine] = deque(maxlen=lines_max)
        self._marks: list[tuple[int, int]] = []  # (seq, number of the first line that came with it), ascending
        self.next_n = 1

    def extend(self, seq: int, lines: Iterable[LogLine]) -> bool:
        """Number and add the lines; whether there were any."""
        first = self.next_n
        for line in lines:
            self._lines.append(dataclasses.replace(line, n=self.next_n))
            self.next_n += 1
        if self.next_n == first:
            return False
        self._marks.append((seq, first))
        if len(self._marks) > 2 * (self._lines.maxlen or 0):
            oldest = self._lines[0].n
            self._marks = [mark for mark in self._marks if mark[1] >= oldest]
        return True

    def newest(self, count: int, text_max_bytes: int) -> list[LogLine]:
        """The last `count` lines, fewer when their text is long; oldest first."""
        return self._fitting(itertools.islice(reversed(self._lines), max(0, count)), text_max_bytes)

    def since(self, seq: int, lines_max: int, text_max_bytes: int) -> tuple[list[LogLine], int]:
        """Lines that came after `seq`, the newest that fit, and how many came before those and are left out."""
        at = bisect_right(self._marks, (seq, self.next_n))
        first = self._marks[at][1] if at < len(self._marks) else self.next_n
        fresh = itertools.takewhile(lambda line: line.n >= first, reversed(self._lines))
        lines = self._fitting(itertools.islice(fresh, lines_max), text_max_bytes)
        return lines, (lines[0].n if lines else self.next_n) - first

    def _fitting(self, newest_first: Iterator[LogLine], text_max_bytes: int) -> list[LogLine]:
        found: list[LogLine] = []
        size_bytes = 0
        for line in newest_first:
            size_bytes += len(line.text.encode(errors="replace")) + _LINE_OVERHEAD_BYTES
            if found and size_bytes > text_max_bytes:
                break
            found.append(line)
        return found[::-1]
