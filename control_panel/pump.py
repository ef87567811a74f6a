"""From the model to the views: one thread that sends numbered patches, at a pace that follows who is looking.

A notebook server keeps every message for a closed tab, without bound. So views say every two seconds that they are
there (`seen`), and nothing is sent to nobody: with a visible view a patch at most 4 times a second, with only hidden
ones once in two seconds, and after ten seconds without a word none at all until someone asks again. What was not sent
is not lost: the model holds it, and whoever comes back gets a snapshot.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

Message = dict[str, Any]

VISIBLE_EVERY_S: Final = 0.25
HIDDEN_EVERY_S: Final = 2.0
HEARTBEAT_S: Final = 2.0
VISIBLE_FOR_S: Final = 10.0  # after its last word a view counts as gone
HIDDEN_FOR_S: Final = 75.0  # browsers let a hidden page's timers run once a minute: 38 messages wait at most
LINES_MAX: Final = 200
TEXT_MAX_BYTES: Final = 32_000  # of the lines of a patch; the rest of the 64 KB is for everything else
PAGES_MAX: Final = 16  # views that are remembered at once; the one heard of longest ago makes room


class Source(Protocol):
    """What a pump reads: the PanelModel, or a double of it."""

    @property
    def gen(self) -> str: ...

    def snapshot(self) -> Message: ...

    def delta(self, since: int) -> Message | None: ...


@dataclass
class _View:
    seen: float
    hidden: bool = False


class Pump:
    """Sends `k: "p"` patches and `k: "snap"` snapshots by `send`; safe to call from any thread."""

    def __init__(
        self, source: Source, send: Callable[[Message], None], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`send` may raise when the way to the front end is closed: that ends the pump, and no run hears of it."""
        self._source = source
        self._send = send
        self._clock = clock
        self._lock = threading.Lock()
        self._views: dict[str, _View] = {}
        self._wanted = False  # somebody asked for a snapshot
        self._wake = threading.Event()
        self._stopped = False
        self._last_seq = -1  # what all views have that heard everything; -1: nothing was sent yet
        self._sent_at = float("-inf")
        self._quiet = True
        self._thread: threading.Thread | None = None

    # --- what views say -------------------------------------------------------------------------

    def hello(self, view: str, have: Mapping[str, Any]) -> None:
        """A view is new, or missed something. It gets a snapshot, or a heartbeat when it has the newest already."""
        with self._lock:
            self._note(view, hidden=False)
            if have.get("gen") != self._source.gen or have.get("seq") != self._last_seq or self._quiet:
                self._wanted = True
            self._sent_at = float("-inf")
        self._wake.set()

    def seen(self, view: str, *, hidden: bool) -> None:
        """A view is still there."""
        with self._lock:
            self._note(view, hidden=hidden)
            quiet = self._quiet
        if quiet:
            self._wake.set()

    def gone(self, view: str) -> None:
        """A view was closed and said so."""
        with self._lock:
            self._views.pop(view, None)

    def every_s(self) -> float | None:
        """Seconds between patches as of now; None: nobody looks."""
        now = self._clock()
        with self._lock:
            for name, view in list(self._views.items()):
                if now - view.seen > (HIDDEN_FOR_S if view.hidden else VISIBLE_FOR_S):
                    del self._views[name]
            if not self._views:
                return None
            return HIDDEN_EVERY_S if all(view.hidden for view in self._views.values()) else VISIBLE_EVERY_S

    def _note(self, view: str, *, hidden: bool) -> None:
        self._views[view] = _View(self._clock(), hidden)
        if len(self._views) > PAGES_MAX:
            del self._views[min(self._views, key=lambda name: self._views[name].seen)]

    # --- what they get --------------------------------------------------------------------------

    def tick(self) -> bool:
        """Send what is due. Returns whether anything was sent. The thread does this; tests may do it instead."""
        if self.every_s() is None:
            self._quiet = True
            return False
        with self._lock:
            wanted, self._wanted = self._wanted or self._quiet, False
        if wanted:
            return self._send_snapshot()
        update = self._source.delta(self._last_seq)
        if update is None:
            return self._heartbeat()
        message = {"k": "p", **bounded(update), "since": self._last_seq}
        self._last_seq = update["seq"]
        self._out(message)
        return True

    def _send_snapshot(self) -> bool:
        snapshot = self._source.snapshot()
        self._last_seq, self._quiet = snapshot["seq"], False
        self._out({"k": "snap", **snapshot})
        return True

    def _heartbeat(self) -> bool:
        if self._clock() - self._sent_at < HEARTBEAT_S:
            return False
        seq = self._last_seq
        self._out({"k": "p", "gen": self._source.gen, "since": seq, "seq": seq, "t": time.time()})
        return True

    def _out(self, message: Message) -> None:
        self._sent_at = self._clock()
        self._send(message)

    # --- the thread -----------------------------------------------------------------------------

    def start(self) -> None:
        """Begin sending. Does nothing the second time."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="bridgehead-panel-pump", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """End the thread; at most a second."""
        self._stopped = True
        self._wake.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(1.0)

    @property
    def alive(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _work(self) -> None:
        while not self._stopped:
            try:
                self.tick()
            except Exception:  # noqa: BLE001  the way to the front end is closed
                return
            self._wake.wait(self.every_s())
            self._wake.clear()


def bounded(update: Message) -> Message:
    """The update with no more than LINES_MAX of its newest lines and TEXT_MAX_BYTES of text; `drop` counts the rest."""
    lines = update.get("lines", [])
    kept, room = 0, TEXT_MAX_BYTES
    for line in reversed(lines[-LINES_MAX:]):
        room -= len(line["text"].encode())
        if room < 0 and kept:
            break
        kept += 1
    if kept == len(lines):
        return update
    return {**update, "lines": lines[-kept:], "drop": update.get("drop", 0) + len(lines) - kept}
