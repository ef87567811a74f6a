"""Requests side by side, as many as help: one connection where the line is slow, more where it carries more.

More connections than the line needs cost: each has a part half-way when the line is cut, and each takes its share from
the logs. So a further one stays only when all together got clearly faster by it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Final

MOST: Final = 4
SLOW_BYTES_PER_S: Final = 1e6
_GAIN: Final = 1.15
Job = Callable[[], int]  # does one request and returns the bytes that it sent


class Width:
    """How many at once. `note` each finished job; `now` is the number to keep going."""

    def __init__(self, most: int = MOST, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.now = min(2, most)
        self._most = most
        self._clock = clock
        self._rates: dict[int, float] = {}
        self._begin()

    def note(self, size: int) -> None:
        self._bytes += size
        self._jobs += 1
        if self._jobs <= self.now:  # one round in which all were under way at this width
            return
        rate = self._bytes / max(1e-6, self._clock() - self._since)
        self._rates[self.now] = rate
        fewer, more = self._rates.get(self.now - 1, 0.0), self.now + 1
        if rate < SLOW_BYTES_PER_S:
            self.now = 1
            self._rates.clear()
        elif fewer and rate < fewer * _GAIN:
            self.now -= 1
        elif more <= self._most and self._rates.get(more, 9e99) > rate * _GAIN:
            self.now = more
        self._begin()

    def _begin(self) -> None:
        self._since, self._bytes, self._jobs = self._clock(), 0, 0


def work(jobs: Iterable[Job], width: Width) -> None:
    """Do them all. After the first that raises no other is begun, and it is raised once those under way have ended."""
    running: set[Future[int]] = set()
    with ThreadPoolExecutor(MOST, thread_name_prefix="send") as pool:
        for job in jobs:
            while len(running) >= width.now:
                running = _some_ended(running, width)
            running.add(pool.submit(job))
        while running:
            running = _some_ended(running, width)


def _some_ended(running: set[Future[int]], width: Width) -> set[Future[int]]:
    done, left = wait(running, return_when=FIRST_COMPLETED)
    for future in done:
        width.note(future.result())
    return left
