"""Of the long polls that wait, a change wakes those alone that it may bring something."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from ledger_support import PROJECT, Clock, ack, beat

from bridge.ledger import Ledger
from bridge.polls import Ask, WaitingPolls
from bridgehead.names import Ack


class Asked:
    """What the ledger is asked, and what it says: the VMs in `has` have news."""

    def __init__(self) -> None:
        self.rounds: list[list[Ask]] = []
        self.has: set[str] = set()
        self.fails = False

    async def __call__(self, asks: Sequence[Ask]) -> list[bool]:
        self.rounds.append(list(asks))
        await asyncio.sleep(0)
        if self.fails:
            raise OSError("the disk")
        return [vm in self.has for vm, _ in asks]


async def waits(polls: WaitingPolls, vm: str, ended: list[str], mark: tuple[int, int]) -> None:
    await polls.wait((vm, 0), mark, asyncio.get_running_loop().time() + 20)
    ended.append(vm)


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def test_a_change_wakes_the_poll_that_it_is_for_and_is_asked_about_once() -> None:
    async def run() -> None:
        asked, ended = Asked(), list[str]()
        polls = WaitingPolls(asked)
        tasks = [asyncio.create_task(waits(polls, f"vm-{n}", ended, polls.mark())) for n in range(3)]
        await settled()
        asked.has = {"vm-1"}
        polls.changed()
        await settled()
        assert ended == ["vm-1"]
        assert [sorted(asks) for asks in asked.rounds] == [[("vm-0", 0), ("vm-1", 0), ("vm-2", 0)]]
        polls.wake_all()
        await asyncio.gather(*tasks)
        assert sorted(ended) == ["vm-0", "vm-1", "vm-2"]

    asyncio.run(run())


def test_a_change_before_the_wait_is_not_missed() -> None:
    async def run() -> None:
        asked, ended = Asked(), list[str]()
        polls = WaitingPolls(asked)
        mark = polls.mark()
        asked.has = {"vm-1"}
        polls.changed()
        await settled()
        await asyncio.wait_for(waits(polls, "vm-1", ended, mark), 20)
        mark = polls.mark()
        polls.wake_all()
        await asyncio.wait_for(waits(polls, "vm-2", ended, mark), 20)
        assert ended == ["vm-1", "vm-2"]

    asyncio.run(run())


def test_a_change_while_the_ledger_is_asked_is_looked_at_again() -> None:
    async def run() -> None:
        asked, ended = Asked(), list[str]()
        polls = WaitingPolls(asked)
        task = asyncio.create_task(waits(polls, "vm-1", ended, polls.mark()))
        await settled()
        polls.changed()
        while not asked.rounds:
            await asyncio.sleep(0)
        asked.has = {"vm-1"}
        polls.changed()
        await asyncio.wait_for(task, 20)

    asyncio.run(run())


def test_a_ledger_that_can_not_be_asked_wakes_all() -> None:
    async def run() -> None:
        asked, ended = Asked(), list[str]()
        asked.fails = True
        polls = WaitingPolls(asked)
        task = asyncio.create_task(waits(polls, "vm-1", ended, polls.mark()))
        await settled()
        polls.changed()
        await asyncio.wait_for(task, 20)

    asyncio.run(run())


def test_a_wait_ends_at_its_deadline() -> None:
    async def run() -> None:
        polls = WaitingPolls(Asked())
        with pytest.raises(TimeoutError):
            await polls.wait(("vm-1", 0), polls.mark(), asyncio.get_running_loop().time() + 0.01)

    asyncio.run(run())


def test_the_ledger_knows_for_whom_there_is_news_and_asking_is_no_sign_of_life(tmp_path: Path) -> None:
    clock = Clock()
    ledger = Ledger(tmp_path / "ledger", clock=clock)
    for vm in ("vm-1", "vm-2"):
        ledger.deliver(vm, 0)
    asks = [("vm-1", 0), ("vm-2", 0)]
    assert ledger.news_of(asks) == [False, False]
    ledger.take([(1, "@vm-2 sync:")], PROJECT)
    assert ledger.news_of(asks) == [False, True]
    (command,) = ledger.deliver("vm-2", 0)
    assert ledger.news_of([("vm-2", 0), ("vm-2", command.delivery)]) == [True, False]
    clock.now += 100
    ledger.news_of(asks)
    assert {vm.last_seen for vm in ledger.vms()} == {1000.0}
    assert ledger.news_of([("vm-unknown", 0)]) == [True]
    ledger.close()


def test_a_sign_of_life_alone_is_no_durable_write_and_what_is_given_is(tmp_path: Path) -> None:
    """An fsync for each of many beats would hold up the lines that are to be given."""
    ledger = Ledger(tmp_path / "ledger", clock=Clock())

    def synchronous() -> int:
        with ledger._read() as db:
            return int(db.execute("PRAGMA synchronous").fetchone()[0])

    normal, full = 1, 2
    ledger.deliver("vm-1", 0)
    assert synchronous() == full  # not known before
    ledger.deliver("vm-1", 0)
    assert synchronous() == normal
    ledger.heartbeat(beat("vm-1"))
    assert synchronous() == normal
    ledger.take([(1, "sync:")], PROJECT)
    assert synchronous() == full
    ledger.heartbeat(beat("vm-1"))
    (command,) = ledger.deliver("vm-1", 0)
    assert synchronous() == full
    ledger.deliver("vm-1", command.delivery)
    assert synchronous() == normal
    ack(ledger, command, Ack.ACCEPTED)
    assert synchronous() == full
    ledger.close()
