"""The uploader on a real home and a store that the test controls: what climbs, what is told, and what never waits."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from publish_support import payload, published_by
from store_support import Faulty, save

from bridgehead import files, names
from bridgehead.errors import StoreDenied, StoreFull, StoreGone
from bridgehead.records import VmRules
from support import wait_until
from vm_daemons import gauges, mounting, uploader
from vm_daemons.home import VmHome
from vm_daemons.storage import drive_cache, levels, publish, store_slots, store_state
from vm_daemons.storage.objects import ObjectStore, Stored
from vm_daemons.storage.store import Store
from vm_daemons.uploader import Uploader
from vm_run_support import run_folder, vm_home
from vm_support import end_run

RUN = "train-0001-abc123"
OTHER = "other-0002-abc123"


@pytest.fixture
def drive(tmp_path: Path) -> Path:
    folder = tmp_path / "drive"
    folder.mkdir()
    return folder


@pytest.fixture
def home(tmp_path: Path, drive: Path) -> VmHome:
    home = vm_home(tmp_path / "vm-a", store=drive)
    home.journal.touch()
    return home


@pytest.fixture
def run_dir(home: VmHome) -> Path:
    return run_folder(home, "python train.py")


@pytest.fixture
def start(home: VmHome, drive: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Uploader]]:
    for name in ("STATE_EVERY_S", "MIRROR_EVERY_S", "CONFIRM_EVERY_S", "CANARY_AGAIN_S", "PUBLISH_EVERY_S"):
        monkeypatch.setattr(uploader, name, 0.03)
    monkeypatch.setattr(uploader, "ILL_CANARY_S", 0.1)
    monkeypatch.setattr(uploader, "SHIPMENTS_EVERY_S", 0.1)
    stops: list[Callable[[], object]] = []

    def begin(store: ObjectStore | None = None, second: Callable[[], ObjectStore | None] | None = None) -> Uploader:
        made = Uploader(home, choose=(lambda: store) if store is not None else None, second=second)
        thread = threading.Thread(target=made.run, daemon=True)
        thread.start()
        stops.extend([made.stop, lambda: thread.join(100)])
        return made

    yield begin
    for stop in stops:
        stop()


def state(home: VmHome) -> dict[str, Any]:
    return files.read_json(home.state / names.VM_STORE_STATE) or {}


def steps(run_dir: Path) -> dict[str, int]:
    return {level: item["step"] for level, item in levels.read(run_dir).get("levels", {}).items()}


def until(run_dir: Path, *, timeout_s: float = 20.0, **expected: int) -> None:
    wait_until(lambda: steps(run_dir) == expected, timeout_s, what=f"{expected}; there is {steps(run_dir)}")


# --- levels -----------------------------------------------------------------------------------------------


def test_a_checkpoint_climbs_and_each_level_is_written_down(
    home: VmHome, run_dir: Path, drive: Path, start: Callable[..., Uploader]
) -> None:
    arrived: set[str] = set()

    class Api(Faulty):
        """The drive's other end: it holds what has been uploaded by now."""

        def find(self, key: str) -> list[Stored]:
            step = store_slots_step(key)
            return super().find(key) if step in arrived or step == "" else []

    def store_slots_step(key: str) -> str:
        name = key.rpartition("/")[2]
        return name[5:13] if name.startswith("step-") else ""

    start(second=lambda: Api(drive, proves=True))
    save(run_dir, 10)
    until(run_dir, local=10, mounted=10)
    arrived.add("00000010")
    until(run_dir, local=10, mounted=10, confirmed=10)
    save(run_dir, 20)
    until(run_dir, local=20, mounted=20, confirmed=10)
    told = levels.read(run_dir)
    assert told["confirmed_by"] == "folder" and told["store"] == {"kind": "mount", "where": str(drive)}
    assert told["levels"]["confirmed"]["saved_at"] < told["levels"]["mounted"]["saved_at"]
    assert told["levels"]["mounted"]["at"] >= told["levels"]["mounted"]["saved_at"]
    assert not told["settled"]


