"""The unfinished last line of a log, shown on a terminal until it is finished: how a progress bar moves."""

from __future__ import annotations

import shutil
import sys
from typing import Self


class BarLine:
    """On stderr, so that stdout has whole lines alone; shows nothing where that is no terminal."""

    def __init__(self) -> None:
        self._on = sys.stderr.isatty()
        self._shown = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

    def show(self, text: str) -> None:
        if self._on:
            width = shutil.get_terminal_size().columns - 1
            sys.stderr.write(f"\r\x1b[K{text[:width]}")
            sys.stderr.flush()
            self._shown = True

    def clear(self) -> None:
        """Before anything else is written."""
        if self._shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            self._shown = False
