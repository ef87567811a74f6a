"""Checkpoints in Google Drive, through its API and through a mount that misbehaves: confirmed means confirmed."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from bridgehead import checkpoints, names
from bridgehead.errors import BridgeheadError, StoreFull
from bridgehead.records import StoreSpec
from doubles.drive_v3 import DriveServer
from doubles.drivefs_mount import DriveFsMount, why_not
from doubles.google_cloud import Cloud
from drive_rig import drive_api, quick, token_file
from vm_daemons.storage.confirm import SecondLook
from vm_daemons.storage.drive_api import DriveApi
from vm_daemons.storage.store import Store
from vm_run_support import run_folder, vm_home

RUN = "train-0001-abc123"


@pytest.fixture
def cloud(tmp_path: Path) -> Cloud:
    return Cloud(tmp_path / "cloud")


@pytest.fixture
def server(cloud: Cloud) -> Iterator[DriveServer]:
    with DriveServer(cloud) as running:
        yield running


def save(run_dir: Path, step: int) -> bytes:
    root, content = run_dir / names.CHECKPOINTS, os.urandom(40_000)
    with checkpoints.staging(root) as staged:
        (staged / "state.pt").write_bytes(content)
        checkpoints.commit(staged, root, step, {"epoch": step})
    return content


def check(restored: Path, step: int, content: dict[int, bytes]) -> int:
    assert (restored / names.CHECKPOINTS / f"step-{step:08d}" / "state.pt").read_bytes() == content[step]
    return step


def test_a_run_goes_on_from_what_the_api_confirmed(server: DriveServer, cloud: Cloud, tmp_path: Path) -> None:
    credentials = token_file(tmp_path)
    home = vm_home(tmp_path / "vm-a")
    home.update_record(store_spec=StoreSpec(kind="drive", endpoint=server.url).to_json())
    run_dir = run_folder(home, "python train.py")
    store = Store(home, lambda: drive_api(server, credentials))
    content = {}
    for step in (10, 20, 30, 40, 50, 60):
        content[step] = save(run_dir, step)
        server.fail_next("upload", cut="after")
        info = store.mirror(run_dir)
        assert info is not None and info.step == step
    trash = cloud.usage().trashed
    assert trash == 0, "what was replaced is gone for good"
    assert cloud.usage().used < 5 * 45_000, "and only a few are kept"

    later = vm_home(tmp_path / "vm-b")
    later.update_record(store_spec=StoreSpec(kind="drive", endpoint=server.url).to_json())
    later_run = run_folder(later, "python train.py", attempt=2)
    found = Store(later, lambda: drive_api(server, credentials)).restore(RUN, later_run)
    assert found is not None and check(later_run, found.step, content) == 60


def test_a_full_drive_keeps_the_checkpoints_that_it_has(server: DriveServer, cloud: Cloud, tmp_path: Path) -> None:
    home = vm_home(tmp_path / "vm-a")
    home.update_record(store_spec=StoreSpec(kind="drive", endpoint=server.url).to_json())
    run_dir = run_folder(home, "python train.py")
    store = Store(home, lambda: drive_api(server, token_file(tmp_path)))
    content = {10: save(run_dir, 10)}
    store.mirror(run_dir)
    cloud.set_quota(cloud.usage().used + 1000)
    content[20] = save(run_dir, 20)
    with pytest.raises(StoreFull):
        store.mirror(run_dir)
    later = vm_home(tmp_path / "vm-b")
    later_run = run_folder(later, "python train.py", attempt=2)
    later.update_record(store_spec=StoreSpec(kind="drive", endpoint=server.url).to_json())
    found = Store(later, lambda: drive_api(server, token_file(tmp_path))).restore(RUN, later_run)
    assert found is not None and check(later_run, found.step, content) == 10


@pytest.mark.skipif(bool(why_not()), reason=why_not())
@pytest.mark.parametrize("seed", [1, 2])
def test_what_was_confirmed_through_a_bad_mount_is_there_for_the_next_vm(
    server: DriveServer, cloud: Cloud, tmp_path: Path, seed: int
) -> None:
    faults = {"drop": 0.15, "zero": 0.15, "duplicate": 0.15, "reorder": True, "delay_s": (0.0, 0.2), "only": "step-*"}
    mount = DriveFsMount(cloud, tmp_path / "drive", seed=seed, **faults)
    content, confirmed = {}, 0
    with mount:
        folder = mount.root / "Bridgehead"
        folder.mkdir()
        home = vm_home(tmp_path / "vm-a", store=folder)
        run_dir = run_folder(home, "python train.py")
        store = Store(home)
        spec = StoreSpec(endpoint=server.url)
        second = SecondLook(quick(DriveApi.for_mount(folder, spec, token_file(tmp_path))))
        for step in range(10, 70, 10):
            content[step] = save(run_dir, step)
            store.mirror(run_dir)
            if step % 20 == 0:
                mount.drain()
            store.confirm(run_dir, second)
            known = store.known(run_dir)
            if known is not None and known.confirmed is not None:
                confirmed = known.confirmed.step
        assert confirmed, "some got through"
        mount.kill()
        mount.remount(drop=0.0, zero=0.0, duplicate=0.0)
        later = vm_home(tmp_path / "vm-b", store=folder)
        later_run = run_folder(later, "python train.py", attempt=2)
        found = Store(later).restore(RUN, later_run)
        assert found is not None and check(later_run, found.step, content) >= confirmed


@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_a_mount_that_dies_in_the_middle_of_a_save(cloud: Cloud, tmp_path: Path) -> None:
    with DriveFsMount(cloud, tmp_path / "drive") as mount:
        folder = mount.root / "Bridgehead"
        folder.mkdir()
        home = vm_home(tmp_path / "vm-a", store=folder)
        run_dir = run_folder(home, "python train.py")
        store = Store(home)
        content = {10: save(run_dir, 10)}
        store.mirror(run_dir)
        mount.drain()
        content[20] = save(run_dir, 20)
        mount.faults(die_after_bytes=20_000)
        with pytest.raises(BridgeheadError):
            store.mirror(run_dir)
        mount.remount(die_after_bytes=0)
        with contextlib.suppress(BridgeheadError):
            store.mirror(run_dir)
        info = store.mirror(run_dir)
        assert info is not None and info.step == 20, "it catches up"
        mount.drain()
        mount.remount()
        later = vm_home(tmp_path / "vm-b", store=folder)
        later_run = run_folder(later, "python train.py", attempt=2)
        found = Store(later).restore(RUN, later_run)
        assert found is not None and check(later_run, found.step, content) == 20


@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_what_made_room_for_newer_checkpoints_weighs_next_to_nothing_in_the_trash(cloud: Cloud, tmp_path: Path) -> None:
    with DriveFsMount(cloud, tmp_path / "drive") as mount:
        folder = mount.root / "Bridgehead"
        folder.mkdir()
        home = vm_home(tmp_path / "vm-a", store=folder)
        run_dir = run_folder(home, "python train.py")
        store = Store(home)
        content = {}
        for step in range(10, 130, 10):
            content[step] = save(run_dir, step)
            store.mirror(run_dir)
            mount.drain()
        assert cloud.usage().trashed < 40_000, "not one of the eight checkpoints that went"
        assert cloud.usage().used < 5 * 45_000
        slots = (folder / "demo" / names.STORE_RUNS / RUN / names.CHECKPOINTS).iterdir()
        assert all(len(list(slot.iterdir())) <= 6 for slot in slots), "what was emptied goes when its slot is next used"
        later = vm_home(tmp_path / "vm-b", store=folder)
        found = Store(later).restore(RUN, run_folder(later, "python train.py", attempt=2))
        assert found is not None and check(later.run(RUN), found.step, content) == 120