def test_an_ended_run_is_settled_once_everything_has_been_seen(
    home: VmHome, run_dir: Path, drive: Path, start: Callable[..., Uploader]
) -> None:
    save(run_dir, 10)
    end_run(run_dir)
    start(second=lambda: Faulty(drive, proves=True))
    wait_until(lambda: levels.read(run_dir).get("settled"), 20, what="a settled run")
    told = levels.read(run_dir)
    assert (told["complete_attempt"], told["complete_level"]) == (1, "confirmed")
    assert steps(run_dir) == {"local": 10, "mounted": 10, "confirmed": 10}


def test_without_credentials_nothing_is_confirmed_and_nobody_waits_for_it(
    home: VmHome, run_dir: Path, drive: Path, start: Callable[..., Uploader]
) -> None:
    class Expired(Faulty):
        def find(self, key: str) -> list[Stored]:
            raise StoreDenied("the sign-in has expired", hint="sign in again")

    save(run_dir, 10)
    end_run(run_dir)
    start(second=lambda: Expired(drive))
    wait_until(lambda: levels.read(run_dir).get("settled"), 20, what="a settled run")
    told = levels.read(run_dir)
    assert (told["confirmed_by"], told["complete_level"], steps(run_dir)) == (
        "",
        "mounted",
        {"local": 10, "mounted": 10},
    )
    wait_until(lambda: "expired → sign in again" in state(home).get("confirm_trouble", ""), what="the alarm")
    reader = store_state.Reader(home)
    reader.look()
    told = reader.told()  # in the heartbeat
    assert told["ok"] and "expired → sign in again" in told["error"]


def test_what_is_free_and_in_the_trash_is_asked_of_the_account_itself(
    home: VmHome, run_dir: Path, drive: Path, start: Callable[..., Uploader]
) -> None:
    class Account(Faulty):
        def quota(self) -> tuple[int | None, int | None]:
            return 5000, 7 * 2**30

    start(second=lambda: Account(drive, proves=True))
    wait_until(lambda: state(home).get("trash_bytes") == 7 * 2**30, 20, what="the trash")
    reader = store_state.Reader(home)
    reader.look()
    assert (reader.told()["free_bytes"], reader.told()["trash_bytes"]) == (5000, 7 * 2**30)


def test_a_duplicate_name_or_other_bytes_at_the_far_end_confirm_nothing(
    home: VmHome, run_dir: Path, drive: Path
) -> None:
    from vm_daemons.storage.confirm import SecondLook

    sent = Stored("key", 3, md5="m", sha256="s")
    there: list[Stored] = []

    class Told(Faulty):
        def find(self, key: str) -> list[Stored]:
            return there

    look = SecondLook(Told(drive))
    for found, seen in (
        ([], False),
        ([sent], True),
        ([sent, sent], False),
        ([Stored("key", 3, md5="m")], True),
        ([Stored("key", 3)], False),
        ([Stored("key", 4, md5="m", sha256="s")], False),
        ([Stored("key", 3, md5="m", sha256="other")], False),
    ):
        there[:] = found
        assert look.confirm({"key": sent}) is seen
    assert not look.confirm({})


def test_the_newest_checkpoint_wins_over_one_that_waits(
    home: VmHome, run_dir: Path, drive: Path, start: Callable[..., Uploader]
) -> None:
    store, go = Faulty(drive), threading.Event()
    store.before = lambda method, key: go.wait(100) if "step-00000010" in key and method == "put" else None
    start(store)
    save(run_dir, 10)
    wait_until(lambda: any("step-00000010" in key for _, key in store.calls), what="the first upload")
    for step in (20, 30, 40):
        save(run_dir, step)
    go.set()
    until(run_dir, local=40, mounted=40)
    assert not any("step-00000020" in key or "step-00000030" in key for _, key in store.calls)


