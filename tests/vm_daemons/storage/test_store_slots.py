"""Slots: which one is written next, and that a reader finds a good checkpoint whatever ended the writer and where."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from store_support import Died, Faulty, save

from bridgehead import checkpoints, files, names
from bridgehead.errors import StoreError, StoreFull, SupersededError, VerificationError
from bridgehead.names import CheckpointLevel
from vm_daemons.home import VmHome
from vm_daemons.storage import store_slots
from vm_daemons.storage.objects import ObjectStore, Room, Stored
from vm_daemons.storage.store import Store
from vm_daemons.storage.store_slots import SLOTS, Slot
from vm_run_support import run_folder, vm_home

RUN = "train-0001-abc123"
ROOT = f"demo/{names.STORE_RUNS}/{RUN}/{names.CHECKPOINTS}"


def using(home: VmHome, objects: ObjectStore) -> Store:
    return Store(home, lambda: objects)


def restored(tmp_path: Path, drive: Path, name: str, attempt: int = 2) -> int | None:
    """The step that a VM of its own brings back from the store; its bytes have been checked."""
    home = vm_home(tmp_path / name, store=drive)
    info = Store(home).restore(RUN, run_folder(home, "x", attempt=attempt))
    return info.step if info is not None else None


def steps(drive: Path) -> list[int]:
    return [slot.step for slot in store_slots.read_slots(Faulty(drive), ROOT) if slot.commit is not None]


# --- which one is next --------------------------------------------------------------------------------


def slot(index: int, step: int, *, confirmed: bool = False, attempt: int = 1) -> Slot:
    commit = {"step": step, "attempt": attempt, "created": 1.0, "files": [{"size": 1}]} if step >= 0 else None
    return Slot(f"{ROOT}/{SLOTS[index]}", commit, confirmed_at=2.0 if confirmed else 0.0)


@pytest.mark.parametrize(
    ("held", "confirmed", "bad", "overwritten"),
    [
        ((10, 20, -1, -1), (), (), -1),
        ((10, 20, 30, 40), (), (), 10),  # nothing confirmed: the newest three stay
        ((10, 20, 30, 40), (10,), (), 20),  # the only confirmed one stays, however old, and the newest
        ((10, 20, 30, 40), (10, 20), (), 30),  # two confirmed stay; of the others the older goes
        ((10, 20, 30, 40), (20, 30, 40), (), 10),
        ((10, 20, 30, 40), (10, 20, 30), (), 10),
        ((10, 20, 30, 40), (), (40,), 40),  # what a reader refused goes first
        ((10, 20, 30, 40), (10, 40), (40,), 40),
        ((10, 20, -1, 40), (), (40,), -1),  # and an empty one before that
    ],
)
def test_the_least_needed_slot_is_next(
    held: tuple[int, ...], confirmed: tuple[int, ...], bad: tuple[int, ...], overwritten: int
) -> None:
    slots = [slot(index, step, confirmed=step in confirmed) for index, step in enumerate(held)]
    refused = {item.name: item.step for item in slots if item.step in bad}
    assert store_slots.choose(slots, refused).step == overwritten


@given(st.lists(st.tuples(st.integers(-1, 50), st.booleans(), st.integers(1, 3)), min_size=4, max_size=4))
def test_no_choice_ever_costs_what_has_to_stay(held: list[tuple[int, bool, int]]) -> None:
    slots = [
        slot(index, step, confirmed=seen and step >= 0, attempt=attempt)
        for index, (step, seen, attempt) in enumerate(held)
    ]
    chosen = store_slots.choose(slots, {})
    left = [item for item in slots if item is not chosen and item.commit is not None]
    before = [item for item in slots if item.commit is not None]
    seen_before, seen_left = ([item for item in some if item.confirmed_at] for some in (before, left))
    assert len(seen_left) >= min(2, len(seen_before))
    if not seen_before:
        assert len(left) >= min(3, len(before))
    if before:
        assert max(before, key=lambda item: (item.attempt, item.step)) in left or len(seen_left) >= 2


def test_a_newer_bridgeheads_checkpoints_are_not_overwritten(home: VmHome, run_dir: Path, drive: Path) -> None:
    for name in SLOTS:
        Faulty(drive).put_bytes(f"{ROOT}/{name}/{names.SLOT_COMMIT}", b'{"v": 99, "sha256": "?"}')
    save(run_dir, 10)
    with pytest.raises(StoreError, match="newer Bridgehead"):
        Store(home).mirror(run_dir)
    assert len(list(drive.rglob(names.SLOT_COMMIT))) == 4


# --- killed, full, read-only ---------------------------------------------------------------------------


@pytest.mark.parametrize("proves", [False, True], ids=["mount", "folder"])
def test_killed_at_any_call_a_reader_finds_a_good_one(
    home: VmHome, run_dir: Path, drive: Path, tmp_path: Path, proves: bool
) -> None:
    for step in (10, 20, 30, 40):
        save(run_dir, step)
        Store(home).mirror(run_dir)
    fatal = 0
    while True:
        faulty = Faulty(drive, proves=proves)

        def die(_method: str, _key: str, faulty: Faulty = faulty, fatal: int = fatal) -> None:
            if len(faulty.calls) == fatal + 1:
                raise Died

        faulty.before = die
        folder = save(run_dir, 50 + fatal)
        try:
            using(home, faulty).mirror(run_dir)
        except Died:
            newest = max(steps(drive))
            slots = store_slots.read_slots(Faulty(drive), ROOT)
            target = tmp_path / f"restored-{fatal}"
            found, passed, _ = store_slots.restore_newest(Faulty(drive), ROOT, target, -1)
            assert found is not None and found.step == newest >= 30 and passed == []
            assert sum(item.commit is not None for item in slots) >= 3
            fatal += 1
            continue
        assert fatal > 10 and max(steps(drive)) == checkpoints.step_of(folder)
        return


def test_a_store_that_gets_full_in_the_middle_keeps_what_it_has_and_takes_the_next_one(
    home: VmHome, run_dir: Path, drive: Path, tmp_path: Path
) -> None:
    for step in (10, 20, 30, 40):
        save(run_dir, step)
        Store(home).mirror(run_dir)
    faulty = Faulty(drive)

    def full(method: str, key: str) -> None:
        if method == "put" and key.endswith("0.bin"):
            raise StoreFull("no room")

    faulty.before = full
    store = using(home, faulty)
    for step in (50, 60):  # tried again and again
        save(run_dir, step)
        with pytest.raises(StoreFull):
            store.mirror(run_dir)
        assert steps(drive) == [40, 30, 20]
    faulty.before = lambda method, key: None
    store.mirror(run_dir)
    assert steps(drive) == [60, 40, 30, 20]
    assert restored(tmp_path, drive, "vm-b") == 60


def test_a_damaged_local_checkpoint_costs_the_store_nothing(home: VmHome, run_dir: Path, drive: Path) -> None:
    for step in (10, 20, 30, 40):
        save(run_dir, step)
        Store(home).mirror(run_dir)
    (save(run_dir, 50) / "state.pt").write_bytes(b"weightz50")
    faulty = Faulty(drive)
    store = using(home, faulty)
    store.mirror(run_dir)
    assert steps(drive) == [40, 30, 20, 10] and ("delete", f"{ROOT}/slot-a/{names.SLOT_COMMIT}") not in faulty.calls
    looked = len(faulty.calls)
    store.mirror(run_dir)
    assert len(faulty.calls) == looked, "it is hashed and refused once, not at each turn"


# --- two writers -----------------------------------------------------------------------------------------


def test_an_attempt_that_takes_over_in_the_middle_of_a_copy_is_not_written_over(
    home: VmHome, run_dir: Path, drive: Path, tmp_path: Path
) -> None:
    save(run_dir, 10)
    Store(home).mirror(run_dir)
    faulty = Faulty(drive)

    def take_over(method: str, key: str) -> None:
        if method == "put" and key.endswith("state.pt"):
            assert restored(tmp_path, drive, "vm-b") == 10

    faulty.after = take_over
    save(run_dir, 20)
    with pytest.raises(SupersededError):
        using(home, faulty).mirror(run_dir)
    assert steps(drive) == [10]


def test_two_vms_with_one_attempt_are_not_both_served(home: VmHome, run_dir: Path, drive: Path, tmp_path: Path) -> None:
    save(run_dir, 10)
    Store(home).mirror(run_dir)
    other = vm_home(tmp_path / "vm-b", store=drive)
    with pytest.raises(SupersededError):
        Store(other).mirror(run_folder(other, "x"))


def test_a_run_of_another_project_of_the_same_name_is_left_alone(home: VmHome, run_dir: Path, drive: Path) -> None:
    Store(home).mirror(run_dir)
    record = json.loads((run_dir / names.RUN_RECORD).read_text())
    files.write_json(run_dir / names.RUN_RECORD, {**record, "command_id": "d" * 32, "attempt": 2})
    with pytest.raises(VerificationError, match="another project of the same name"):
        Store(home).restore(RUN, run_dir)


# --- confirmed ----------------------------------------------------------------------------------------------


class Seen:
    name = "the other path"

    def __init__(self, *steps: int) -> None:
        self.steps = steps
        self.asked: list[dict[str, Stored]] = []

    def confirm(self, keys: Any) -> bool:
        self.asked.append(dict(keys))
        return any(f"step-{step:08d}" in key for key in keys for step in self.steps)


def test_confirmed_ones_outlive_newer_ones_that_are_only_mounted(home: VmHome, run_dir: Path, drive: Path) -> None:
    store = Store(home)
    for step in (10, 20, 30, 40, 50, 60, 70):
        save(run_dir, step)
        store.mirror(run_dir)
        store.confirm(run_dir, Seen(10, 20))
    assert steps(drive) == [70, 60, 20, 10]
    known = store.known(run_dir)
    assert known is not None and known.confirmed is not None and known.confirmed.step == 20
    assert known.mounted is not None and known.mounted.level is CheckpointLevel.MOUNTED


def test_what_was_confirmed_is_known_to_the_next_process_and_no_more_than_advice(
    home: VmHome, run_dir: Path, drive: Path
) -> None:
    store = Store(home)
    save(run_dir, 10)
    store.mirror(run_dir)
    assert store.confirm(run_dir, Seen(10))
    again = Store(home)
    info = again.mirror(run_dir)
    assert info is not None and info.level is CheckpointLevel.CONFIRMED
    save(run_dir, 10, b"others!")  # the same slot with another commit: the advice is of the old one
    slots = store_slots.read_slots(Faulty(drive), ROOT)
    commit = json.loads((drive / slots[0].key / names.SLOT_COMMIT).read_text())
    commit["created"] += 1
    commit["sha256"] = checkpoints.manifest_digest(commit)
    (drive / slots[0].key / names.SLOT_COMMIT).write_text(json.dumps(commit))
    assert store_slots.read_slots(Faulty(drive), ROOT)[0].confirmed_at == 0


def test_everything_in_the_slot_is_asked_for_with_its_digests(home: VmHome, run_dir: Path) -> None:
    store, seen = Store(home), Seen()
    save(run_dir, 10)
    store.mirror(run_dir)
    assert not store.confirm(run_dir, seen)
    (asked,) = seen.asked
    assert {key.rpartition("-")[2].rpartition("/")[2] for key in asked} == {
        "state.pt",
        "0.bin",
        names.CHECKPOINT_MANIFEST,
        names.SLOT_COMMIT,
    }
    assert all(item.size and item.md5 and item.sha256 for item in asked.values())


def test_a_store_that_proves_what_it_holds_confirms_at_once(tmp_path: Path, drive: Path) -> None:
    home = vm_home(tmp_path / "vm", store=drive)
    home.update_record(store_spec={"kind": "folder"})
    run_dir = run_folder(home, "x")
    save(run_dir, 10)
    info = Store(home).mirror(run_dir)
    assert info is not None and info.level is CheckpointLevel.CONFIRMED


# --- bad input ----------------------------------------------------------------------------------------------


def edit(change: Callable[[dict[str, Any]], None]) -> Callable[[bytes], bytes]:
    def edited(data: bytes) -> bytes:
        commit = json.loads(data)
        change(commit)
        commit["sha256"] = checkpoints.manifest_digest(commit)
        return json.dumps(commit).encode()

    return edited


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda data: data[:60], "cut or damaged"),
        (lambda data: b"[" * 100_000, "cut or damaged"),
        (lambda data: b"\xff\xfe", "cut or damaged"),
        (lambda data: data + b" " * checkpoints.MANIFEST_MAX_BYTES, "is over"),
        (edit(lambda commit: commit.update(v=2)), "newer Bridgehead"),
        (edit(lambda commit: commit["files"][0].update(path="../../out")), "may not"),
        (edit(lambda commit: commit["files"][0].update(stored="../../out")), "may not"),
        (edit(lambda commit: commit["files"][0].update(size=None)), "may not"),
        (edit(lambda commit: commit.update(files=[])), "no checkpoint"),
        (edit(lambda commit: commit.update(files=7)), "may not"),
        (edit(lambda commit: commit.update(step=-3)), "no checkpoint"),
        (edit(lambda commit: commit.update(step=10**15)), "no checkpoint"),
        (edit(lambda commit: commit.pop("attempt")), "may not"),
    ],
)
def test_a_commit_that_can_not_be_used_is_passed_over_in_words(
    home: VmHome, run_dir: Path, drive: Path, tmp_path: Path, damage: Callable[[bytes], bytes], why: str
) -> None:
    for step in (10, 20):
        save(run_dir, step)
        Store(home).mirror(run_dir)
    newest = store_slots.read_slots(Faulty(drive), ROOT)[0]
    path = drive / newest.key / names.SLOT_COMMIT
    path.write_bytes(damage(path.read_bytes()))
    assert restored(tmp_path, drive, "vm-b") == 10
    report = json.loads((tmp_path / "vm-b/runs" / RUN / names.RESTORED).read_text())
    assert [item["name"] for item in report["passed_over"]] == [newest.name]
    assert why in report["passed_over"][0]["why"]


def test_steps_that_a_damaged_checkpoint_costs_are_told(
    home: VmHome, run_dir: Path, drive: Path, tmp_path: Path
) -> None:
    for step in (10, 25):
        save(run_dir, step)
        Store(home).mirror(run_dir)
    victim = next(path for path in drive.rglob("step-00000025-*state.pt"))
    victim.write_bytes(bytes(victim.stat().st_size))
    assert restored(tmp_path, drive, "vm-b") == 10
    report = json.loads((tmp_path / "vm-b/runs" / RUN / names.RESTORED).read_text())
    assert [(item["step"], item["steps_lost"]) for item in report["passed_over"]] == [(25, 15)]


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ([], "is empty"),
        (["other/runs/x-0001-abc123/log"], "holds other and nothing of demo"),
        (["holiday/photo.jpg"], "other people's files"),
        (["runs/train-0001-abc123/log"], "the folder of one project"),
        (["demo/runs/x-0001-abc123/log"], ""),
    ],
)
def test_a_store_that_is_not_ours_is_recognised_and_said(
    home: VmHome, run_dir: Path, drive: Path, made: list[str], said: str
) -> None:
    for name in made:
        Faulty(drive).put_bytes(name, b"x")
    told = Store(home).recognise()
    assert (said in told) if said else (told == "")


def test_many_files_are_spread_over_folders(
    home: VmHome, run_dir: Path, drive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_slots, "FILES_A_FOLDER", 5)
    root = run_dir / names.CHECKPOINTS
    for step in (10, 20, 30, 40, 50):
        with checkpoints.staging(root) as staged:
            for index in range(12):
                (staged / f"part-{index}.bin").write_bytes(f"{step} {index}".encode())
            (staged / f"{'long' * 30}.bin").write_bytes(b"long")
            checkpoints.commit(staged, root, step, {})
        Store(home).mirror(run_dir)
    # Five files, five that were emptied, two records and two folders more.
    assert max(len(list(folder.iterdir())) for folder in drive.rglob("*") if folder.is_dir()) <= 14
    assert sum(path.stat().st_size > 0 for path in (drive / ROOT).rglob("step-*")) == 4 * 14
    assert restored(tmp_path, drive, "vm-b") == 50


# --- room ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("room", "quota_bytes", "said"),
    [
        (Room(free_bytes=4 * 2**30), 0, ""),
        (Room(free_bytes=2**30), 0, "4 checkpoints of 1.00 GiB need 4.00 GiB; the store has 1.00 GiB free"),
        (Room(free_bytes=2**30, trash_bytes=3 * 2**30), 0, "3.00 GiB lie in its trash"),
        (Room(free_bytes=2**40), 2 * 2**30, "quota_gb allows 2.00 GiB"),
        (Room(free_bytes=None), 0, ""),
        (Room(error="gone"), 0, ""),
    ],
)
def test_the_preflight_says_whether_what_is_kept_fits(drive: Path, room: Room, quota_bytes: int, said: str) -> None:
    class Told(Faulty):
        def probe(self) -> Room:
            return room

    told = store_slots.fits(Told(drive), 2**30, 4, quota_bytes)
    assert (said in told) if said else (told == "")


def test_a_slot_tells_when_it_was_saved_and_when_it_was_seen() -> None:
    held = dataclasses.replace(slot(0, 5, confirmed=True), commit={**(slot(0, 5).commit or {}), "saved": 0.5})
    assert (held.saved_at, held.info(CheckpointLevel.MOUNTED).at) == (0.5, 1.0)
    assert held.info(CheckpointLevel.CONFIRMED).at == 2.0
