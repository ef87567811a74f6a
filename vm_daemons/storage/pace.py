"""How fast the uploader may go, so that a store never slows a step, a log or the owner's line."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from vm_daemons.storage.objects import Empties, ObjectStore, PutsMany, Room, Stored


class Backoff:
    """Pauses that grow from `first_s` to `most_s`, with jitter so that two daemons don't knock in step."""

    def __init__(self, first_s: float = 0.2, most_s: float = 15.0) -> None:
        self._first_s = first_s
        self._most_s = most_s
        self._next_s = first_s

    def next_s(self) -> float:
        pause_s = self._next_s * random.uniform(0.7, 1.0)
        self._next_s = min(self._next_s * 2, self._most_s)
        return pause_s

    def reset(self) -> None:
        self._next_s = self._first_s


class Bucket:
    """A token bucket: `rate_per_s` on the long run, `burst` at once. A rate of 0 is no limit. For several threads."""

    def __init__(
        self,
        rate_per_s: float,
        burst: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._rate_per_s = rate_per_s
        self._burst = burst
        self._clock = clock
        self._sleep = sleep
        self._lock = threading.Lock()
        self._tokens = burst
        self._at = clock()

    def take(self, count: float = 1.0) -> None:
        """Returns when so many may pass. More than a burst is lent and waited for afterwards."""
        if self._rate_per_s <= 0:
            return
        with self._lock:
            now = self._clock()
            self._tokens = min(self._burst, self._tokens + (now - self._at) * self._rate_per_s) - count
            self._at = now
            owed_s = -self._tokens / self._rate_per_s
        if owed_s > 0:
            self._sleep(owed_s)


@runtime_checkable
class _TellsOfPieces(Protocol):
    on_bytes: Callable[[int], None]


class PacedStore:
    """An ObjectStore that waits for its tokens: one for each call, and one for each byte that is sent."""

    def __init__(self, inner: ObjectStore, requests: Bucket, upload: Bucket) -> None:
        self._inner = inner
        self._requests = requests
        self._upload = upload
        self.kind, self.where, self.proves = inner.kind, inner.where, inner.proves
        self._by_piece = isinstance(inner, _TellsOfPieces)  # so that a big file is no burst
        if isinstance(inner, _TellsOfPieces):
            inner.on_bytes = upload.take

    def put(self, key: str, source: Path) -> Stored:
        self._requests.take()
        stored = self._inner.put(key, source)
        self._pay(stored.size)
        return stored

    def put_many(self, items: Sequence[tuple[str, Path]]) -> list[Stored]:
        if not isinstance(self._inner, PutsMany):
            return [self.put(key, source) for key, source in items]
        for _ in items:
            self._requests.take()
        stored = self._inner.put_many(items)
        self._pay(sum(item.size for item in stored))
        return stored

    def put_bytes(self, key: str, data: bytes) -> None:
        self._requests.take()
        self._inner.put_bytes(key, data)
        self._pay(len(data))

    def get(self, key: str, target: Path) -> Stored:
        self._requests.take()
        return self._inner.get(key, target)

    def read(self, key: str, max_bytes: int) -> bytes | None:
        self._requests.take()
        return self._inner.read(key, max_bytes)

    def find(self, key: str) -> list[Stored]:
        self._requests.take()
        return self._inner.find(key)

    def look(self, key: str) -> list[Stored]:
        self._requests.take()
        return self._inner.look(key)

    def list(self, prefix: str) -> list[str]:
        self._requests.take()
        return self._inner.list(prefix)

    def delete(self, key: str) -> None:
        self._requests.take()
        self._inner.delete(key)

    def empty(self, key: str) -> bool:
        if not isinstance(self._inner, Empties):
            return False
        self._requests.take()
        return self._inner.empty(key)

    def probe(self) -> Room:
        return self._inner.probe()

    def _pay(self, size_bytes: int) -> None:
        if not self._by_piece:
            self._upload.take(size_bytes)
