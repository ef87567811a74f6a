"""Giving a VM back: which one is meant, what becomes of its runs, and the command that queues the line."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_process import bridgehead
from project_support import VM, Seeded

from bridgehead.errors import NotFoundError, UsageError
from bridgehead.names import Ack
from bridgehead.records import Heartbeat
from run_control import init, releasing

LINE = f"@{VM} release:"


@pytest.fixture
def seeded(tmp_path: Path) -> Iterator[Seeded]:
    project, _ = init.init(tmp_path / "watch")
    project.make_private()
    made = Seeded(project)
    made.beat(time.time())
    yield made
    made.ledger.close()


def _beat(seeded: Seeded, vm: str = VM, **more: object) -> None:
    seeded.ledger.heartbeat(Heartbeat(vm, "boot", 0.0, **{"store": {"ok": True}, **more}))  # type: ignore[arg-type]


def _started(seeded: Seeded, line: str) -> str:
    [run_id] = seeded.take(line)
    seeded.ack(run_id, Ack.STARTED)
    return run_id


def test_the_only_vm_is_meant_when_none_is_named(seeded: Seeded) -> None:
    plan = releasing.plan(seeded.project)
    assert (plan.line, plan.under_way, plan.warnings) == (LINE, [], [])


def test_of_several_one_has_to_be_named_and_a_beginning_will_do(seeded: Seeded) -> None:
    _beat(seeded, "vm-other")
    with pytest.raises(UsageError, match="2 VMs may be meant"):
        releasing.plan(seeded.project)
    assert releasing.plan(seeded.project, "vm-o").vm_id == "vm-other"


def test_one_that_is_not_there_is_said_with_the_nearest(seeded: Seeded) -> None:
    with pytest.raises(NotFoundError, match="no live VM") as caught:
        releasing.plan(seeded.project, "vm-abd")
    assert VM in caught.value.hint


def test_its_runs_go_on_where_there_is_another_vm_and_wait_where_there_is_none(seeded: Seeded) -> None:
    run_id = _started(seeded, "run:pretrain")
    alone = releasing.plan(seeded.project)
    assert alone.under_way == [run_id] and "goes on on the next VM" in alone.lines[0]
    assert "will wait until you pair one" in alone.warnings[0]
    _beat(seeded, "vm-other")
    both = releasing.plan(seeded.project, VM)
    assert both.lines[0] == f"{run_id} saves a checkpoint, stops here and goes on on vm-other" and both.warnings == []


def test_without_a_store_and_for_a_shell_command_the_vm_waits(seeded: Seeded) -> None:
    _beat(seeded, store={})
    run_id, shell = _started(seeded, "run:pretrain"), _started(seeded, "sh:bHM=")
    told = releasing.plan(seeded.project).lines
    assert told[0].startswith(f"{run_id} can't be handed over") and told[1].startswith(f"{shell} is a shell command")


def test_a_cell_that_does_not_run_is_a_warning(seeded: Seeded) -> None:
    _beat(seeded, cell_age_s=600.0)
    assert "run the cell again" in releasing.plan(seeded.project).warnings[0]


def test_the_command_shows_the_plan_and_asks_for_a_word_when_a_run_is_under_way(seeded: Seeded) -> None:
    run_id = _started(seeded, "run:pretrain")
    refused = bridgehead("vm", "release", cwd=seeded.project.root)
    assert refused.code == 2 and run_id in refused.err and "--yes" in refused.err
    shown = bridgehead("vm", "release", "--dry-run", cwd=seeded.project.root)
    assert f"{run_id} saves a checkpoint" in shown.out and f"would be queued: {LINE}" in shown.out
    assert LINE not in seeded.project.queue.read_text()
    sent = bridgehead("vm", "release", "--yes", "--json", cwd=seeded.project.root)
    assert sent.data["plan"]["under_way"] == [run_id] and sent.data["queued"]["line"] == LINE
    assert seeded.project.queue.read_text().count(LINE) == 1


def test_a_store_that_is_ill_just_now_is_a_warning_and_no_want_of_one(seeded: Seeded) -> None:
    _beat(seeded, store={"ok": False, "error": "it does not answer"})
    run_id = _started(seeded, "run:pretrain")
    plan = releasing.plan(seeded.project)
    assert plan.lines[0].startswith(f"{run_id} saves a checkpoint") and "its store is ill" in plan.warnings[1]