def test_levels_survive_a_restart_of_the_uploader(home: VmHome, run_dir: Path, start: Callable[..., Uploader]) -> None:
    first = start()
    save(run_dir, 10)
    until(run_dir, local=10, mounted=10)
    first.stop()
    start(Faulty(Path("/nowhere/at/all")))
    save(run_dir, 20)
    until(run_dir, local=20, mounted=10)
    assert "is gone" in wait_until(lambda: levels.read(run_dir)["trouble"], what="the trouble")


def test_a_checkpoint_that_will_not_fit_is_told_before_it_fails(
    home: VmHome, run_dir: Path, start: Callable[..., Uploader]
) -> None:
    home.update_record(store_spec={"kind": "mount", "quota_gb": 1e-5, "confirm": False})
    save(run_dir, 10)
    start()
    until(run_dir, local=10, mounted=10)
    told = levels.read(run_dir)
    assert "quota_gb allows" in told["trouble"] and not told["failing"]
    wait_until(lambda: state(home).get("warning"), what="the warning")
    reader = store_state.Reader(home)
    reader.look()
    assert reader.told()["ok"] and "quota_gb allows" in reader.told()["warning"]  # in the heartbeat


# --- a store that hangs, dies and comes back -----------------------------------------------------------------


def test_on_a_mounted_drive_a_checkpoint_waits_while_it_would_fill_the_vms_disk(
    home: VmHome, run_dir: Path, drive: Path, start: Callable[..., Uploader], monkeypatch: pytest.MonkeyPatch
) -> None:
    free_bytes = [drive_cache.RESERVE_BYTES]
    monkeypatch.setattr(mounting, "DRIVE_MOUNT", drive)
    monkeypatch.setattr(gauges, "disk", lambda folder: (10**12, free_bytes[0]))
    save(run_dir, 10)
    start()
    wait_until(lambda: "that disk has 256 MiB free" in str(levels.read(run_dir).get("trouble")), 20, what="the reason")
    assert steps(run_dir) == {"local": 10} and levels.read(run_dir)["failing"]
    free_bytes[0] *= 2
    until(run_dir, timeout_s=30, local=10, mounted=10)


def test_a_store_that_hangs_holds_up_neither_the_state_nor_the_local_level(
    home: VmHome, run_dir: Path, drive: Path, start: Callable[..., Uploader], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_state, "HANGS_AFTER_S", 0.2)
    monkeypatch.setattr(store_state, "REMOUNT_AFTER_S", 0.2)
    store, free = Faulty(drive), threading.Event()
    store.before = lambda method, key: free.wait(60)  # type: ignore[assignment, return-value]
    start(store)
    try:
        save(run_dir, 10)
        until(run_dir, local=10)
        wait_until(lambda: state(home).get("error") == "it does not answer", what="the hang to be told")
        number = state(home)["number"]
        save(run_dir, 20)
        until(run_dir, local=20)
        assert levels.read(run_dir)["failing"] and not state(home)["ok"] and state(home)["number"] >= number
        request = wait_until(lambda: files.read_json(home.state / names.VM_REMOUNT), what="a request to the cell")
        assert request["id"] and request["why"] == "it does not answer"
    finally:
        free.set()
    until(run_dir, local=20, mounted=20)
    wait_until(lambda: not (home.state / names.VM_REMOUNT).exists(), what="the request to be withdrawn")


def test_what_a_dead_mount_missed_is_there_after_it_was_mounted_again(
    home: VmHome, run_dir: Path, drive: Path, start: Callable[..., Uploader], tmp_path: Path
) -> None:
    other = run_folder(home, "x", run_id=OTHER)
    start()
    save(run_dir, 10)
    until(run_dir, local=10, mounted=10)
    away = drive.rename(tmp_path / "away")
    save(run_dir, 20)
    save(other, 5)
    wait_until(lambda: state(home).get("ok") is False, 20, what="the alarm")
    until(run_dir, local=20, mounted=10)
    assert not drive.exists(), "nothing is made where the mount was"
    away.rename(drive)
    until(run_dir, local=20, mounted=20)
    until(other, local=5, mounted=5)
    assert state(home)["ok"]


