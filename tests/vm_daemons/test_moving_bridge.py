"""The bridge's address changes under a whole VM, whose run goes on: it is found again, and everything arrives once."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from whole_vm import Vm

from bridge.project import ProjectView
from bridge_client import LiveBridge, live_bridge, project
from bridgehead import names
from bridgehead.announcement import Announcement
from bridgehead.records import StageSpec
from chaos.proxy import AWAY, Mode, Proxy
from run_control.announce import Announcer
from run_control.project import Project
from support import wait_until
from vm_daemons import address, cell
from vm_run_support import exit_of, python

FOUND_S = 60.0  # ten seconds of silence, a look every fifteen, and a machine that is busy with other things
WORKS = python("""
import os, time
print("up", flush=True)
n = 0
while not os.path.exists(os.environ["BRIDGEHEAD_HOME"] + "/payload/go"):
    n += 1
    print(f"step {n}", flush=True)
    time.sleep(0.1)
print("done", flush=True)
""")


class Laptop:
    """One project folder; its bridges come and go, each at a port of its own."""

    def __init__(self, root: Path) -> None:
        self.project = Project(root)
        self.live: LiveBridge | None = None
        self._up = contextlib.ExitStack()

    def begin(self) -> LiveBridge:
        self.live = self._up.enter_context(live_bridge(self.project.root))
        return self.live

    def end(self) -> None:
        self._up.close()
        self.live = None

    def announce(self, url: str = "") -> None:
        """As the bridge's process does."""
        assert self.live is not None
        bridge = self.live.bridge
        announcer = Announcer(self.project, bridge.address, bridge.keys.active, load=project)
        self._up.callback(announcer.stop)
        announcer.announce(url or f"http://127.0.0.1:{bridge.port}")

    def queue(self) -> str:
        assert self.live is not None
        view = ProjectView("demo", {"train": StageSpec("train", WORKS)})
        return self.live.bridge.ledger.take([(1, "run:train")], view)[0].run_id

    def arrived(self, run_id: str) -> list[str]:
        path = self.project.run(run_id) / names.LOG
        return path.read_text().splitlines() if path.exists() else []

    def await_end(self, run_id: str, vm: Vm) -> None:
        """The ack came, in the first attempt, and the log is the VM's own to the last byte."""
        ledger = self.live.bridge.ledger if self.live is not None else None
        assert ledger is not None
        row = wait_until(lambda: (found := ledger.find_run(run_id)).ended and found, FOUND_S, what="the ack")
        assert (row.state, row.vm_id, row.attempt) == (names.RunState.DONE, vm.vm_id, 1)
        log = self.project.run(run_id) / names.LOG
        assert log.read_bytes() == (vm.home.run(run_id) / names.LOG).read_bytes()
        steps = [line for line in self.arrived(run_id) if line.startswith("step ")]
        assert steps == [f"step {n}" for n in range(1, len(steps) + 1)]


@pytest.fixture
def laptop(tmp_path: Path) -> Iterator[Laptop]:
    (tmp_path / "project").mkdir()
    laptop = Laptop(tmp_path / "project")
    try:
        yield laptop
    finally:
        laptop.end()


@pytest.fixture
def vms() -> Iterator[list[Vm]]:
    vms: list[Vm] = []
    yield vms
    for vm in vms:
        vm.kill()


def _runs(laptop: Laptop, vm: Vm) -> str:
    """The VM works at a run, and its log arrives."""
    run_id = laptop.queue()
    vm.start()
    wait_until(lambda: "step 5" in laptop.arrived(run_id), FOUND_S, what="the run's log on the laptop")
    return run_id


def _go(vm: Vm) -> None:
    (vm.home.payload / "go").touch()


