"""Beside the bridge: tells the owner of what happened, through the channels of [notify], with or without a panel.

A thread looks for events, and each channel has one that sends. They wait for no part of the bridge and none waits for
them: what hangs is timed out, what fails is tried again, and `stop` leaves behind what does not end.
"""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path

from bridgehead import names
from bridgehead.errors import BridgeheadError
from run_control import notify_channels, project_file
from run_control.notify_channels import SendFailed
from run_control.notify_memory import Memory, Waiting
from run_control.notify_spec import Channel, NotifySpec
from run_control.notify_watch import Watcher
from run_control.project import Project

LOOK_EVERY_S = 3.0
FIRST_PAUSE_S = 5.0
MOST_PAUSE_S = 900.0
_GROWTH = 3.0
GIVE_UP_S = 24 * 3600.0  # older news are no news
_STOP_S = 2.0
_log = logging.getLogger(__name__)


class Notifier:
    """`start()`, and `stop()` in the end; neither raises nor waits for a receiver."""

    def __init__(
        self,
        project: Project,
        *,
        look_every_s: float = LOOK_EVERY_S,
        first_pause_s: float = FIRST_PAUSE_S,
    ) -> None:
        self._project = project
        self._look_every_s = look_every_s
        self._first_pause_s = first_pause_s
        self._watcher: Watcher | None = None
        self._memory: Memory | None = None
        self._spec = NotifySpec()
        self._seen_file = 0
        self._stopping = threading.Event()
        self._senders: dict[Channel, threading.Thread] = {}
        self._thread = threading.Thread(target=self._watch, name="notifier", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """What is being sent gets a moment; what waits is sent by the next bridge."""
        self._stopping.set()
        deadline = time.monotonic() + _STOP_S
        for thread in (self._thread, *self._senders.values()):
            if thread.is_alive():
                thread.join(max(0.0, deadline - time.monotonic()))

    # --- looking -----------------------------------------------------------------------------------------

    def _watch(self) -> None:
        while True:
            try:
                self._look()
            except (BridgeheadError, OSError) as error:
                _log.warning("notifications: %s", error)
            except Exception:  # noqa: BLE001 - the thread's edge: the bridge serves, and the next look comes
                _log.exception("notifications: unexpected")
            if self._stopping.wait(self._look_every_s):
                break
        if self._watcher is not None:
            self._watcher.close()

    def _look(self) -> None:
        if self._memory is None:
            self._memory = Memory(self._project.private / names.NOTIFIED)
        self._read_spec()
        if self._watcher is None:
            name = project_file.load(self._project.root).name
            self._watcher = Watcher(self._project, name, self._memory)
        events = self._watcher.look()
        self._memory.add(events, {str(kind): self._spec.channels for kind in self._spec.on})
        for name in self._memory.channels_waiting():
            self._attend(Channel(name), self._memory)

    def _read_spec(self) -> None:
        """Again whenever the file has changed; a mistake in it is told elsewhere, and leaves what was there."""
        changed = self._project.file.stat().st_mtime_ns
        if changed == self._seen_file:
            return
        self._seen_file = changed
        self._spec = project_file.notify(self._project.root)

    def _attend(self, channel: Channel, memory: Memory) -> None:
        """Have a thread send what waits for this channel; it ends by itself when nothing does."""
        if channel not in self._spec.channels:
            memory.drop_channel(channel)
            return
        known = self._senders.get(channel)
        if known is None or not known.is_alive():
            thread = threading.Thread(target=self._send_all, args=(channel, memory), name=f"{channel}", daemon=True)
            self._senders[channel] = thread
            thread.start()

    # --- sending -----------------------------------------------------------------------------------------

    def _send_all(self, channel: Channel, memory: Memory) -> None:
        while not self._stopping.is_set():
            item = memory.next(channel, time.time())
            if item is None:
                return  # the next look starts another thread when there is more, or when it is due
            try:
                _send(self._spec, channel, item, self._project.root, memory)
                memory.sent(item)
            except (BridgeheadError, OSError) as error:
                self._put_off(item, error, memory)
            except Exception as error:  # noqa: BLE001 - the thread's edge: one event is not worth the others
                _log.exception("%s: unexpected", channel)
                memory.failed(item, f"internal: {type(error).__name__}", None)

    def _put_off(self, item: Waiting, error: BridgeheadError | OSError, memory: Memory) -> None:
        words = error.in_one_line() if isinstance(error, BridgeheadError) else str(error)
        pause_s = min(self._first_pause_s * _GROWTH ** min(item.tries, 20), MOST_PAUSE_S)
        now = time.time()
        over = (isinstance(error, SendFailed) and error.final) or now + pause_s > item.event.t + GIVE_UP_S
        _log.warning("%s: %r was not told: %s%s", item.channel, item.event.title, words, "; given up" if over else "")
        memory.failed(item, words, None if over else now + pause_s)


def _send(spec: NotifySpec, channel: Channel, item: Waiting, root: Path, memory: Memory) -> None:
    notify_channels.send(spec, channel, item.event, root, lambda: memory.begin(item))