def test_what_a_fresh_mount_does_not_have_is_not_called_mounted(
    home: VmHome, run_dir: Path, drive: Path, start: Callable[..., Uploader]
) -> None:
    """A mount that dies takes with it what it had not uploaded."""
    store = Faulty(drive)
    start(store)
    for step in (10, 20):
        save(run_dir, step)
        until(run_dir, local=step, mounted=step)

    def dead(method: str, key: str) -> None:
        raise StoreGone("the mount is dead")

    store.before = dead
    save(run_dir, 30)
    wait_until(lambda: levels.read(run_dir)["failing"], what="the illness")
    for path in drive.rglob("step-00000020-*"):
        path.unlink()
    for path in drive.rglob(names.SLOT_COMMIT):
        if json.loads(path.read_text())["step"] == 20:
            path.unlink()
    store.before = lambda method, key: None
    until(run_dir, local=30, mounted=30)
    root = f"demo/{names.STORE_RUNS}/{RUN}/{names.CHECKPOINTS}"
    assert [item.step for item in store_slots.read_slots(Faulty(drive), root)][:2] == [30, 10]


def test_one_runs_trouble_holds_up_no_other(
    home: VmHome, run_dir: Path, drive: Path, start: Callable[..., Uploader]
) -> None:
    store, other = Faulty(drive), run_folder(home, "x", run_id=OTHER)

    def full(method: str, key: str) -> None:
        if method == "put" and OTHER in key:
            raise StoreFull("the store is full", hint="make room")

    store.before = full
    for folder in (run_dir, other):
        save(folder, 10)
    start(store)
    until(run_dir, local=10, mounted=10)
    told = wait_until(lambda: levels.read(other).get("trouble") and levels.read(other), what="the trouble")
    assert told["failing"] and "full" in told["trouble"] and not levels.read(run_dir)["failing"]
    wait_until(lambda: "full → make room" in state(home)["trouble"], what="the alarm")
    assert state(home)["ok"], "a full store answers"


def test_a_mount_that_stays_dead_is_asked_for_once_and_again_only_after_an_answer(
    home: VmHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_state, "REMOUNT_AFTER_S", 0.0)
    path = home.state / names.VM_REMOUNT
    health = store_state.Health(home)
    health.probed, health.gone = {"ok": False, "error": "Transport endpoint is not connected"}, True
    health.look()
    health.ask_for_remount("s3")
    assert not path.exists(), "there is nothing to mount"
    health.ask_for_remount("mount")
    first = files.read_json(path)
    health.ask_for_remount("mount")
    assert files.read_json(path) == first and "not connected" in first["why"]
    files.write_json(path, {**first, "given_up": True})
    health.ask_for_remount("mount")
    assert files.read_json(path)["id"] == first["id"], "not at once"
    monkeypatch.setattr(store_state, "ASK_AGAIN_S", 0.0)
    health.ask_for_remount("mount")
    assert files.read_json(path)["id"] != first["id"]
    health.probed = {"ok": True}
    health.look()
    health.ask_for_remount("mount")
    assert not path.exists()


def test_a_full_or_read_only_mount_is_not_mounted_again(home: VmHome, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_state, "REMOUNT_AFTER_S", 0.0)
    health = store_state.Health(home)
    health.probed, health.gone = {"ok": False, "error": "it is full"}, False
    health.look()
    health.ask_for_remount("mount")
    assert not (home.state / names.VM_REMOUNT).exists()


# --- who may write, and what is no store of ours ---------------------------------------------------------------


