"""A VM near its cap, or one that a person gives back, gives its run and then itself away, and the next one goes on:
cell, daemons and bridge are real.
"""

from __future__ import annotations

import io
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from bridge import boot_archive
from bridge.ledger_rows import CommandRow
from bridge.project import ProjectView
from bridge_client import LiveBridge, live_bridge
from bridgehead import files, names
from bridgehead.names import RunState
from bridgehead.records import StageSpec
from support import wait_until
from vm_daemons import boot, cell, daemons, launch, lifetime, release
from vm_daemons.home import VmHome
from vm_run_support import kill_tagged, log_of, python

STAGE = """
import bridgehead, time
run = bridgehead.current_run()
saved = run.latest_checkpoint()
if saved is not None:
    print('went on at', saved.step)
    raise SystemExit(0)
print('up', flush=True)
step = 0
while not run.should_stop:
    step += 1
    time.sleep(0.02)
    if run.checkpoint_due(0, step):
        with run.checkpoint(step) as folder:
            (folder / 'state').write_text(str(step))
with run.checkpoint(step) as folder:
    (folder / 'state').write_text(str(step))
print('left at', step, flush=True)
run.exit_stopped()
"""


class Vms:
    """VM homes on one machine, as the bootstrap cell leaves them, one bridge and one store."""

    def __init__(self, live: LiveBridge, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._live = live
        self._root = root
        self._patch = monkeypatch
        self.homes: list[VmHome] = []
        self._project = ProjectView("demo", {"train": StageSpec("train", python(STAGE))})
        self.run_id = self.line("run:train").run_id
        monkeypatch.setenv(names.ENV_STORE, str(root / "drive"))
        monkeypatch.setenv(names.ENV_LOCAL_VM, f"test-{root.name}")
        monkeypatch.setattr(release, "LAST_WORD_S", 60.0)  # it ends once laptop and store have heard

    def boot(self) -> VmHome:
        home = VmHome(self._root / f"vm{len(self.homes)}")
        self._patch.setenv(names.ENV_HOME, str(home.root))
        home.create()
        archive = boot_archive.build()
        zipfile.ZipFile(io.BytesIO(archive.data)).extractall(home.ship(archive.sha256))
        self.homes.append(home)
        boot.boot(home, self._live.bridge.pairing(f"http://127.0.0.1:{self._live.bridge.port}").encode())
        return home

    def near_its_end(self, home: VmHome) -> None:
        """As if it had run for hours; of those 10 minutes in which a run is handed over, most are left."""
        rules = {"release_after_s": 0.5, "cap_h": 20_500 / 3600, "save_before_cap_s": 1200.0}
        home.update_record(vm_rules=rules, started_clock_s=lifetime.boot_clock_s() - 20_000)

    def line(self, text: str) -> CommandRow:
        """One more line of queue.txt, taken."""
        return self._live.bridge.ledger.take([(1, text)], self._project)[-1]

    def fate(self, line: CommandRow) -> CommandRow:
        return next(row for row in self._live.bridge.ledger.commands() if row.seq == line.seq)

    def row(self) -> CommandRow:
        return self._live.bridge.ledger.find_run(self.run_id)

    def log(self, home: VmHome) -> str:
        return log_of(home.run(self.run_id))

    def clean(self) -> None:
        for home in self.homes:
            daemons.stop(home)
            for run_dir in home.runs.iterdir():
                launch.kill(run_dir)
                kill_tagged(run_dir)


@pytest.fixture
def vms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Vms]:
    (tmp_path / "project").mkdir()
    with live_bridge(tmp_path / "project") as live:
        vms = Vms(live, tmp_path, monkeypatch)
        yield vms
        vms.clean()


@pytest.mark.timeout(300)  # two boots, a hand-over and two releases, on a machine that may be busy
def test_a_vm_near_its_cap_gives_its_run_and_itself_away_and_the_next_one_goes_on(vms: Vms) -> None:
    first = vms.boot()
    wait_until(lambda: "up" in vms.log(first), 60, what="the stage")  # with nothing to do it would go at once
    vms.near_its_end(first)
    beat(first)
    left_at = vms.log(first).split("left at ")[1].split()[0]
    assert not (first.run(vms.run_id) / names.EXIT).exists()
    row = vms.row()
    assert (row.state, row.attempt) == (RunState.LOST, 2) and "end of its life" in row.reason
    assert not any(daemons.running(first, name) for name in names.DAEMONS)

    second = vms.boot()
    wait_until(lambda: "went on at" in vms.log(second), 60, what="the stage on the next VM")
    second.update_record(vm_rules={"release_after_s": 0.5})
    beat(second)
    assert f"went on at {left_at}" in vms.log(second)
    assert vms.row().state == RunState.DONE


@pytest.mark.timeout(300)
def test_a_vm_that_a_person_gives_back_saves_its_run_for_the_next_one_and_goes(vms: Vms) -> None:
    """Without `release_after_s`, without a cap: the line alone."""
    first = vms.boot()
    wait_until(lambda: "up" in vms.log(first), 60, what="the stage")
    line = vms.line(f"@{first.record()['vm_id']} release:")
    beat(first)
    left_at = vms.log(first).split("left at ")[1].split()[0]
    assert not (first.run(vms.run_id) / names.EXIT).exists()
    assert (vms.row().state, vms.row().attempt) == (RunState.LOST, 2) and "was given back" in vms.row().reason
    told = vms.fate(line)
    assert (
        told.state == RunState.DONE and told.reason == f"asked for by line #{line.seq}; for the next VM: {vms.run_id}"
    )
    assert not any(daemons.running(first, name) for name in names.DAEMONS)

    second = vms.boot()
    wait_until(lambda: f"went on at {left_at}" in vms.log(second), 60, what="the stage on the next VM")


def beat(home: VmHome) -> None:
    """The cell of a VM, until it was given back; AssertionError after 100 s, with why it stays."""
    deadline = time.monotonic() + 100.0

    def pause(_: float) -> None:
        told = files.read_json(home.state / names.VM_LIFETIME) or {}
        assert time.monotonic() < deadline, f"the VM was not given back: {told.get('stays_because')}"
        time.sleep(0.2)

    cell.heartbeat_loop(home, pause)
