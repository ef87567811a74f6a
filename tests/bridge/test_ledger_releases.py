"""`@vm release:` in the ledger: who can be asked, what the VM gets from then on, and when the line is done."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bridge.ledger import Ledger
from bridge.ledger_rows import REJECTED, CommandRow
from bridge.project import ProjectView
from bridgehead.names import Ack, RunState
from bridgehead.records import AckRecord, Heartbeat, StageSpec

VM, OTHER = "vm-one", "vm-two"
LINE = f"@{VM} release:"


class Rig:
    def __init__(self, path: Path) -> None:
        self.ledger = Ledger(path)
        self._project = ProjectView("demo", {"train": StageSpec("train", "python train.py")})
        self._count = 0

    def take(self, text: str) -> CommandRow:
        self._count += 1
        return self.ledger.take([(self._count, text)], self._project)[-1]

    def beat(self, vm: str = VM, **lifetime: object) -> None:
        self.ledger.heartbeat(Heartbeat(vm, "boot", 0.0, lifetime=lifetime))

    def row(self, taken: CommandRow) -> CommandRow:
        return next(row for row in self.ledger.commands() if row.seq == taken.seq)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path / "ledger.db")
    made.beat()
    yield made
    made.ledger.close()


def test_it_goes_to_that_vm_alone(rig: Rig) -> None:
    rig.beat(OTHER)
    taken = rig.take(LINE)
    assert rig.ledger.deliver(OTHER, 0) == []
    [command] = rig.ledger.deliver(VM, 0)
    assert (command.verb, command.seq) == ("release", taken.seq)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("release:", "which VM"),
        (f"{LINE} now", "nothing after it"),
        ("@vm-none release:", "has ever reported"),
        ("@vm-on release:", "did you mean vm-one"),
    ],
)
def test_a_line_that_names_no_vm_there_is_rejected(rig: Rig, text: str, why: str) -> None:
    taken = rig.take(text)
    assert taken.state == REJECTED and why in taken.reason


def test_a_vm_that_is_gone_can_not_be_given_back(rig: Rig) -> None:
    rig.ledger.mark_vm_gone(VM, "stopped")
    taken = rig.take(LINE)
    assert taken.state == REJECTED and "nothing to give back" in taken.reason


def test_asked_twice_the_second_line_is_rejected(rig: Rig) -> None:
    first = rig.take(LINE)
    second = rig.take(LINE)
    assert second.state == REJECTED and f"line #{first.seq}" in second.reason


def test_from_then_on_the_vm_gets_nothing_new_and_another_one_does(rig: Rig) -> None:
    rig.take(LINE)
    assert len(rig.ledger.deliver(VM, 0)) == 1
    run = rig.take("run:train")
    assert [command.verb for command in rig.ledger.deliver(VM, 0)] == ["release"]
    rig.beat(OTHER)
    assert [command.run_id for command in rig.ledger.deliver(OTHER, 0)] == [run.run_id]


def test_it_is_done_with_the_last_word_of_the_vm(rig: Rig) -> None:
    taken = rig.take(LINE)
    [command] = rig.ledger.deliver(VM, 0)
    rig.ledger.ack(command.id, AckRecord(VM, Ack.STARTED, 1))
    assert rig.row(taken).state == RunState.RUNNING
    rig.beat(stays_because="train-0002-abcdef is on its way to the next VM")
    assert rig.row(taken).state == RunState.RUNNING
    rig.beat(released=True, released_because="asked for by line #1")
    assert (rig.row(taken).state, rig.row(taken).reason) == (RunState.DONE, "asked for by line #1")


def test_a_vm_that_dies_on_the_way_leaves_a_line_that_says_so(rig: Rig) -> None:
    taken = rig.take(LINE)
    rig.ledger.deliver(VM, 0)
    rig.ledger.mark_vm_gone(VM, "killed")
    assert rig.row(taken).state == RunState.FAILED and "killed" in rig.row(taken).reason


def test_what_it_hands_over_says_that_it_was_given_back(rig: Rig) -> None:
    run = rig.take("run:train")
    rig.ledger.deliver(VM, 0)
    rig.take(LINE)
    rig.beat(release_asked=True, handed_over=[run.run_id])
    assert rig.row(run).state == RunState.LOST and rig.row(run).reason == f"{VM} was given back"
