"""Runs that belong to another VM or come from one: revoked, disputed, resumed from the store."""

from __future__ import annotations

import errno
import threading
from pathlib import Path

import pytest

from bridgehead import checkpoints, files, names
from bridgehead.errors import SupersededError
from bridgehead.names import Ack, FailureClass, RunState
from bridgehead.records import AckRecord, Command, ExitRecord, RunRecord, StageSpec
from command_rig import ENV, SLEEP, WAITS, Rig
from support import wait_until
from vm_daemons import bridge_link, run_keeper
from vm_daemons.journal import Journal
from vm_daemons.storage.store import Store
from vm_run_support import is_gone, log_of, python, vm_home, wait_for_log, wait_for_stage

# --- lost to another VM ---------------------------------------------------------------------------------------


def test_a_revoked_run_is_killed_and_not_spoken_of_again(rig: Rig) -> None:
    train = rig.run(SLEEP)
    with rig.daemon():
        rig.laptop.queue(train)
        stage = wait_for_stage(rig.dir(train))
        wait_until(lambda: "started" in rig.laptop.answers(train), what="the start")
        files.write_json(rig.home.state / names.VM_REVOKED, [{"run_id": train.run_id, "attempt": 1}])
        wait_until(lambda: is_gone(stage), what="the stage's end")
        wait_until(lambda: rig.journal_has("abandoned"), what="the entry in the journal")
    assert not (rig.dir(train) / names.EXIT).exists()
    assert rig.laptop.answers(train) == ["accepted", "started"]


