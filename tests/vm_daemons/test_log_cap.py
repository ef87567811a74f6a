"""A runaway log on the VM: the disk stays free, the stage writes on, and the laptop gets all that it can have."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from bridge_client import STAGE, LiveBridge, live_bridge, project
from bridgehead import names
from vm_daemons import log_cap
from vm_daemons.client import BridgeClient
from vm_daemons.uploads import GrowingUpload
from vm_support import make_run, paired_home

MIB = 2**20


def _can_punch(folder: Path) -> bool:
    path = folder / "probe"
    path.write_bytes(os.urandom(65536))
    relief = log_cap.relieve(path, 65536, 4096)
    path.unlink()
    return relief is not None


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    if not _can_punch(tmp_path):
        pytest.skip("this file system makes no holes")
    return tmp_path


def used(path: Path) -> int:
    return path.stat().st_blocks * 512


def test_below_the_cap_nothing_happens(folder: Path) -> None:
    log = folder / "log"
    log.write_bytes(os.urandom(MIB))
    assert log_cap.relieve(log, MIB, 2 * MIB) is None
    assert used(log) >= MIB


def test_what_the_laptop_has_goes_first(folder: Path) -> None:
    log = folder / "log"
    content = os.urandom(3 * MIB)
    log.write_bytes(content)
    relief = log_cap.relieve(log, 3 * MIB, 2 * MIB)
    assert relief is not None and relief.lost_bytes == 0
    assert used(log) <= 2 * MIB and log.stat().st_size == 3 * MIB
    assert log.read_bytes()[2 * MIB :] == content[2 * MIB :]  # half a cap stays for whoever looks on the VM


def test_a_stage_writes_on_as_if_nothing_had_been(folder: Path) -> None:
    log = folder / "log"
    with log.open("ab", buffering=0) as stage:
        stage.write(os.urandom(3 * MIB))
        log_cap.relieve(log, 3 * MIB, 2 * MIB)
        stage.write(b"the next line\n")
    assert log.read_bytes().endswith(b"the next line\n") and log.stat().st_size == 3 * MIB + 14


def test_where_no_holes_can_be_made_the_log_grows(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = folder / "log"
    log.write_bytes(os.urandom(3 * MIB))
    monkeypatch.setattr(log_cap, "_punch", lambda *_: False)
    assert log_cap.relieve(log, 3 * MIB, 2 * MIB) is None
    assert used(log) >= 3 * MIB


# --- with a laptop -------------------------------------------------------------------------------------------------


class Rig:
    def __init__(self, live: LiveBridge, root: Path) -> None:
        home = paired_home(root, live)
        self.client = BridgeClient(home)
        self.run_id = live.bridge.ledger.take([(1, f"run:{STAGE}")], project())[0].run_id
        self.client.poll(0, 0)
        self.log = make_run(home, self.run_id) / names.LOG
        self.arrived = live.arrivals / self.run_id / names.LOG

    def growing(self) -> GrowingUpload:
        return GrowingUpload(self.client, self.run_id, 1, self.log, names.LOG)


@pytest.fixture
def rig(folder: Path) -> Iterator[Rig]:
    root = folder / "project"
    root.mkdir()
    with live_bridge(root) as live:
        yield Rig(live, folder / "vm")


def ship_all(growing: GrowingUpload) -> None:
    while growing.ship():
        pass


def test_the_laptop_gets_every_byte_of_a_log_whose_beginning_is_gone_here(rig: Rig) -> None:
    content = os.urandom(3 * MIB)
    rig.log.write_bytes(content)
    ship_all(rig.growing())
    growing = rig.growing()
    line = growing.relieve(2 * MIB)
    assert "lies on the laptop alone" in line
    with rig.log.open("ab") as log:
        log.write(b"more\n")
    ship_all(growing)
    ship_all(rig.growing())  # a restarted daemon
    assert rig.arrived.read_bytes() == content + b"more\n"


def test_what_was_dropped_while_the_laptop_was_away_is_passed_over_and_never_sent_as_zeros(rig: Rig) -> None:
    first, rest = os.urandom(MIB), os.urandom(9 * MIB)
    rig.log.write_bytes(first)
    growing = rig.growing()
    ship_all(growing)
    with rig.log.open("ab") as log:
        log.write(rest)
    line = growing.relieve(4 * MIB)
    assert "were dropped" in line and used(rig.log) <= 4 * MIB
    ship_all(growing)
    assert rig.arrived.read_bytes() == first + rest[-2 * MIB :]


def test_a_restarted_daemon_does_not_send_the_hole_either(rig: Rig) -> None:
    rig.log.write_bytes(os.urandom(MIB))
    ship_all(rig.growing())
    with rig.log.open("ab") as log:
        log.write(os.urandom(9 * MIB))
    rig.growing().relieve(4 * MIB)
    ship_all(rig.growing())
    assert rig.arrived.stat().st_size == 3 * MIB
