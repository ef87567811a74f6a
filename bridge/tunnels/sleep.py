"""A laptop that was closed and opened again: no signal says so, but the clocks have gone on."""

from __future__ import annotations

import time
from collections.abc import Callable

_MORE_S = 15.0  # a busy machine may be late by some seconds


class SleepWatch:
    """Ask `woke` after each pause. Linux and macOS stop their monotonic clock in sleep, Windows does not."""

    def __init__(
        self, *, wall: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._wall, self._monotonic = wall, monotonic
        self._last = (wall(), monotonic())

    def woke(self, planned_s: float) -> bool:
        """Whether far more time has gone by since the last call than the `planned_s` of the pause."""
        before, self._last = self._last, (self._wall(), self._monotonic())
        passed_s = max(now - then for now, then in zip(self._last, before, strict=True))
        return passed_s > planned_s + _MORE_S