def test_a_run_that_a_later_attempt_took_over_is_told_and_left_alone(
    home: VmHome, run_dir: Path, drive: Path, start: Callable[..., Uploader], tmp_path: Path
) -> None:
    start()
    save(run_dir, 10)
    until(run_dir, local=10, mounted=10)
    other = vm_home(tmp_path / "vm-b", store=drive)
    Store(other).restore(RUN, run_folder(other, "x", attempt=2))
    save(run_dir, 20)
    expected = [{"run_id": RUN, "attempt": 1}]
    wait_until(lambda: state(home).get("superseded") == expected, 20, what="the word of the lease")
    assert not list(drive.rglob("step-00000020-*"))
    files.write_json(home.state / names.VM_REVOKED, expected)
    wait_until(lambda: state(home)["superseded"] == [], what="the word to be taken back once it is known")


def test_a_revoked_run_is_not_mirrored(
    home: VmHome, run_dir: Path, drive: Path, start: Callable[..., Uploader]
) -> None:
    files.write_json(home.state / names.VM_REVOKED, [{"run_id": RUN, "attempt": 1}])
    save(run_dir, 10)
    other = run_folder(home, "x", run_id=OTHER)
    save(other, 5)
    start()
    until(other, local=5, mounted=5)
    assert not list(drive.rglob("step-00000010-*")) and not (drive / "demo" / names.STORE_RUNS / RUN).exists()


def test_a_store_of_another_project_is_said(home: VmHome, drive: Path, start: Callable[..., Uploader]) -> None:
    Faulty(drive).put_bytes("theirs/runs/x-0001-abc123/log", b"x")
    start()
    wait_until(lambda: "holds theirs and nothing of demo" in state(home).get("note", ""), what="the note")


def test_without_a_store_only_the_local_level_is_told(
    home: VmHome, run_dir: Path, start: Callable[..., Uploader]
) -> None:
    home.update_record(store="")
    start()
    save(run_dir, 10)
    until(run_dir, local=10)
    wait_until(lambda: state(home).get("kind") == "none", what="the state")
    assert store_state.Reader(home).told() == {}


def test_a_store_kind_that_can_not_be_made_is_said_and_ends_nothing(
    home: VmHome, run_dir: Path, start: Callable[..., Uploader]
) -> None:
    home.update_record(store_spec={"kind": "s3"})
    start()
    save(run_dir, 10)
    until(run_dir, local=10)
    wait_until(lambda: state(home).get("error"), what="the error")
    wait_until(lambda: levels.read(run_dir)["failing"], what="the run's own trouble")
    assert not state(home)["ok"]


# --- what a VM leaves for the next one ---------------------------------------------------------------------------


def vm_folder(home: VmHome, drive: Path) -> Path:
    return drive / "demo" / names.STORE_VMS / str(home.record()["vm_id"])


def test_the_beat_changes_and_names_the_runs_and_the_journal_follows_at_once(
    home: VmHome, run_dir: Path, drive: Path, start: Callable[..., Uploader]
) -> None:
    home.update_record(vm_rules=VmRules(lost_after_s=3.0).to_json())
    home.journal.write_text('{"step": "accepted"}\n{"step": "sta')
    start()
    folder = vm_folder(home, drive)
    beat = wait_until(lambda: files.read_json(folder / names.STORE_BEAT), what="a beat")
    assert beat["runs"] == [{"run_id": RUN, "attempt": 1, "state": "starting"}] and beat["released"] is False
    wait_until(lambda: files.read_json(folder / names.STORE_BEAT)["number"] > beat["number"], what="another beat")
    journal = folder / names.VM_JOURNAL
    wait_until(lambda: journal.exists() and journal.read_text() == '{"step": "accepted"}\n', what="whole lines")
    with home.journal.open("a") as handle:
        handle.write('rted"}\n')
    wait_until(lambda: journal.read_text() == home.journal.read_text(), what="the new line")