def test_a_new_address_is_found_in_the_store_and_nothing_is_lost(laptop: Laptop, tmp_path: Path, vms: list[Vm]) -> None:
    drive = laptop.project.drive
    live = laptop.begin()
    drive.mkdir()
    laptop.announce()
    first = live.bridge.address.newest()
    assert first is not None
    vm = Vm(tmp_path / "vm", drive, live)
    vms.append(vm)
    assert vm.home.pairing().seq == first.seq
    run_id = _runs(laptop, vm)
    key_id, key = live.bridge.keys.current()
    laptop.end()

    # Before the laptop is back, somebody who can write into the store leaves an address that it never signed.
    forged = Announcement("demo", "http://127.0.0.1:9", first.seq + 1000, 1.0).signed(bytes(32))
    (drive / "demo" / names.STORE_ADDRESS / f"{key_id}.json").write_text(json.dumps(forged))
    log = vm.home.state / f"{names.UPLOADER}.log"
    wait_until(lambda: "signature is wrong" in log.read_text(), FOUND_S, what="the refusal of the forged one")
    assert vm.home.pairing().url == first.url

    laptop.begin()
    laptop.announce()
    assert laptop.live is not None and laptop.live.bridge.port != live.bridge.port
    url = f"http://127.0.0.1:{laptop.live.bridge.port}"
    wait_until(lambda: vm.home.pairing().url == url, FOUND_S, what="the new address")
    seen = len(laptop.arrived(run_id))
    wait_until(lambda: len(laptop.arrived(run_id)) > seen, FOUND_S, what="more of the log")
    _go(vm)
    laptop.await_end(run_id, vm)

    # What the store held of the first address, put there again.
    vm.kill()
    second = laptop.live.bridge.address.newest()
    assert second is not None and second.seq > first.seq
    laptop.end()
    (drive / "demo" / names.STORE_ADDRESS / f"{key_id}.json").write_text(json.dumps(first.signed(key)))
    vm.start()
    wait_until(lambda: "is older than" in log.read_text(), FOUND_S, what="the refusal of the old one")
    assert vm.home.pairing().url == url and log.read_text().count("is older than") == 1


def test_a_new_address_is_told_by_a_bridge_that_still_answers(laptop: Laptop, tmp_path: Path, vms: list[Vm]) -> None:
    live = laptop.begin()
    old_way = Proxy()
    old_way.start()
    old_way.stand_before(live.bridge.port)
    old_url = f"http://{AWAY}:{live.bridge.port}"
    try:
        laptop.announce(old_url)
        vm = Vm(tmp_path / "vm", None, live, old_url)
        vms.append(vm)
        run_id = _runs(laptop, vm)
        laptop.announce()
        url = f"http://127.0.0.1:{live.bridge.port}"
        wait_until(lambda: vm.home.pairing().url == url, FOUND_S, what="the new address, by a hint")
        old_way.set_mode(Mode.CUT)
        seen = len(laptop.arrived(run_id))
        wait_until(lambda: len(laptop.arrived(run_id)) > seen, FOUND_S, what="more of the log, by the new way")
        _go(vm)
        laptop.await_end(run_id, vm)
        beat = live.bridge.ledger.vms()[0].heartbeat
        newest = live.bridge.address.newest()
        assert newest is not None and beat["address_seq"] == newest.seq
    finally:
        old_way.stop()


def test_with_neither_the_run_goes_on_says_what_it_waits_for_and_a_newer_code_brings_everything(
    laptop: Laptop, tmp_path: Path, vms: list[Vm]
) -> None:
    live = laptop.begin()
    laptop.announce()
    code = live.bridge.pairing(f"http://127.0.0.1:{live.bridge.port}")
    vm = Vm(tmp_path / "vm", None, live)
    vms.append(vm)
    run_id = _runs(laptop, vm)
    laptop.end()
    run_dir = vm.home.run(run_id)
    line = run_dir / names.STATUS_LINE
    told = f"waits for the laptop: no answer from 127.0.0.1:{live.bridge.port} since"
    wait_until(lambda: told in line.read_text(), FOUND_S, what="what the VM waits for, in its status")
    assert told in cell.summary(vm.home) and code.encode() not in line.read_text()
    _go(vm)
    wait_until((run_dir / names.EXIT).exists, FOUND_S, what="the end of the run without the laptop")
    assert exit_of(run_dir).state is names.RunState.DONE

    back = laptop.begin()
    laptop.announce()
    vm.home.save_pairing(back.bridge.pairing(f"http://127.0.0.1:{back.bridge.port}"))  # the cell, with the newest code
    laptop.await_end(run_id, vm)
    vm.home.save_pairing(address.newest(vm.home, code))  # and an open tab that runs its old code again
    assert vm.home.pairing().url == f"http://127.0.0.1:{back.bridge.port}"
