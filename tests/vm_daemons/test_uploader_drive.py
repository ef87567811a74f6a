"""Levels on the double of a mounted Drive, confirmed through the double of its API: never more than has arrived."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from store_support import save

from bridgehead import files, names
from doubles.drive_v3 import TOKEN, DriveServer
from doubles.drivefs_mount import DriveFsMount, why_not
from doubles.google_cloud import Cloud
from support import wait_until
from vm_daemons import uploader
from vm_daemons.home import VmHome
from vm_daemons.storage import levels
from vm_daemons.storage.store import Store
from vm_daemons.uploader import Uploader
from vm_run_support import run_folder, vm_home

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not())
RUN = "train-0001-abc123"


@pytest.fixture
def cloud(tmp_path: Path) -> Cloud:
    return Cloud(tmp_path / "cloud")


@pytest.fixture
def mount(cloud: Cloud, tmp_path: Path) -> Iterator[DriveFsMount]:
    with DriveFsMount(cloud, tmp_path / "mnt", seed=3) as mounted:
        yield mounted


@pytest.fixture
def home(mount: DriveFsMount, cloud: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[VmHome]:
    for name in ("STATE_EVERY_S", "MIRROR_EVERY_S", "CONFIRM_EVERY_S", "CANARY_AGAIN_S"):
        monkeypatch.setattr(uploader, name, 0.05)
    monkeypatch.setattr(uploader, "ILL_CANARY_S", 0.2)
    root = mount.root / "Bridgehead"
    root.mkdir()
    home = vm_home(tmp_path / "vm-a", store=root)
    home.journal.touch()
    with DriveServer(cloud) as server:
        home.update_record(store_spec={"kind": "mount", "endpoint": server.url})
        secrets = {"drive_credentials": json.dumps({"token": TOKEN})}
        files.write_json(home.state / names.VM_STORE_SECRETS, secrets, mode=0o600)
        running = Uploader(home)
        thread = threading.Thread(target=running.run, daemon=True)
        thread.start()
        yield home
        running.stop()
        thread.join(100)


def steps(run_dir: Path) -> dict[str, int]:
    return {level: item["step"] for level, item in levels.read(run_dir).get("levels", {}).items()}


def until(run_dir: Path, **expected: int) -> None:
    wait_until(lambda: steps(run_dir) == expected, 30, what=f"{expected}; there is {steps(run_dir)}")


def test_a_checkpoint_is_confirmed_once_drive_has_it_and_not_before(home: VmHome, mount: DriveFsMount) -> None:
    run_dir = run_folder(home, "x")
    save(run_dir, 10)
    until(run_dir, local=10, mounted=10, confirmed=10)
    mount.faults(hold=True)
    save(run_dir, 20)
    until(run_dir, local=20, mounted=20, confirmed=10)
    mount.faults(hold=False)
    until(run_dir, local=20, mounted=20, confirmed=20)


def test_what_the_mount_dropped_is_never_confirmed_and_the_next_vm_finds_what_was(
    home: VmHome, mount: DriveFsMount, tmp_path: Path
) -> None:
    run_dir = run_folder(home, "x")
    save(run_dir, 10)
    until(run_dir, local=10, mounted=10, confirmed=10)
    mount.faults(drop=1.0, only="*state.pt")
    save(run_dir, 20)
    until(run_dir, local=20, mounted=20, confirmed=10)
    mount.drain()
    assert steps(run_dir)["confirmed"] == 10
    mount.remount()  # what the next VM sees: the account alone
    other = vm_home(tmp_path / "vm-b", store=mount.root / "Bridgehead")
    other_dir = run_folder(other, "x", attempt=2)
    info = Store(other).restore(RUN, other_dir)
    assert info is not None and info.step == 10
    (passed,) = json.loads((other_dir / names.RESTORED).read_text())["passed_over"]
    assert (passed["step"], passed["steps_lost"]) == (20, 10) and "missing" in passed["why"]
