"""The long polls that wait. A change in the ledger wakes those alone that it may bring something.

Asking for each of 50 polls on its own, one after the other on the ledger's thread, took a tenth of a second for each
change (bench/load.py); all of them are asked for at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

Ask = tuple[str, int]  # VM, the last delivery that it has
Mark = tuple[int, int]
NewsOf = Callable[[Sequence[Ask]], Awaitable[list[bool]]]


@dataclass(eq=False)
class _Waiting:
    ask: Ask
    woken: asyncio.Event = field(default_factory=asyncio.Event)


class WaitingPolls:
    """Lives on one event loop."""

    def __init__(self, news_of: NewsOf) -> None:
        self._news_of = news_of
        self._waiting: set[_Waiting] = set()
        self._changes = self._alarms = 0
        self._look_again = False
        self._looking: asyncio.Task[None] | None = None

    def mark(self) -> Mark:
        """To be taken before the ledger is asked, so that no change falls between its answer and the wait."""
        return self._changes, self._alarms

    async def wait(self, ask: Ask, mark: Mark, deadline: float) -> None:
        """Until there may be something for this VM. Raises TimeoutError at `deadline` (of the loop's clock)."""
        changes, alarms = mark
        if alarms != self._alarms:
            return
        waiting = _Waiting(ask)
        self._waiting.add(waiting)
        if changes != self._changes:
            self._start_looking()
        try:
            async with asyncio.timeout_at(deadline):
                await waiting.woken.wait()
        finally:
            self._waiting.discard(waiting)

    def changed(self) -> None:
        """Something in the ledger is new."""
        self._changes += 1
        self._start_looking()

    def wake_all(self) -> None:
        """Whatever the ledger says: have each poll look again."""
        self._alarms += 1
        for waiting in self._waiting:
            waiting.woken.set()

    def _start_looking(self) -> None:
        self._look_again = True
        if self._looking is None or self._looking.done():
            self._looking = asyncio.get_running_loop().create_task(self._look())

    async def _look(self) -> None:
        """For those that wait now; what changes meanwhile is looked at in another round."""
        while self._look_again:
            self._look_again = False
            asked = [waiting for waiting in self._waiting if not waiting.woken.is_set()]
            try:
                news = await self._news_of([waiting.ask for waiting in asked]) if asked else []
            except Exception:  # noqa: BLE001 - the task's edge: a poll that asks for itself says what is wrong
                news = [True] * len(asked)
            for waiting, is_news in zip(asked, news, strict=True):
                if is_news:
                    waiting.woken.set()
