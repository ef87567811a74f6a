"""When an artefact may be sent, how fast, and how far all of them are.

This is the one place that puts logs and status before artefacts. Logs go through `logs_first`; before each part of an
artefact its sender waits its turn, which comes once the logs have caught up (or after a moment, since a log may grow
without end), and not while the laptop has paused uploads.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from vm_daemons.storage.pace import Bucket

BEHIND_MAX_S: Final = 2.0  # so long a part waits for logs that never catch up
_SLOW_S: Final = 0.2  # a turn of the logs that lasts longer has to fight for the line
_LOOK_S: Final = 0.05
_RATE_OVER_S: Final = 20.0
_BURST_S: Final = 0.5


class UploadPace:
    """Thread-safe."""

    def __init__(
        self, *, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], object] = time.sleep
    ) -> None:
        self._logs_since: float | None = None  # a turn of theirs is under way
        self._logs_left = False
        self._clock = clock
        self._sleep = sleep
        self._open = threading.Event()
        self._open.set()
        self._limit_mb_s = 0.0
        self._bucket = Bucket(0.0, 0.0)
        self._lock = threading.Lock()
        self._runs: dict[str, Transfer] = {}
        self._sent: deque[tuple[float, int]] = deque()

    @property
    def paused(self) -> bool:
        return not self._open.is_set()

    def heed(self, told: object) -> None:
        """`{"paused": bool, "mb_s": float}` of the laptop's signed hints; 0 is no limit; all else changes nothing."""
        if not isinstance(told, dict):
            return
        if told.get("paused") is True:
            self._open.clear()
        elif told.get("paused") is False:
            self._open.set()
        limit = told.get("mb_s")
        if isinstance(limit, int | float) and limit != self._limit_mb_s and 0 <= limit < 1e6:
            self._limit_mb_s = limit
            self._bucket = Bucket(limit * 1e6, limit * 1e6 * _BURST_S, clock=self._clock, sleep=self._sleep)

    def logs_first(self, ship: Callable[[], bool]) -> bool:
        """One turn of logs and status; `ship` returns whether more is waiting, and so does this."""
        self._logs_since = self._clock()
        try:
            self._logs_left = ship()
        finally:
            self._logs_since = None
        return self._logs_left

    def wait_turn(self) -> None:
        """Returns when the next part of an artefact may be sent."""
        self._open.wait()
        deadline = self._clock() + BEHIND_MAX_S
        while self._logs_are_behind() and self._clock() < deadline:
            self._sleep(_LOOK_S)
        self._open.wait()

    def _logs_are_behind(self) -> bool:
        since = self._logs_since
        return self._logs_left or (since is not None and self._clock() - since > _SLOW_S)

    def on_bytes(self, count: int) -> None:
        """So many bytes are about to leave; returns when they may."""
        if not count:
            return
        self._bucket.take(count)
        with self._lock:
            now = self._clock()
            self._sent.append((now, count))
            while self._sent[0][0] < now - _RATE_OVER_S:
                self._sent.popleft()

    def transfer(self, run_id: str, sizes: dict[str, int]) -> Transfer:
        """Begin to tell of a run's files that are to be sent; until `end`."""
        with self._lock:
            self._runs[run_id] = Transfer(len(sizes), sum(sizes.values()))
            return self._runs[run_id]

    def end(self, run_id: str) -> None:
        with self._lock:
            self._runs.pop(run_id, None)

    def told(self) -> dict[str, Any]:
        """For the heartbeat, in bytes; `eta_s` is None when nothing moves. Empty when there is nothing to send."""
        with self._lock:
            transfers = dict(self._runs)
            rate = self._rate()
        if not transfers:
            return {"paused": True} if self.paused else {}
        left = sum(transfer.total_bytes - transfer.bytes for transfer in transfers.values())
        runs = [{"run_id": run_id, **transfer.told()} for run_id, transfer in transfers.items()]
        eta_s = round(left / rate, 1) if rate > 0 and not self.paused else None
        return {"paused": self.paused, "rate_bytes_s": round(rate), "eta_s": eta_s, "runs": runs}

    def _rate(self) -> float:
        now = self._clock()
        recent = [(at, count) for at, count in self._sent if at > now - _RATE_OVER_S]
        return sum(count for _, count in recent) / max(1.0, now - recent[0][0]) if recent else 0.0


@dataclass
class Transfer:
    """How far the files of one run are. What the laptop had already counts as sent."""

    total_files: int
    total_bytes: int
    files: int = 0
    bytes: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def add(self, size: int, *, files: int = 0) -> None:
        with self._lock:
            self.bytes = min(self.total_bytes, self.bytes + size)
            self.files += files

    def told(self) -> dict[str, int]:
        return {
            "files": self.files,
            "total_files": self.total_files,
            "bytes": self.bytes,
            "total_bytes": self.total_bytes,
        }