def test_an_unsigned_superseded_ends_nothing_that_runs(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever holds the tunnel could forge it; only the signed hints take a run away."""
    monkeypatch.setattr(bridge_link, "DISPUTE_PAUSE_S", 0.05)
    disputed = threading.Event()
    disputed.set()
    refused: list[str] = []

    def refuse(_id: str, record: AckRecord) -> Exception | None:
        if record.ack is not Ack.STARTED or not disputed.is_set():
            return None
        refused.append(str(record.ack))
        return SupersededError("another VM has it")

    rig.laptop.refuse = refuse
    train = rig.run(WAITS)
    with rig.daemon():
        rig.laptop.queue(train)
        wait_for_log(rig.dir(train), "up")
        wait_until(lambda: len(refused) >= 3, what="the answer sent again")
        disputed.clear()
        (rig.home.payload / "go").touch()
        assert rig.wait_for_exit(train).state is RunState.DONE
        rig.mirror(train)
        rig.laptop.finished(train)


def test_a_waiting_run_in_dispute_does_not_start_until_the_bridge_agrees(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bridge_link, "DISPUTE_PAUSE_S", 0.05)
    first = rig.run(WAITS)
    second = rig.run(ENV, stage="tune", inputs={"train": first.run_id})
    disputed = threading.Event()
    disputed.set()
    refused: list[str] = []

    def refuse(identity: str, _record: AckRecord) -> Exception | None:
        if identity != second.id or not disputed.is_set():
            return None
        refused.append(identity)
        return SupersededError("another VM has it")

    rig.laptop.refuse = refuse
    with rig.daemon():
        rig.laptop.queue(first, second)
        wait_for_log(rig.dir(first), "up")
        wait_until(lambda: refused, what="the dispute")
        (rig.home.payload / "go").touch()
        rig.wait_for_exit(first)
        before = len(refused)
        wait_until(lambda: len(refused) > before + 2, what="more answers sent again")
        assert not rig.dir(second).exists()
        disputed.clear()
        assert rig.wait_for_exit(second).state is RunState.DONE


def test_a_new_attempt_on_the_same_vm_replaces_the_old_one(rig: Rig) -> None:
    train = rig.run(SLEEP)
    with rig.daemon():
        rig.laptop.queue(train)
        old = wait_for_stage(rig.dir(train))
        rig.laptop.queue(rig.again(train, attempt=2))
        wait_for_log(rig.dir(train), "--- attempt 2")
        assert is_gone(old)
        assert wait_for_stage(rig.dir(train)) != old
    assert RunRecord.from_json(files.read_json(rig.dir(train) / names.RUN_RECORD)).attempt == 2


def test_what_an_abandoned_run_left_running_is_ended_by_the_next_daemon(rig: Rig) -> None:
    train = rig.run(SLEEP)
    with rig.daemon():
        rig.laptop.queue(train)
        stage = wait_for_stage(rig.dir(train))
    Journal(rig.home.journal).abandoned(train)
    with rig.daemon():
        wait_until(lambda: is_gone(stage), what="the stage's end")


# --- the store --------------------------------------------------------------------------------------------


RESUMES = python(
    "import bridgehead\n"
    "run = bridgehead.current_run()\n"
    "found = run.latest_checkpoint()\n"
    "print('from', found.step if found else None, flush=True)"
)


def _mirrored_checkpoint(root: Path, drive: Path, command: Command, step: int) -> None:
    """What another VM left in the store."""
    home = vm_home(root, store=drive)
    run_dir = home.run(command.run_id)
    run_dir.mkdir()
    record = RunRecord(command.run_id, "train", "demo", command.id, 1, "vm-dead", 0.0, StageSpec("train", "x"))
    files.write_json(run_dir / names.RUN_RECORD, record.to_json())
    with checkpoints.staging(run_dir / names.CHECKPOINTS) as staged:
        (staged / "state.pt").write_bytes(b"state")
        checkpoints.commit(staged, run_dir / names.CHECKPOINTS, step, {})
    Store(home).mirror(run_dir)


def test_a_later_attempt_resumes_from_the_store(tmp_path: Path, drive: Path) -> None:
    rig = Rig(tmp_path / "vm", drive)
    train = rig.run(RESUMES, attempt=2)
    _mirrored_checkpoint(tmp_path / "dead", drive, train, 40)
    with rig.daemon():
        rig.laptop.queue(train)
        assert rig.wait_for_exit(train).state is RunState.DONE, log_of(rig.dir(train))
    assert "from 40" in log_of(rig.dir(train))
    assert "checkpoint 40 restored from the store and checked" in log_of(rig.dir(train))


def test_a_later_attempt_without_any_checkpoint_says_that_it_starts_anew(tmp_path: Path, drive: Path) -> None:
    rig = Rig(tmp_path / "vm", drive)
    train = rig.run(RESUMES, attempt=2)
    with rig.daemon():
        rig.laptop.queue(train)
        rig.wait_for_exit(train)
    log = log_of(rig.dir(train))
    assert f"the store holds no checkpoint (the store {drive} is empty: demo begins there)" in log
    assert ": attempt 2 starts from the beginning" in log


def test_a_later_attempt_in_a_store_that_is_not_ours_says_whose_it_seems_to_be(tmp_path: Path, drive: Path) -> None:
    (drive / "other" / names.STORE_RUNS).mkdir(parents=True)
    rig = Rig(tmp_path / "vm", drive)
    for attempt, seen in ((2, "holds other and nothing of"), (3, "holds no checkpoint (the store was another one")):
        train = rig.run(RESUMES, attempt=attempt)
        if attempt == 3:  # by now our own folder is there, and what the uploader saw at first is all that tells
            told = {"v": names.RECORD_VERSION, "note": "the store was another one"}
            files.write_json(rig.home.state / names.VM_STORE_STATE, told)
        with rig.daemon():
            rig.laptop.queue(train)
            rig.wait_for_exit(train)
        assert seen in log_of(rig.dir(train))


def test_a_store_that_can_not_be_read_is_waited_for(
    tmp_path: Path, drive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_keeper, "RETRY_S", 0.05)
    rig = Rig(tmp_path / "vm", drive)
    train = rig.run(RESUMES, attempt=2)
    _mirrored_checkpoint(tmp_path / "dead", drive, train, 40)
    real, sick = Store.restore, threading.Event()
    sick.set()

    def restore(self: Store, run_id: str, run_dir: Path) -> object:
        if sick.is_set():
            raise OSError(errno.ENOTCONN, "Transport endpoint is not connected")
        return real(self, run_id, run_dir)

    monkeypatch.setattr(Store, "restore", restore)
    with rig.daemon():
        rig.laptop.queue(train)
        wait_for_log(rig.dir(train), "--- waits for the store")
        sick.clear()
        assert rig.wait_for_exit(train).state is RunState.DONE
    assert "from 40" in log_of(rig.dir(train))


def test_when_no_checkpoint_in_the_store_verifies_the_run_fails_and_does_not_start_anew(
    tmp_path: Path, drive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_keeper, "RETRY_S", 0.01)
    rig = Rig(tmp_path / "vm", drive)
    train = rig.run(RESUMES, attempt=2)
    _mirrored_checkpoint(tmp_path / "dead", drive, train, 40)
    next(drive.rglob("*state.pt")).write_bytes(b"stale")
    with rig.daemon():
        rig.laptop.queue(train)
        ended = rig.wait_for_exit(train)
    assert ended.failure_class == FailureClass.CHECKPOINT
    assert "none of 1 checkpoints in the store verifies" in ended.message
    assert "from None" not in log_of(rig.dir(train))


def test_the_output_of_a_run_that_ended_on_another_vm_comes_from_the_store(tmp_path: Path, drive: Path) -> None:
    rig = Rig(tmp_path / "vm", drive)
    first = rig.run("x")
    other = vm_home(tmp_path / "dead", store=drive)
    run_dir = other.run(first.run_id)
    (run_dir / names.ARTIFACTS).mkdir(parents=True)
    (run_dir / names.ARTIFACTS / "encoder.bin").write_bytes(b"encoder")
    record = RunRecord(first.run_id, "train", "demo", first.id, 1, "vm-dead", 0.0, StageSpec("train", "x"))
    files.write_json(run_dir / names.RUN_RECORD, record.to_json())
    files.write_json(run_dir / names.EXIT, ExitRecord(first.run_id, 1, RunState.DONE, 0).to_json())
    Store(other).mirror(run_dir)
    code = "import bridgehead; print((bridgehead.current_run().input('train') / 'artifacts/encoder.bin').read_text())"
    second = rig.run(python(code), stage="tune", inputs={"train": first.run_id})
    with rig.daemon():
        rig.laptop.queue(second)
        assert rig.wait_for_exit(second).state is RunState.DONE, log_of(rig.dir(second))
    assert log_of(rig.dir(second)).endswith("encoder\n")
    assert not rig.home.run(first.run_id).exists(), "it would be taken for a run of this VM"