def test_a_vm_that_gives_itself_back_says_so_at_once(home: VmHome, drive: Path, start: Callable[..., Uploader]) -> None:
    home.update_record(vm_rules=VmRules(lost_after_s=3000.0).to_json())
    start()
    beat = vm_folder(home, drive) / names.STORE_BEAT
    wait_until(lambda: files.read_json(beat), what="a beat")
    files.write_json(home.state / names.VM_LIFETIME, {"v": 1, "released": 1.0})
    wait_until(lambda: files.read_json(beat)["released"], what="the last word")


def test_a_run_that_has_left_is_in_no_beat(home: VmHome, run_dir: Path, drive: Path) -> None:
    files.write_json(run_dir / names.MIRRORED, {"v": 1, "attempt": 1, "store": "complete"})
    publish.beat(Faulty(drive), home, 1)
    assert files.read_json(vm_folder(home, drive) / names.STORE_BEAT)["runs"] == []


def test_ship_and_payload_are_published_once_with_the_laptops_own_signature(
    home: VmHome, drive: Path, start: Callable[..., Uploader]
) -> None:
    name = f"{home.record()['ship_sha256'][:16]}.zip"
    (home.root / names.VM_SHIP).mkdir(exist_ok=True)
    (home.root / names.VM_SHIP / name).write_bytes(b"zip")
    document = payload(home)
    store = Faulty(drive)
    start(store)
    project = drive / "demo"
    wait_until(lambda: (project / names.STORE_SHIP / name).exists(), what="the ship")
    listed = project / names.STORE_PAYLOAD / f"{'f' * 64}.json"
    wait_until(listed.exists, what="the payload")
    assert json.loads(listed.read_text()) == document
    with tarfile.open(listed.with_suffix(".tar")) as archive:
        (member,) = archive.getmembers()
        assert (member.name, member.mode) == ("pkg/train.py", 0o755)
    assert store.calls.count(("put", f"demo/payload/{'f' * 64}.tar")) == 1
    newer = payload(home, reply_to="another request")  # signed anew, the same files
    assert publish.payload(store, home) == "" and json.loads(listed.read_text()) == newer
    assert store.calls.count(("put", f"demo/payload/{'f' * 64}.tar")) == 1


def test_what_the_store_lost_of_all_that_a_new_vm_needs_is_published_anew(
    home: VmHome, drive: Path, start: Callable[..., Uploader], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploader, "CANARY_EVERY_S", 0.1)
    ship = home.root / names.VM_SHIP / f"{home.record()['ship_sha256'][:16]}.zip"
    ship.parent.mkdir(exist_ok=True)
    ship.write_bytes(b"zip")
    home.journal.write_text('{"step": "accepted"}\n')
    payload(home)
    start()
    root = drive / "demo"
    kept = [
        root / names.STORE_SHIP / ship.name,
        root / names.STORE_PAYLOAD / f"{'f' * 64}.tar",
        root / names.STORE_PAYLOAD / f"{'f' * 64}.json",
        vm_folder(home, drive) / names.VM_JOURNAL,
    ]
    wait_until(lambda: all(path.exists() for path in kept), what="all of it")
    for lost in kept:
        lost.unlink()
        wait_until(lost.exists, what=f"{lost.name} again")
    for folder in (names.STORE_SHIP, names.STORE_PAYLOAD, names.STORE_VMS):
        shutil.rmtree(root / folder, ignore_errors=True)
    wait_until(lambda: all(path.exists() for path in kept), what="all of it again")


def test_what_is_cut_or_changed_in_the_store_is_published_anew(
    home: VmHome, drive: Path, start: Callable[..., Uploader], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploader, "CANARY_EVERY_S", 0.1)
    monkeypatch.setattr(uploader, "CANARY_AGAIN_S", 0.1)
    monkeypatch.setattr(uploader, "SHIPMENTS_EVERY_S", 0.1)
    kept = published_by(home, drive)
    start()
    wait_until(lambda: all(path.exists() for path in kept), 20, what="all of it")
    for path in kept:
        whole = path.read_bytes()
        for cut in (whole[:-1], b""):
            path.write_bytes(cut)
            wait_until(lambda path=path, whole=whole: path.read_bytes() == whole, 30, what=path.name)  # type: ignore[misc]


