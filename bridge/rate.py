"""How many requests one pairing may send: a token bucket for each key, wide enough that honest work never meets it.

Measured with the real daemons of one VM on loopback, with a run that writes 1 MB/s of log and its progress at each
step: up to 80 requests a second. The limit is ten times that for each VM of the pairing, ten seconds' worth at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

PER_VM_S: Final = 800.0  # requests a second
BURST_S: Final = 10.0
VMS_MAX: Final = 64  # a key that makes up VMs gets no more than this many shares
_KEYS_MAX: Final = 1024  # buckets; only keys of ours get one


class Limiter:
    """Not thread-safe: the event loop alone calls it."""

    def __init__(self, *, per_vm_s: float = PER_VM_S, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_vm_s = per_vm_s
        self._clock = clock
        self._buckets: dict[str, tuple[float, float]] = {}  # key id → (tokens, when that was)

    def wait_s(self, key_id: str, vms: int) -> float:
        """0 when the request may go on, which it then counts for; else in how many seconds one may."""
        rate = self._per_vm_s * min(max(vms, 1), VMS_MAX)
        now = self._clock()
        if key_id not in self._buckets and len(self._buckets) >= _KEYS_MAX:
            self._buckets.clear()
        tokens, at = self._buckets.get(key_id, (rate * BURST_S, now))
        tokens = min(rate * BURST_S, tokens + (now - at) * rate)
        if tokens < 1.0:
            self._buckets[key_id] = (tokens, now)
            return (1.0 - tokens) / rate
        self._buckets[key_id] = (tokens - 1.0, now)
        return 0.0
