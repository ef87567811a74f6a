"""Whole VMs (all daemons as processes) that share a store folder, and a laptop that comes and goes."""

from __future__ import annotations

import contextlib
import dataclasses
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from whole_vm import Vm

from bridge.ledger_rows import CommandRow
from bridge.project import ProjectView
from bridge_client import LiveBridge, live_bridge, project
from bridgehead import names, processes
from bridgehead.records import StageSpec, VmRules
from support import wait_until
from vm_daemons.journal import Journal, Step
from vm_run_support import python

LEDGER_PATIENCE_S = 7.0  # a heartbeat comes every 5 s
STEPS = 30
TRAINS = python(f"""
import bridgehead, json, time
run = bridgehead.current_run()
found = run.latest_checkpoint()
begin = json.loads((found.folder / "state.json").read_text())["step"] if found else 0
for step in range(begin + 1, {STEPS} + 1):
    time.sleep(0.12)
    print(f"attempt {{run.record.attempt}} step {{step}}", flush=True)
    if step % 3 == 0:
        with run.checkpoint(step) as folder:
            (folder / "state.json").write_text(json.dumps({{"step": step}}))
run.results({{"steps": {STEPS}}})
""")


class World:
    def __init__(self, root: Path) -> None:
        self.root = root / "project"
        self.root.mkdir()
        self.drive = root / "drive"
        self.drive.mkdir()
        self._folder = root
        self.port = 0
        self._live = contextlib.ExitStack()
        self.vms: list[Vm] = []
        self.bridge: LiveBridge | None = None

    def laptop_on(self) -> LiveBridge:
        view = dataclasses.replace(project(), vm=VmRules(lost_after_s=LEDGER_PATIENCE_S))
        self.bridge = self._live.enter_context(live_bridge(self.root, port=self.port, load_project=lambda: view))
        self.port = self.bridge.bridge.port
        return self.bridge

    def laptop_off(self) -> None:
        self._live.close()
        self.bridge = None

    def vm(self, name: str, live: LiveBridge) -> Vm:
        vm = Vm(self._folder / name, self.drive, live)
        self.vms.append(vm)
        return vm

    def queue(self, command: str = TRAINS) -> CommandRow:
        assert self.bridge is not None
        view = ProjectView("demo", {"pretrain": StageSpec("pretrain", command)})
        return self.bridge.bridge.ledger.take([(1, "run:pretrain")], view)[0]

    def row(self, run_id: str) -> CommandRow:
        assert self.bridge is not None
        return self.bridge.bridge.ledger.find_run(run_id)

    def checkpointed(self, run_id: str) -> bool:
        return any((self.drive / "demo/runs" / run_id / "checkpoints").glob(f"*/{names.SLOT_COMMIT}"))

    def arrived(self, run_id: str) -> list[str]:
        text = (self.root / names.IN_FOLDER / run_id / names.LOG).read_text()
        return [line for line in text.splitlines() if " step " in line]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    try:
        yield world
    finally:
        for vm in world.vms:
            vm.signal(signal.SIGCONT)
            vm.kill()
        world.laptop_off()


def _started(world: World) -> tuple[Vm, Vm, str]:
    """A trains and has a checkpoint in the store; B is booted and idle; the laptop is off."""
    live = world.laptop_on()
    first, second = world.vm("a", live), world.vm("b", live)
    row = world.queue()
    first.start()
    wait_until(lambda: world.row(row.run_id).vm_id == first.vm_id, 20, what="the first VM to take it")
    wait_until(lambda: world.checkpointed(row.run_id), 20, what="a checkpoint in the store")
    world.laptop_off()
    return first, second, row.run_id


def _check_log(lines: list[str]) -> None:
    """Each attempt's steps once and in their order, the last step reached, and none left out between attempts."""
    assert len(set(lines)) == len(lines)
    steps = [int(line.rpartition(" ")[2]) for line in lines]
    assert steps[0] == 1 and steps[-1] == STEPS
    assert all(after <= before + 1 for before, after in zip(steps, steps[1:], strict=False)), steps


def test_a_run_goes_on_after_its_vms_death_while_the_laptop_is_off(world: World) -> None:
    first, second, run_id = _started(world)
    wait_until(lambda: "step 9" in first.log(run_id), 20, what="some more steps that the laptop never sees")
    wait_until(lambda: "step 9" in _stored_log(world, run_id), 20, what="them in the store")
    first.die()
    second.start()
    wait_until(lambda: f"attempt 2 step {STEPS}" in second.log(run_id), 40, what="the end on the second VM")
    world.laptop_on()
    row = wait_until(lambda: (found := world.row(run_id)).ended and found, 30, what="the laptop's word")
    assert (row.state, row.vm_id, row.attempt) == ("done", second.vm_id, 2)
    _check_log(world.arrived(run_id))


def _stored_log(world: World, run_id: str) -> str:
    path = world.drive / "demo/runs" / run_id / names.LOG
    return path.read_text() if path.exists() else ""


def test_a_vm_that_was_frozen_while_another_took_its_run_over_ends_it_and_writes_nothing(world: World) -> None:
    first, second, run_id = _started(world)
    first.signal(signal.SIGSTOP)
    second.start()
    wait_until(lambda: "attempt 2 step" in second.log(run_id), 40, what="the take-over")
    first.signal(signal.SIGCONT)
    journal = first.home.journal
    wait_until(lambda: f'"{Step.ABANDONED}"' in journal.read_text(), 30, what="the first VM to give it up")
    tag = str(first.home.run(run_id))
    wait_until(lambda: not processes.tagged(names.ENV_RUN_DIR, tag), 20, what="the end of its stage")
    wait_until(lambda: f"attempt 2 step {STEPS}" in second.log(run_id), 40, what="the end on the second VM")
    world.laptop_on()
    row = wait_until(lambda: (found := world.row(run_id)).ended and found, 30, what="the laptop's word")
    assert (row.state, row.vm_id) == ("done", second.vm_id)
    assert not (first.home.run(run_id) / names.EXIT).exists()
    _check_log(world.arrived(run_id))


def test_while_both_beat_in_the_store_nobody_takes_anything(world: World) -> None:
    first, second, run_id = _started(world)
    second.start()
    wait_until(lambda: "step 24" in first.log(run_id), 60, what="three times the patience")
    assert Journal(second.home.journal).entries() == []
    world.laptop_on()
    row = wait_until(lambda: (found := world.row(run_id)).ended and found, 30, what="the end")
    assert (row.state, row.vm_id, row.attempt) == ("done", first.vm_id, 1)
    _check_log(world.arrived(run_id))


def test_with_the_laptop_there_a_dead_vms_run_goes_to_the_next_after_both_signs(world: World) -> None:
    live = world.laptop_on()
    first, second = world.vm("a", live), world.vm("b", live)
    row = world.queue()
    first.start()
    wait_until(lambda: world.checkpointed(row.run_id), 20, what="a checkpoint in the store")
    second.start()
    first.die()
    ended = wait_until(lambda: (found := world.row(row.run_id)).ended and found, 60, what="the end")
    assert (ended.state, ended.vm_id, ended.attempt) == ("done", second.vm_id, 2)
    assert [vm.state for vm in live.bridge.ledger.vms() if vm.vm_id == first.vm_id] == ["lost"]
    _check_log(world.arrived(row.run_id))
