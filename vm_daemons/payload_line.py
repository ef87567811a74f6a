"""The line to the laptop while the payload comes down it: patience, pace, how far it is, and an end for all at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from bridgehead.errors import TransferError
from bridgehead.records import duration
from vm_daemons.client import Backoff
from vm_daemons.storage.pace import Bucket

TRIES = 6  # without a byte of progress between them
SAY_EVERY_S = 60.0
SAY_FIRST_S = 10.0
_READ_BYTES = 1 << 18
T = TypeVar("T")


def read_bytes(tries: int) -> int:
    """How much of an answer to read at once: the library drops the piece that a cut was in the middle of.

    256 KiB, and after tries in which no piece was whole less and less, so that a line that lives for seconds gets on.
    """
    return _READ_BYTES >> min(2 * tries, 6)


class Changed(TransferError):
    """A content that the manifest names is not on the laptop any more: it has to be asked for a new manifest."""

    def __init__(self, sha256: str) -> None:
        super().__init__("a file of the payload has changed on the laptop meanwhile")
        self.sha256 = sha256


class Line:
    """Shared by the threads of one fetch. `say` gets one line a minute at most."""

    def __init__(
        self,
        total_bytes: int,
        say: Callable[[str], None] | None = None,
        *,
        limit: Bucket | None = None,  # of bytes
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.ended = threading.Event()  # one thread has failed: the others need not go on
        self.writing = threading.Lock()  # small files one after the other: threads that make files only queue up
        self.fetched_bytes = 0  # as they came down the line
        self._total_bytes = total_bytes
        self._done_bytes = 0  # of the total: fetched or found here
        self._say = say
        self._clock = clock
        self._began = clock()
        self._next = self._began + SAY_FIRST_S
        self._limit = limit
        self._lock = threading.Lock()
        self._rates: dict[bool, float] = {}  # deflated or not -> content bytes a second
        self._turn = False

    def took(self, wire_bytes: int) -> None:
        """So much has come. Raises TransferError when another thread has failed."""
        self.check()
        if self._limit is not None:
            self._limit.take(wire_bytes)
        with self._lock:
            self.fetched_bytes += wire_bytes

    def done(self, content_bytes: int) -> None:
        """So much of what was wanted is here now; negative when it turned out to be something else."""
        with self._lock:
            self._done_bytes += content_bytes
            now = self._clock()
            if self._say is None or now < self._next:
                return
            self._next = now + SAY_EVERY_S
            text = self._progress(now)
        self._say(text)

    def check(self) -> None:
        if self.ended.is_set():
            raise TransferError("called off: another part of the payload could not be fetched")

    def deflate(self) -> bool:
        """Whether the next pack should come deflated: what was faster so far. A slow line gains, a fast one loses."""
        with self._lock:
            if len(self._rates) < 2:
                self._turn = not self._turn
                return self._turn
            return self._rates[True] > self._rates[False]

    def measured(self, content_bytes: int, seconds: float, *, deflated: bool) -> None:
        rate = content_bytes / max(seconds, 1e-6)
        with self._lock:
            self._rates[deflated] = (self._rates.get(deflated, rate) + rate) / 2

    def patiently(self, action: Callable[[], T]) -> T:
        """`action()`, tried again while the network is at fault. Raises its last TransferError."""
        backoff, tries = Backoff(), 0
        while True:
            self.check()
            try:
                return action()
            except TransferError:
                tries += 1
                if tries >= TRIES:
                    raise
                self.ended.wait(backoff.next_s())

    def _progress(self, now: float) -> str:
        spent_s = max(now - self._began, 1e-3)
        done, total = self._done_bytes / 2**20, self._total_bytes / 2**20
        text = f"payload: {done:.0f} of {total:.0f} MiB, {self.fetched_bytes / 2**20 / spent_s:.1f} MiB/s"
        if 0 < done < total:
            text += f", {duration(spent_s * (total - done) / done)} to go"
        return text
