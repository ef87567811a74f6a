"""What was told, and what waits to be: .bridgehead/notified.json, so that a restarted bridge tells nothing twice.

An event is written down before it is sent, and marked when its sending begins. A bridge that dies in between doesn't
know what became of it, and does not send it again: once too few is told by `status`, twice is noise on every phone.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bridgehead import files, names
from run_control.notify_event import Event
from run_control.notify_spec import Channel

WAITING_MAX = 200  # per channel; of more the oldest are dropped
_log = logging.getLogger(__name__)


@dataclass
class Waiting:
    """An event on its way to one channel."""

    channel: str
    event: Event
    tries: int = 0
    next_at: float = 0.0  # not before; seconds since 1970
    sending: bool = False


@dataclass
class _State:
    told: dict[str, float] = field(default_factory=dict)  # key → when
    waiting: list[Waiting] = field(default_factory=list)
    trouble: dict[str, str] = field(default_factory=dict)  # channel → why it fails


class Memory:
    """Safe from several threads. A disk that takes nothing is logged; this process then remembers for itself."""

    def __init__(self, path: Path) -> None:
        """Read the file. `is_new`: nothing is known of before, so all that is there is to be taken as told."""
        self._path = path
        self._lock = threading.Lock()
        self._failing = False
        known = _read(path)
        self.is_new = known is None
        self._state = known or _State()
        for item in [item for item in self._state.waiting if item.sending]:
            _log.warning("%s: whether %r was told is not known; not sent again", item.channel, item.event.title)
            self._state.waiting.remove(item)

    def knows(self, key: str) -> bool:
        with self._lock:
            return key in self._state.told

    def told_at(self, key: str) -> float:
        """0.0 when it never was."""
        with self._lock:
            return self._state.told.get(key, 0.0)

    def add(self, events: list[Event], channels: dict[str, tuple[Channel, ...]]) -> None:
        """Remember the events for good, each to be sent to `channels` of its kind; durable when this returns."""
        if not events:
            return
        with self._lock:
            for event in events:
                self._state.told[event.key] = event.t
                self._state.waiting += [Waiting(str(channel), event) for channel in channels.get(event.kind, ())]
            self._drop_oldest()
            self._save()

    def baseline(self, keys: dict[str, float]) -> None:
        """Take these as told: they were there before anybody asked for them."""
        with self._lock:
            self._state.told.update(keys)
            self.is_new = False
            self._save()

    def next(self, channel: Channel, now: float) -> Waiting | None:
        """The oldest that is due. Order is kept: nothing overtakes one that is tried again."""
        with self._lock:
            mine = [item for item in self._state.waiting if item.channel == channel]
            return mine[0] if mine and mine[0].next_at <= now else None

    def channels_waiting(self) -> set[str]:
        with self._lock:
            return {item.channel for item in self._state.waiting}

    def begin(self, item: Waiting) -> None:
        """It may leave from now on."""
        with self._lock:
            item.sending = True
            self._save()

    def sent(self, item: Waiting) -> None:
        with self._lock:
            self._remove(item)
            self._state.trouble.pop(item.channel, None)
            self._save()

    def failed(self, item: Waiting, why: str, next_at: float | None) -> None:
        """Tried again at `next_at`; never with None."""
        with self._lock:
            item.sending, item.tries, item.next_at = False, item.tries + 1, next_at or 0.0
            if next_at is None:
                self._remove(item)
            self._state.trouble[item.channel] = why
            self._save()

    def drop_channel(self, channel: str) -> None:
        """It is not in the project file any more."""
        with self._lock:
            self._state.waiting = [item for item in self._state.waiting if item.channel != channel]
            self._state.trouble.pop(channel, None)
            self._save()

    def _remove(self, item: Waiting) -> None:
        self._state.waiting = [other for other in self._state.waiting if other is not item]

    def _drop_oldest(self) -> None:
        for channel in {item.channel for item in self._state.waiting}:
            mine = [item for item in self._state.waiting if item.channel == channel and not item.sending]
            for item in mine[: max(0, len(mine) - WAITING_MAX)]:
                self._remove(item)
                _log.warning("%s: over %d events wait; dropped %r", channel, WAITING_MAX, item.event.title)

    def _save(self) -> None:
        try:
            files.write_json(self._path, {"v": names.RECORD_VERSION, **dataclasses.asdict(self._state)}, mode=0o600)
            self._failing = False
        except OSError as error:
            if not self._failing:
                _log.warning("%s can't be written: %s", self._path.name, error.strerror)
            self._failing = True


def troubles(path: Path) -> dict[str, str]:
    """Channel → why events don't get through it, as the bridge last found."""
    known = _read(path)
    return known.trouble if known else {}


def _read(path: Path) -> _State | None:
    """None when it is not there or not ours to understand."""
    record = files.read_json(path)
    if not isinstance(record, dict) or record.get("v") != names.RECORD_VERSION:
        return None
    try:
        return _State(
            {str(key): float(value) for key, value in record["told"].items()},
            [_waiting(item) for item in record["waiting"]],
            {str(key): str(value) for key, value in record["trouble"].items()},
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def _waiting(item: dict[str, Any]) -> Waiting:
    return Waiting(**{**item, "event": Event(**item["event"])})
