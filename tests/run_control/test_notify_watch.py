"""Which events are told, and that each is told once."""

from __future__ import annotations

from pathlib import Path

import pytest
from project_support import NOW, VM, Seeded

from bridgehead import files, names
from bridgehead.names import Ack, RunState
from bridgehead.records import AckRecord
from run_control.notify_memory import Memory
from run_control.notify_watch import AGAIN_AFTER_S, LASTS_S, LOST_AGAIN_S, Watcher
from run_control.run_cost import STALLED_AFTER


class Night:
    """A watcher whose clock and alarms the test moves; what it finds is remembered as told."""

    def __init__(self, seeded: Seeded, path: Path) -> None:
        self.seeded = seeded
        self.path = path
        self.now = NOW
        self.alarms: list[str] = []
        self.restart()

    def restart(self) -> None:
        """Another bridge, with the same memory on disk."""
        self.memory = Memory(self.path)
        self._watcher = Watcher(
            self.seeded.project,
            "watch",
            self.memory,
            clock=lambda: self.now,
            find_alarms=lambda _: self.alarms,
        )

    def look(self, after_s: float = 0.0) -> list[tuple[str, str]]:
        """(kind, title) of what is new."""
        self.now += after_s
        events = self._watcher.look()
        self.memory.add(events, {})
        return [(event.kind, event.title) for event in events]

    def lose(self) -> None:
        self.seeded.ledger.mark_vm_gone(VM, "gone")


@pytest.fixture
def night(seeded: Seeded, tmp_path: Path) -> Night:
    made = Night(seeded, tmp_path / "notified.json")
    assert made.look() == []
    return made


def test_each_outcome_is_told_once_also_after_a_restart(night: Night) -> None:
    good, bad, stopped = night.seeded.take("run:pretrain", "run:pretrain epochs=2", "run:pretrain epochs=3")
    night.seeded.finish(good, RunState.DONE)
    night.seeded.finish(bad, RunState.FAILED, exit_code=1)
    night.seeded.finish(stopped, RunState.STOPPED)
    assert night.look() == [
        ("finished", f"watch: {good} done"),
        ("failed", f"watch: {bad} failed"),
        ("finished", f"watch: {stopped} stopped"),
    ]
    assert night.look(5) == []
    night.restart()
    assert night.look(5) == []


def test_what_ended_before_anybody_asked_is_not_told(seeded: Seeded, tmp_path: Path) -> None:
    [run_id] = seeded.take("run:pretrain")
    seeded.finish(run_id, RunState.DONE)
    assert Night(seeded, tmp_path / "notified.json").look() == []


def test_a_damaged_memory_tells_nothing_of_the_past(seeded: Seeded, tmp_path: Path) -> None:
    [run_id] = seeded.take("run:pretrain")
    seeded.finish(run_id, RunState.DONE)
    (tmp_path / "notified.json").write_text('{"v": 1, "told": []}')
    assert Night(seeded, tmp_path / "notified.json").look() == []


def test_an_outcome_that_came_while_no_bridge_ran_is_told_by_the_next(night: Night) -> None:
    [run_id] = night.seeded.take("run:pretrain")
    night.look()
    night.seeded.finish(run_id, RunState.DONE)
    night.restart()
    assert night.look() == [("finished", f"watch: {run_id} done")]


def test_a_lost_vm_is_told_and_a_new_loss_after_it_ran_again_too(night: Night) -> None:
    [run_id] = night.seeded.take("run:pretrain")
    night.seeded.ack(run_id, Ack.STARTED)
    night.lose()
    assert night.look() == [("lost", f"watch: {run_id} lost its VM")]
    assert night.look(LOST_AGAIN_S * 2) == []
    night.restart()
    assert night.look(LOST_AGAIN_S * 2) == []
    night.seeded.ledger.deliver("vm-other1", 0)
    row = night.seeded.ledger.find_run(run_id)
    assert row.vm_id == "vm-other1"
    night.seeded.ledger.ack(row.id, AckRecord("vm-other1", Ack.STARTED, row.attempt))
    assert night.look(1) == []
    night.seeded.ledger.mark_vm_gone("vm-other1", "gone")
    assert night.look(LOST_AGAIN_S) == [("lost", f"watch: {run_id} lost its VM")]


def _quiet(night: Night, interval_s: float) -> str:
    """A running run whose last step was made now, `interval_s` after the one before; its VM is heard of."""
    [run_id] = night.seeded.take("run:pretrain")
    night.seeded.ack(run_id, Ack.STARTED)
    night.seeded.status(run_id)
    path = night.seeded.project.run(run_id) / names.STATUS
    files.write_json(path, {**files.read_json(path), "progress_at": night.now, "interval_s": interval_s})
    return run_id


def _later(night: Night, seconds: float) -> list[str]:
    """What is told of standstills while the VM beats on and says nothing of the run."""
    found = []
    for _ in range(int(seconds // 30)):
        night.now += 30
        night.seeded.beat(night.now)
        found += [title for kind, title in night.look() if kind == "stalled"]
    return found


def test_a_run_that_lives_and_stands_still_is_told_once_also_after_a_restart(night: Night) -> None:
    run_id = _quiet(night, 60)
    assert _later(night, 60 * STALLED_AFTER) == []
    assert _later(night, 120) == [f"watch: {run_id} stands still"]
    night.restart()
    assert _later(night, 600) == []


def test_a_run_of_slow_steps_does_not_stand_still(night: Night) -> None:
    _quiet(night, 400)
    assert _later(night, 399 * STALLED_AFTER) == []


def test_a_silent_vm_is_no_standstill(night: Night) -> None:
    _quiet(night, 5)
    assert "stalled" not in [kind for kind, _ in (*night.look(3600), *night.look(60))]


def test_an_alarm_is_told_when_it_stays_and_again_only_when_it_comes_back_later(night: Night) -> None:
    night.alarms = ["the disk has 63 MiB free: nothing arrives. next: make room"]
    assert night.look() == []
    assert night.look(LASTS_S) == [("alarm", "watch needs you")]
    night.alarms = ["the disk has 61 MiB free: nothing arrives. next: make room"]
    assert night.look(AGAIN_AFTER_S * 2) == []
    night.restart()
    assert night.look() == [] and night.look(AGAIN_AFTER_S * 2) == []
    night.alarms, alarms = [], night.alarms
    assert night.look(60) == []
    night.alarms = alarms
    assert night.look(60) == []
    assert night.look(LASTS_S) == [("alarm", "watch needs you")]
