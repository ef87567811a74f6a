"""The durable store: what it calls committed reads back whole on another VM, whatever died while it was written."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path

import pytest
from store_support import Faulty, save

from bridgehead import checkpoints, files, names
from bridgehead.errors import StoreDenied, StoreFull, StoreGone, SupersededError, VerificationError
from bridgehead.names import CheckpointLevel, RunState
from bridgehead.records import ExitRecord
from vm_daemons.home import VmHome
from vm_daemons.storage import store_slots
from vm_daemons.storage.folder_store import FolderStore
from vm_daemons.storage.objects import Stored
from vm_daemons.storage.store import Store
from vm_daemons.storage.store_slots import SLOTS, Slot
from vm_run_support import run_folder, vm_home

RUN = "train-0001-abc123"


def stored(drive: Path) -> Path:
    return drive / "demo" / names.VM_RUNS / RUN


def end(run_dir: Path, state: RunState = RunState.DONE, attempt: int = 1) -> None:
    files.write_json(run_dir / names.EXIT, ExitRecord(RUN, attempt, state, 0).to_json())


def next_vm(tmp_path: Path, drive: Path, *, attempt: int = 2) -> tuple[VmHome, Path]:
    """Another VM that was given the run."""
    home = vm_home(tmp_path / f"vm-{attempt}", store=drive)
    return home, run_folder(home, "python train.py", attempt=attempt)


def data_file(slot: Path, name: str) -> Path:
    return next(path for path in slot.iterdir() if path.name.endswith(name))


def slots(drive: Path) -> list[Slot]:
    root = f"demo/{names.STORE_RUNS}/{RUN}/{names.CHECKPOINTS}"
    return store_slots.read_slots(FolderStore(drive, proves=False), root)


def steps(drive: Path) -> list[int]:
    return [slot.step for slot in slots(drive) if slot.commit is not None]


def slot_of(drive: Path, step: int) -> Path:
    for slot in slots(drive):
        if slot.step == step:
            return drive / slot.key
    raise AssertionError(f"no slot holds step {step}")


# --- mirror -----------------------------------------------------------------------------------------


def test_without_a_store_nothing_happens(tmp_path: Path) -> None:
    home = vm_home(tmp_path / "vm")
    store = Store(home)
    assert not store.available
    assert store.mirror(run_folder(home, "x")) is None
    assert store.exit_record(RUN) is None
    assert store.probe()["ok"] is False


def test_a_checkpoint_is_mounted_with_every_size_and_hash(home: VmHome, run_dir: Path, drive: Path) -> None:
    save(run_dir, 10)
    info = Store(home).mirror(run_dir)
    assert info is not None
    assert (info.step, info.level, info.epoch) == (10, CheckpointLevel.MOUNTED, 1)
    commit = json.loads((slot_of(drive, 10) / names.SLOT_COMMIT).read_text())
    assert {entry["path"] for entry in commit["files"]} == {"state.pt", "shards/0.bin", names.CHECKPOINT_MANIFEST}
    for entry in commit["files"]:
        path = slot_of(drive, 10) / entry["stored"]
        assert path.name.startswith("step-00000010-")
        assert (path.stat().st_size, files.sha256_file(path)) == (entry["size"], entry["sha256"])
    assert commit["sha256"] == checkpoints.manifest_digest(commit)


def test_slots_in_turn_keep_the_newest_three_while_the_fourth_is_written(
    home: VmHome, run_dir: Path, drive: Path
) -> None:
    store = Store(home)
    for step in (10, 20, 30, 40, 50, 60):
        save(run_dir, step)
        store.mirror(run_dir)
    assert steps(drive) == [60, 50, 40, 30]


def test_nothing_changed_costs_no_look_at_the_store(
    home: VmHome, run_dir: Path, drive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(home)
    save(run_dir, 10)
    first = store.mirror(run_dir)
    monkeypatch.setattr(Store, "_take_lease", lambda *_: pytest.fail("looked at the store"))
    assert store.mirror(run_dir) == first


def test_a_daemon_that_starts_again_copies_no_checkpoint_twice(
    home: VmHome, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(run_dir, 10)
    Store(home).mirror(run_dir)
    monkeypatch.setattr(store_slots, "write_slot", lambda *_: pytest.fail("copied again"))
    info = Store(home).mirror(run_dir)
    assert info is not None
    assert info.step == 10


def test_a_damaged_local_checkpoint_is_not_committed_and_an_older_whole_one_is(
    home: VmHome, run_dir: Path, drive: Path
) -> None:
    save(run_dir, 10)
    save(run_dir, 20)
    (run_dir / names.CHECKPOINTS / "step-00000020" / "state.pt").write_bytes(b"weightz20")
    info = Store(home).mirror(run_dir)
    assert info is not None
    assert info.step == 10


def test_a_foreign_file_in_a_slot_is_never_touched(home: VmHome, run_dir: Path, drive: Path) -> None:
    store = Store(home)
    for name in SLOTS:
        folder = stored(drive) / names.CHECKPOINTS / name
        folder.mkdir(parents=True)
        (folder / "holiday.jpg").write_text("mine")
        (folder / "step-notes.txt").write_text("mine")
    for step in (10, 20, 30, 40):
        save(run_dir, step)
        store.mirror(run_dir)
    foreign = ("holiday.jpg", "step-notes.txt")
    kept = [path for path in (stored(drive) / names.CHECKPOINTS).rglob("*") if path.name in foreign]
    assert [path.read_text() for path in kept] == ["mine"] * 8


def test_log_and_progress_travel_with_a_checkpoint_and_at_the_end_only(
    home: VmHome, run_dir: Path, drive: Path
) -> None:
    store = Store(home)
    (run_dir / names.LOG).write_text("one\n")
    store.mirror(run_dir)
    assert not (stored(drive) / names.LOG).exists()
    save(run_dir, 10)
    store.mirror(run_dir)
    assert (stored(drive) / names.LOG).read_text() == "one\n"
    (run_dir / names.LOG).write_text("one\ntwo\n")
    end(run_dir)
    store.mirror(run_dir)
    assert (stored(drive) / names.LOG).read_text() == "one\ntwo\n"


# --- faults while writing ---------------------------------------------------------------------------


def error_of(store: FolderStore, key: str, code: int) -> Exception:
    return store._error(key, OSError(code, os.strerror(code)), writing=True)


@pytest.mark.parametrize(
    ("code", "kind"),
    [(errno.ENOSPC, StoreFull), (errno.EIO, StoreGone), (errno.ENOTCONN, StoreGone), (errno.EROFS, StoreDenied)],
)
def test_a_store_that_fails_half_way_leaves_no_commit_and_keeps_the_older_ones(
    home: VmHome, run_dir: Path, drive: Path, monkeypatch: pytest.MonkeyPatch, code: int, kind: type[Exception]
) -> None:
    store = Store(home)
    save(run_dir, 10)
    store.mirror(run_dir)
    save(run_dir, 20)
    real = FolderStore.put

    def failing(self: FolderStore, key: str, source: Path) -> Stored:
        if key.endswith("state.pt"):
            source = run_dir / names.RUN_RECORD
            self.on_bytes = lambda _: (_ for _ in ()).throw(error_of(self, key, code))
        return real(self, key, source)

    with monkeypatch.context() as patch:
        patch.setattr(FolderStore, "put", failing)
        with pytest.raises(kind):
            store.mirror(run_dir)
    assert steps(drive) == [10]
    store = Store(home)
    info = store.mirror(run_dir)  # and it catches up once the store works again
    assert info is not None
    assert info.step == 20


def test_a_mount_that_is_gone_is_an_error_and_nothing_is_written_in_its_place(
    home: VmHome, run_dir: Path, drive: Path
) -> None:
    save(run_dir, 10)
    drive.rmdir()
    with pytest.raises(StoreGone, match="is gone"):
        Store(home).mirror(run_dir)
    assert not drive.exists()
    assert Store(home).probe()["ok"] is False


def test_a_copy_that_reads_back_differently_is_not_committed(
    home: VmHome, run_dir: Path, drive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(run_dir, 10)
    monkeypatch.setattr(FolderStore, "_digest", lambda *_: "0" * 64)
    with pytest.raises(VerificationError, match="reads back"):
        Store(home).mirror(run_dir)
    assert steps(drive) == []


# --- lease --------------------------------------------------------------------------------------------


def test_a_writer_that_finds_a_higher_attempt_stops(home: VmHome, run_dir: Path, drive: Path, tmp_path: Path) -> None:
    old = Store(home)
    save(run_dir, 10)
    old.mirror(run_dir)
    other, other_dir = next_vm(tmp_path, drive)
    Store(other).restore(RUN, other_dir)
    save(run_dir, 20)
    with pytest.raises(SupersededError):
        old.mirror(run_dir)
    assert steps(drive) == [10]


def test_a_new_attempt_keeps_the_log_of_the_one_before(
    home: VmHome, run_dir: Path, drive: Path, tmp_path: Path
) -> None:
    save(run_dir, 10)
    (run_dir / names.LOG).write_text("first\n")
    Store(home).mirror(run_dir)
    other, other_dir = next_vm(tmp_path, drive)
    store = Store(other)
    store.restore(RUN, other_dir)
    (other_dir / names.LOG).write_text("second\n")
    end(other_dir, attempt=2)
    store.mirror(other_dir)
    assert (stored(drive) / f"{names.LOG}.1").read_text() == "first\n"
    assert (stored(drive) / names.LOG).read_text() == "second\n"


def test_a_failed_end_of_an_older_attempt_is_set_aside(
    home: VmHome, run_dir: Path, drive: Path, tmp_path: Path
) -> None:
    end(run_dir, RunState.FAILED)
    Store(home).mirror(run_dir)
    other, other_dir = next_vm(tmp_path, drive)
    store = Store(other)
    assert store.exit_record(RUN) is not None
    store.restore(RUN, other_dir)
    assert store.exit_record(RUN) is None


# --- restore ----------------------------------------------------------------------------------------


def test_another_vm_restores_the_newest_bit_for_bit(home: VmHome, run_dir: Path, drive: Path, tmp_path: Path) -> None:
    store = Store(home)
    for step in (10, 20):
        save(run_dir, step)
        store.mirror(run_dir)
    other, other_dir = next_vm(tmp_path, drive)
    info = Store(other).restore(RUN, other_dir)
    assert info is not None
    assert (info.step, info.level) == (20, CheckpointLevel.CONFIRMED)
    found, passed = checkpoints.newest(other_dir / names.CHECKPOINTS)
    assert found is not None
    assert passed == []
    original = run_dir / names.CHECKPOINTS / "step-00000020"
    for name in ("state.pt", "shards/0.bin", names.CHECKPOINT_MANIFEST):
        assert found.path(name).read_bytes() == (original / name).read_bytes()


def test_a_restored_checkpoint_is_not_copied_back_and_counts_as_confirmed(
    home: VmHome, run_dir: Path, drive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(run_dir, 10)
    Store(home).mirror(run_dir)
    other, other_dir = next_vm(tmp_path, drive)
    Store(other).restore(RUN, other_dir)
    monkeypatch.setattr(store_slots, "write_slot", lambda *_: pytest.fail("copied back"))
    info = Store(other).mirror(other_dir)
    assert info is not None
    assert info.level is CheckpointLevel.CONFIRMED


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("damage", ["flipped bit", "zeroed", "cut", "missing", "commit cut", "commit edited"])
def test_a_damaged_checkpoint_is_passed_over_named_and_kept(
    home: VmHome, run_dir: Path, drive: Path, tmp_path: Path, damage: str
) -> None:
    store = Store(home)
    for step in (10, 20):
        save(run_dir, step)
        store.mirror(run_dir)
    slot = slot_of(drive, 20)
    victim = data_file(slot, "0.bin")
    commit = slot / names.SLOT_COMMIT
    match damage:
        case "flipped bit":
            flip(victim)
        case "zeroed":
            victim.write_bytes(bytes(victim.stat().st_size))
        case "cut":
            os.truncate(victim, 100)
        case "missing":
            victim.unlink()
        case "commit cut":
            os.truncate(commit, 60)
        case "commit edited":
            commit.write_text(commit.read_text().replace('"step": 20', '"step": 99'))
    other, other_dir = next_vm(tmp_path, drive)
    info = Store(other).restore(RUN, other_dir)
    assert info is not None
    assert info.step == 10
    report = json.loads((other_dir / names.RESTORED).read_text())
    assert [bad["name"] for bad in report["passed_over"]] == [slot.name]
    assert report["passed_over"][0]["why"]
    assert slot.is_dir()
    assert [path.name for path in (other_dir / names.CHECKPOINTS).iterdir()] == ["step-00000010"]


def test_the_next_checkpoint_goes_into_the_damaged_slot_and_not_over_the_good_one(
    home: VmHome, run_dir: Path, drive: Path, tmp_path: Path
) -> None:
    store = Store(home)
    for step in (10, 20, 30):
        save(run_dir, step)
        store.mirror(run_dir)
    flip(data_file(slot_of(drive, 30), "state.pt"))
    flip(data_file(slot_of(drive, 20), "state.pt"))
    other, other_dir = next_vm(tmp_path, drive)
    store = Store(other)
    store.restore(RUN, other_dir)
    save(other_dir, 15)
    info = store.mirror(other_dir)
    assert info is not None
    assert info.step == 15
    assert 10 in steps(drive)


def test_when_none_verifies_it_says_so_and_does_not_start_from_nothing(
    home: VmHome, run_dir: Path, drive: Path, tmp_path: Path
) -> None:
    save(run_dir, 10)
    Store(home).mirror(run_dir)
    flip(data_file(slot_of(drive, 10), "state.pt"))
    other, other_dir = next_vm(tmp_path, drive)
    with pytest.raises(VerificationError, match="none of 1 checkpoints in the store verifies"):
        Store(other).restore(RUN, other_dir)


def test_a_run_that_never_saved_has_nothing_to_restore(tmp_path: Path, drive: Path) -> None:
    other, other_dir = next_vm(tmp_path, drive)
    assert Store(other).restore(RUN, other_dir) is None


def test_a_newer_checkpoint_on_the_vms_own_disk_is_kept(home: VmHome, run_dir: Path) -> None:
    store = Store(home)
    save(run_dir, 10)
    store.mirror(run_dir)
    save(run_dir, 20)
    assert store.restore(RUN, run_dir) is None


def test_a_commit_that_names_a_file_outside_is_refused(
    home: VmHome, run_dir: Path, drive: Path, tmp_path: Path
) -> None:
    save(run_dir, 10)
    Store(home).mirror(run_dir)
    path = slot_of(drive, 10) / names.SLOT_COMMIT
    commit = json.loads(path.read_text())
    commit["files"][0]["path"] = "../../escaped"
    commit["sha256"] = checkpoints.manifest_digest(commit)
    path.write_text(json.dumps(commit))
    other, other_dir = next_vm(tmp_path, drive)
    with pytest.raises(VerificationError, match="names files that it may not"):
        Store(other).restore(RUN, other_dir)


# --- outputs ----------------------------------------------------------------------------------------


@pytest.fixture
def finished(home: VmHome, run_dir: Path) -> Path:
    (run_dir / names.ARTIFACTS / "deep").mkdir(parents=True)
    (run_dir / names.ARTIFACTS / "deep" / "encoder.pt").write_bytes(b"e" * 5000)
    (run_dir / names.BUNDLE).mkdir()
    (run_dir / names.BUNDLE / "model.onnx").write_bytes(b"m" * 5000)
    files.write_json(run_dir / names.RESULTS, {"v": 1, "loss": 0.5})
    end(run_dir)
    store = Store(home)
    store.mirror(run_dir)
    assert store.mirrored(run_dir)
    return run_dir


def test_outputs_of_a_finished_run_are_fetched_and_checked(finished: Path, drive: Path, tmp_path: Path) -> None:
    other, _ = next_vm(tmp_path, drive)
    store = Store(other)
    record = store.exit_record(RUN)
    assert record is not None
    assert record.state is RunState.DONE
    dest = store.fetch_run(RUN, tmp_path / "inputs" / RUN)
    for name in ("artifacts/deep/encoder.pt", "bundle/model.onnx", names.RESULTS, names.EXIT, names.RUN_RECORD):
        assert (dest / name).read_bytes() == (finished / name).read_bytes()


def test_a_damaged_output_is_not_used(finished: Path, drive: Path, tmp_path: Path) -> None:
    flip(stored(drive) / names.ARTIFACTS / "deep" / "encoder.pt")
    other, _ = next_vm(tmp_path, drive)
    with pytest.raises(VerificationError, match=r"encoder\.pt"):
        Store(other).fetch_run(RUN, tmp_path / "inputs" / RUN)
    assert not (tmp_path / "inputs" / RUN).exists()


def test_a_list_of_outputs_that_was_edited_is_refused(finished: Path, drive: Path, tmp_path: Path) -> None:
    path = stored(drive) / names.OUTPUTS
    path.write_text(path.read_text().replace("bundle/model.onnx", "bundle/other.onnx"))
    other, _ = next_vm(tmp_path, drive)
    with pytest.raises(VerificationError, match="cut or damaged"):
        Store(other).fetch_run(RUN, tmp_path / "inputs" / RUN)


def test_the_exit_record_comes_last(home: VmHome, run_dir: Path, drive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (run_dir / names.ARTIFACTS).mkdir()
    (run_dir / names.ARTIFACTS / "encoder.pt").write_bytes(b"e")
    end(run_dir)
    real = FolderStore.put

    def failing(self: FolderStore, key: str, source: Path) -> Stored:
        if source.name == "encoder.pt":
            raise StoreFull("no room")
        return real(self, key, source)

    monkeypatch.setattr(FolderStore, "put", failing)
    store = Store(home)
    with pytest.raises(StoreFull, match="no room"):
        store.mirror(run_dir)
    assert store.exit_record(RUN) is None
    assert not store.mirrored(run_dir)


def test_a_store_that_was_emptied_in_the_middle_gets_everything_again(home: VmHome, run_dir: Path, drive: Path) -> None:
    store = Store(home)
    save(run_dir, 10)
    store.mirror(run_dir)
    shutil.rmtree(drive / "demo")
    end(run_dir)
    store.mirror(run_dir)
    assert store.mirrored(run_dir)
    assert {names.RUN_RECORD, names.EXIT, names.OUTPUTS} <= {path.name for path in stored(drive).iterdir()}
    assert steps(drive) == [10]


def test_a_store_that_was_away_gets_what_it_missed(home: VmHome, run_dir: Path, drive: Path, tmp_path: Path) -> None:
    store = Store(home)
    save(run_dir, 10)
    store.mirror(run_dir)
    away = drive.rename(tmp_path / "away")  # unmounted: an empty folder is in its place, and takes what comes
    drive.mkdir()
    files.write_json(run_dir / names.RESULTS, {"step": 20})
    save(run_dir, 20)
    store.mirror(run_dir)
    shutil.rmtree(drive)
    away.rename(drive)  # mounted again
    end(run_dir)
    store.mirror(run_dir)
    assert store.mirrored(run_dir)
    assert steps(drive)[0] == 20
    assert files.read_json(stored(drive) / names.RESULTS) == {"step": 20}


def test_a_copy_that_takes_longer_than_a_checkpoint_is_kept_ends_all_the_same(
    home: VmHome, run_dir: Path, drive: Path, tmp_path: Path
) -> None:
    slow = Faulty(drive)
    store = Store(home, choose=lambda: slow)
    save(run_dir, 10)

    def retire(method: str, key: str) -> None:
        if method == "put" and "step-" in key and not (run_dir / names.CHECKPOINTS / "step-00000040").exists():
            for step in (20, 30, 40):
                save(run_dir, step)
            checkpoints.retain(run_dir / names.CHECKPOINTS, 2)

    slow.before = retire
    store.mirror(run_dir)
    assert not (run_dir / names.CHECKPOINTS / "step-00000010").exists()
    assert [slot.step for slot in slots(drive) if slot.commit] == [10]
    assert not (run_dir / names.UPLOADING).exists()
    store.mirror(run_dir)
    assert [slot.step for slot in slots(drive) if slot.commit] == [40, 10], "then the newest, not what lies between"
    other, other_dir = next_vm(tmp_path, drive)
    restored = Store(other).restore(RUN, other_dir)
    assert restored is not None and restored.step == 40


def test_what_a_killed_uploader_held_goes_with_the_next_copy(home: VmHome, run_dir: Path, drive: Path) -> None:
    save(run_dir, 10)
    held = run_dir / names.UPLOADING / "step-00000005"
    held.mkdir(parents=True)
    (held / "state.pt").write_bytes(b"old")
    Store(home).mirror(run_dir)
    assert not (run_dir / names.UPLOADING).exists()
    assert [slot.step for slot in slots(drive) if slot.commit] == [10]


def test_a_checkpoint_that_goes_while_it_is_looked_at_is_no_trouble(
    home: VmHome, run_dir: Path, drive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(run_dir, 10)
    link = os.link

    def vanish(source: Path, target: Path, **given: bool) -> None:
        link(source, target, **given)
        shutil.rmtree(run_dir / names.CHECKPOINTS / "step-00000010", ignore_errors=True)

    monkeypatch.setattr(os, "link", vanish)
    assert Store(home).mirror(run_dir) is None
    assert all(slot.commit is None for slot in slots(drive))


def test_where_the_disk_has_no_hard_links_the_checkpoint_itself_is_copied(
    home: VmHome, run_dir: Path, drive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", refuse)
    save(run_dir, 10)
    Store(home).mirror(run_dir)
    assert [slot.step for slot in slots(drive) if slot.commit] == [10]


def test_a_commit_that_was_cut_costs_the_steps_that_its_files_names_tell(
    home: VmHome, run_dir: Path, drive: Path, tmp_path: Path
) -> None:
    store = Store(home)
    for step in (10, 20):
        save(run_dir, step)
        store.mirror(run_dir)
    cut = next(slot for slot in slots(drive) if slot.step == 20)
    commit = drive / cut.key / names.SLOT_COMMIT
    commit.write_bytes(commit.read_bytes()[:60])
    other, other_dir = next_vm(tmp_path, drive)
    restored = Store(other).restore(RUN, other_dir)
    assert restored is not None and restored.step == 10
    passed = files.read_json(other_dir / names.RESTORED)["passed_over"]
    assert [(item["name"], item["step"], item["steps_lost"]) for item in passed] == [(cut.name, 20, 10)]
