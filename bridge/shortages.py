"""What the laptop had no room for: counted here, kept in the ledger, so that `status`, `wait` and `queue` can tell.

A VM keeps what is refused and sends it again; nobody else would say on the laptop why a run does not end.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable
from dataclasses import replace

from bridge.ledger import Ledger
from bridge.ledger_room import Shortage

_EACH_RUN_MAX = 50


class Shortages:
    """`note` and `arrived` from any thread; `flush` about once a second from one."""

    def __init__(self, ledger: Ledger, *, clock: Callable[[], float] = time.time) -> None:
        self._ledger = ledger
        self._clock = clock
        self._lock = threading.Lock()
        self._known = {item.path: item for item in ledger.no_room()}
        self._changed = False

    def note(self, path: str, wanted_bytes: int) -> None:
        """A 507 for `path` below in/: `<run>/<file>`, or `<run>/` for a batch of small files."""
        now, run_id = self._clock(), path.partition("/")[0]
        with self._lock:
            known = self._known.get(path)
            if known is None and sum(item.run_id == run_id for item in self._known.values()) >= _EACH_RUN_MAX:
                return
            before = known or Shortage(path, wanted_bytes, 0, now, now)
            self._known[path] = replace(before, wanted_bytes=wanted_bytes, times=before.times + 1, last=now)
            self._changed = True

    def arrived(self, path: str) -> None:
        """There was room for it by now."""
        with self._lock:
            self._changed = self._known.pop(path, None) is not None or self._changed

    def flush(self) -> None:
        with self._lock:
            if not self._changed:
                return
            self._changed, items = False, list(self._known.values())
        try:
            self._ledger.set_no_room(items)
        except sqlite3.OperationalError:  # the same disk is too full for this, too: the next round tries again
            with self._lock:
                self._changed = True
