"""Who was turned away, as counts: a line in the audit file for each stretch of time, never one for each request.

The stretches get longer while it goes on, so whoever knocks for months fills no disk.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable

from bridge.audit import Audit

FIRST_S = 60.0
MOST_S = 3600.0


class Refusals:
    """`note` from any thread; `flush` about once a second from one."""

    def __init__(self, audit: Audit, *, clock: Callable[[], float] = time.time) -> None:
        self._audit = audit
        self._clock = clock
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._since = 0.0
        self._stretch_s = FIRST_S

    def note(self, why: str) -> None:
        with self._lock:
            if not self._counts:
                self._since = self._clock()
            self._counts[why] += 1

    def flush(self, *, now: bool = False) -> None:
        """Write the line when its stretch of time is over; with `now` at once."""
        with self._lock:
            passed_s = self._clock() - self._since
            if not self._counts:
                if passed_s > MOST_S:
                    self._stretch_s = FIRST_S
                return
            if passed_s < self._stretch_s and not now:
                return
            line = {"event": "refused", "since": round(self._since, 3), "counts": dict(sorted(self._counts.items()))}
            self._counts.clear()
            self._stretch_s = min(MOST_S, 2 * self._stretch_s)
        self._audit.append([line])
