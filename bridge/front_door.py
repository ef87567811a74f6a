"""The public address, watched from outside: proven before anybody is told of it, and again for as long as it serves.

The tunnel watches itself (`bridge/tunnels/`); here is what it can't see: a name that leads nowhere though the tunnel
says that it is connected, as after a laptop's sleep. A restart then helps, and costs a quick tunnel its name.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum

from bridge.probe import SETTLE_S, Probe, ProbeFailed
from bridge.tunnels.base import Restartable, SaysWhy, Tunnel
from bridge.tunnels.sleep import SleepWatch
from bridgehead.errors import BridgeheadError

_log = logging.getLogger(__name__)


class DoorState(StrEnum):
    PROBING = "probing"  # not proven yet, or not any more since a moment
    CONNECTED = "connected"
    DOWN = "down"


@dataclass(frozen=True)
class Standing:
    """How the way in is, since when (seconds since 1970), and what is wrong with it."""

    state: DoorState
    since: float
    note: str = ""


@dataclass(frozen=True)
class Times:
    """Seconds; tests shorten them."""

    tick_s: float = 2.0  # a new address and the end of a sleep are noticed after so long
    look_s: float = 30.0  # between two probes while all is well
    worried_s: float = 5.0  # while it is not
    down_after_s: float = 60.0  # failing for so long: it will not recover by itself
    patience_max_s: float = 900.0  # restarts that don't help: after 60, 120, 240 … up to this
    settle_s: float = SETTLE_S  # given to the very first address, which has to become known


class FrontDoor:
    """`await open(url)`, then `await keep()` until it is cancelled; `moved(url)` at any time, on the loop.

    `publish` is called with each address once it is proven; `told` after each look, also when nothing is new;
    `heard` says whether a VM got through lately: better evidence than our own look.
    """

    def __init__(
        self,
        tunnel: Tunnel,
        probe: Probe,
        *,
        publish: Callable[[str], Awaitable[None]],
        told: Callable[[Standing], None],
        heard: Callable[[], Awaitable[bool]],
        times: Times = Times(),
    ) -> None:
        self._tunnel, self._probe, self._times = tunnel, probe, times
        self._publish, self._told, self._heard = publish, told, heard
        self._url = self._published = ""
        self._moved = asyncio.Event()
        self._failing_since: float | None = None
        self._patience_s = times.down_after_s
        self.standing = Standing(DoorState.PROBING, time.time())

    async def open(self, url: str) -> None:
        """Prove and publish the first address. Raises ProbeFailed that says what answered instead."""
        self._url = self._url or url  # the tunnel may have moved already
        await self._probe.until_it_answers(
            self._url,
            deadline_s=self._times.settle_s,
            told=lambda failed: self._stand(DoorState.PROBING, note=failed.message),
        )
        await self._proven()

    def moved(self, url: str) -> None:
        """The tunnel has another address."""
        self._url = url
        self._moved.set()

    async def keep(self) -> None:
        """Look again and again; publish what is new, restart what does not recover."""
        clock, sleep = asyncio.get_running_loop().time, SleepWatch()
        due, planned_s = clock() + self._times.look_s, self._times.tick_s
        while True:
            moved = await self._pause(self._times.tick_s)
            if moved or sleep.woke(planned_s):
                due, self._failing_since = clock(), None
            planned_s = self._times.tick_s
            if clock() >= due:
                await self._look()
                planned_s += self._probe.timeout_s + 5.0  # so long may a look take without anybody having slept
                well = self.standing.state is DoorState.CONNECTED
                due = clock() + (self._times.look_s if well else self._times.worried_s)
            self._told(self.standing)

    async def _pause(self, pause_s: float) -> bool:
        """Whether the address has changed."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._moved.wait()
        moved = self._moved.is_set()
        self._moved.clear()
        return moved

    async def _look(self) -> None:
        try:
            await self._probe.ask(self._url)
        except ProbeFailed as failed:
            await self._failed(failed)
            return
        try:
            await self._proven()
        except (OSError, BridgeheadError) as error:  # a full disk, a damaged file: the next look tries again
            _log.warning("the address of the bridge can't be written down: %s", error)
            self._stand(DoorState.PROBING, note="the new address can't be written down on this machine")

    async def _proven(self) -> None:
        self._failing_since, self._patience_s = None, self._times.down_after_s
        if self._url != self._published:
            url = self._url
            await self._publish(url)
            self._published = url
        self._stand(DoorState.CONNECTED)

    async def _failed(self, failed: ProbeFailed) -> None:
        now = asyncio.get_running_loop().time()
        if self._failing_since is None:
            self._failing_since = now
        lasted_s = now - self._failing_since
        healthy = await asyncio.to_thread(self._tunnel.healthy)
        heard = await self._heard()
        lost = not heard and (not healthy or lasted_s >= self._times.down_after_s)
        known = self._tunnel.trouble() if isinstance(self._tunnel, SaysWhy) else ""
        self._stand(DoorState.DOWN if lost else DoorState.PROBING, note=known or failed.message)
        if healthy and not heard and lasted_s >= self._patience_s and isinstance(self._tunnel, Restartable):
            _log.warning("nothing gets through the tunnel for %.0f s: it is started anew", lasted_s)
            self._failing_since = now
            self._patience_s = min(self._patience_s * 2, self._times.patience_max_s)
            self._tunnel.restart()

    def _stand(self, state: DoorState, *, note: str = "") -> None:
        """Remember and tell; `since` is when this state began."""
        if note and note != self.standing.note:
            _log.warning("%s: %s", self._url, note)
        since = self.standing.since if state is self.standing.state else time.time()
        self.standing = Standing(state, since, note)
        self._told(self.standing)