def test_looking_for_what_was_published_costs_four_requests_for_each_canary(home: VmHome, drive: Path) -> None:
    payload(home)
    store = Faulty(drive)
    assert publish.payload(store, home) == ""
    store.calls.clear()
    made = Uploader(home, choose=lambda: store)
    made._forget_what_is_gone({"ship": "x", "payload": "y"}, store)
    assert publish.has_journal(store, home) is False
    assert [method for method, _ in store.calls] == ["look"] * 3 + ["list"]


def test_a_store_that_can_not_be_used_at_first_is_ill_and_catches_up_once_it_is_well(
    home: VmHome, run_dir: Path, drive: Path, start: Callable[..., Uploader]
) -> None:
    drive.rmdir()
    drive.write_text("a plain file in its place")
    save(run_dir, 10)
    start()
    wait_until(lambda: "it is no folder" in state(home).get("error", ""), what="what is wrong with it")
    assert not state(home)["ok"]
    drive.unlink()
    drive.mkdir()
    until(run_dir, local=10, mounted=10)


@pytest.mark.parametrize("case", ["changed", "gone", "big", "link", "no list"])
def test_a_payload_that_is_not_what_the_list_says_is_not_published_and_said(
    home: VmHome, drive: Path, case: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    payload(home)
    path = home.payload / "pkg" / "train.py"
    match case:
        case "changed":
            path.write_bytes(b"print('other')\n")
        case "gone":
            path.unlink()
        case "big":
            monkeypatch.setattr(publish, "PAYLOAD_MAX_BYTES", 3)
        case "link":
            path.unlink()
            path.symlink_to(tmp_path)
        case "no list":
            (home.state / names.PAYLOAD_MANIFEST).unlink()
    assert publish.payload(Faulty(drive), home)
    assert not (drive / "demo" / names.STORE_PAYLOAD).exists() and not list(home.state.glob("*.tar"))


# --- the process ---------------------------------------------------------------------------------------------------


def spawn(home: VmHome) -> subprocess.Popen[bytes]:
    environment = {**os.environ, names.ENV_HOME: str(home.root), "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-m", f"vm_daemons.{names.UPLOADER}"]
    return subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def test_as_a_process_it_is_small_steps_back_for_others_and_ends_when_told(home: VmHome, run_dir: Path) -> None:
    save(run_dir, 10)
    process = spawn(home)
    try:
        until(run_dir, local=10, mounted=10)
        wait_until(lambda: state(home).get("ok"), 15, what="store.json")
        rollup = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
        assert next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:")) < 30 * 1024
        own = os.getpriority(os.PRIO_PROCESS, 0)
        assert os.getpriority(os.PRIO_PROCESS, process.pid) == min(19, own + uploader.NICE)
        process.send_signal(signal.SIGTERM)
        assert process.wait(100) == 0
    finally:
        process.kill()
        process.wait(100)


def test_killed_in_the_middle_of_its_work_the_next_one_goes_on(home: VmHome, run_dir: Path, drive: Path) -> None:
    for step in (10, 20):
        save(run_dir, step, content=os.urandom(3_000_000))
        process = spawn(home)
        try:
            wait_until(lambda step=step: list(drive.rglob(f"step-{step:08d}-*")), 15, what="an upload")  # type: ignore[misc]
        finally:
            process.kill()
            process.wait(100)
    process = spawn(home)
    try:
        until(run_dir, local=20, mounted=20)
    finally:
        process.kill()
        process.wait(100)
    assert not list(drive.rglob(f"{files.TEMP_PREFIX}*state*"))
