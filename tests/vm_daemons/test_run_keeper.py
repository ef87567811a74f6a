"""What a keeper makes of trouble while it brings a checkpoint: the store is waited for, a bad one ends the run."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bridgehead import checkpoints, names
from bridgehead.errors import NotFoundError, StoreDenied, StoreFull, StoreGone, VerificationError
from bridgehead.names import FailureClass, RunState
from bridgehead.records import Command
from command_rig import Rig
from support import wait_until
from vm_daemons import daemons, lifetime, run_folder, run_keeper
from vm_daemons.client import Rejected
from vm_daemons.storage.store import Store
from vm_run_support import kill_tagged, log_of, python, wait_for_log


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_keeper, "RETRY_S", 0.01)


@pytest.fixture(autouse=True)
def nothing_left(tmp_path: Path) -> Iterator[None]:
    """A test that fails half-way must not leave a stage that waits for ever."""
    yield
    for run_dir in tmp_path.glob("vm*/runs/*"):
        kill_tagged(run_dir)


def fail_to_prepare(monkeypatch: pytest.MonkeyPatch, error: Exception, *, times: int) -> None:
    raised = []

    def prepare(*_: object) -> dict[str, Path]:
        if len(raised) < times:
            raised.append(error)
            raise error
        return {}

    monkeypatch.setattr(run_folder, "prepare", prepare)


def later(rig: Rig) -> Command:
    return rig.run(python("print('ran')"), attempt=2)


@pytest.mark.parametrize("error", [StoreDenied("signed out"), StoreGone("mount is dead"), StoreFull("no room")])
def test_trouble_with_the_store_is_waited_for_and_fails_no_run(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    fail_to_prepare(monkeypatch, error, times=run_keeper.BAD_COPY_TRIES + 2)
    with rig.daemon():
        train = later(rig)
        rig.laptop.queue(train)
        assert rig.wait_for_exit(train).state is RunState.DONE
    assert log_of(rig.dir(train)).count(f"waits for the store: {error}") == 1


@pytest.mark.parametrize(
    ("error", "failure"),
    [(VerificationError("none verifies"), FailureClass.CHECKPOINT), (NotFoundError("x"), FailureClass.ENVIRONMENT)],
)
def test_what_waiting_can_not_mend_ends_the_run(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, error: Exception, failure: FailureClass
) -> None:
    fail_to_prepare(monkeypatch, error, times=100)
    with rig.daemon():
        train = later(rig)
        rig.laptop.queue(train)
        ended = rig.wait_for_exit(train)
    assert (ended.state, ended.failure_class) == (RunState.FAILED, failure)
    assert not (rig.dir(train) / names.DEATHS).exists()


def _cell_beat(rig: Rig, ago_s: float) -> None:
    mark = rig.home.state / daemons.CELL_MARK
    mark.touch()
    os.utime(mark, (time.time() - ago_s,) * 2)


def test_on_a_notebook_that_nobody_keeps_no_run_begins_until_the_cell_runs_again(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifetime, "provider", lambda: "colab")
    _cell_beat(rig, 3600)
    with rig.daemon():
        train = rig.run(python("print('ran')"))
        rig.laptop.queue(train)
        wait_for_log(rig.dir(train), "waits for the bootstrap cell", 20)
        assert not (rig.dir(train) / names.PROCESS).exists()
        _cell_beat(rig, 0)
        assert rig.wait_for_exit(train).state is RunState.DONE
    assert log_of(rig.dir(train)).count("waits for the bootstrap cell") == 1


@pytest.mark.parametrize(("where", "attempt"), [("colab", 2), ("", 1)], ids=["under way", "on a server of one's own"])
def test_what_goes_on_and_what_nobody_takes_away_need_no_cell(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, where: str, attempt: int
) -> None:
    monkeypatch.setattr(lifetime, "provider", lambda: where)
    _cell_beat(rig, 3600)
    with rig.daemon():
        train = rig.run(python("print('ran')"), attempt=attempt)
        rig.laptop.queue(train)
        assert rig.wait_for_exit(train).state is RunState.DONE


SAVES_THEN_DIES = python(
    "import bridgehead, os, signal, time\n"
    "run = bridgehead.current_run()\n"
    "found = run.latest_checkpoint()\n"
    "if found is not None:\n"
    "    raise SystemExit(print('resumed at', found.step))\n"
    "for step in (10, 20):\n"
    "    with run.checkpoint(step) as folder: (folder / 'w').write_bytes(b'w' * 100)\n"
    "while not (run.folder / 'go').exists(): time.sleep(0.02)\n"
    "os.kill(os.getpid(), signal.SIGKILL)"
)


def die_with_every_local_checkpoint_damaged(rig: Rig, train: Command, *, mirrored: bool) -> None:
    folders = [rig.dir(train) / names.CHECKPOINTS / checkpoints.folder_name(step) for step in (10, 20)]
    wait_until(lambda: all((folder / names.CHECKPOINT_MANIFEST).exists() for folder in folders), what="checkpoints")
    if mirrored:
        info = Store(rig.home).mirror(rig.dir(train))
        assert info is not None and info.step == 20
    for folder in folders:
        (folder / "w").write_bytes(b"x" * 100)
    (rig.dir(train) / "go").touch()


def test_when_every_checkpoint_on_the_disk_is_damaged_the_stores_is_taken(tmp_path: Path) -> None:
    (tmp_path / "drive").mkdir()
    rig = Rig(tmp_path / "vm", tmp_path / "drive")
    with rig.daemon():
        train = rig.run(SAVES_THEN_DIES)
        rig.laptop.queue(train)
        die_with_every_local_checkpoint_damaged(rig, train, mirrored=True)
        ended = rig.wait_for_exit(train)
    log = log_of(rig.dir(train))
    assert (ended.state, ended.attempt) == (RunState.DONE, 1), log
    assert "passed over checkpoint 20" in log
    assert "checkpoint 20 restored from the store" in log and "resumed at 20" in log


@pytest.mark.parametrize("has_store", [True, False])
def test_without_another_copy_it_never_starts_from_nothing_in_silence(tmp_path: Path, has_store: bool) -> None:
    (tmp_path / "drive").mkdir()
    rig = Rig(tmp_path / "vm", tmp_path / "drive" if has_store else None)
    with rig.daemon():
        train = rig.run(SAVES_THEN_DIES)
        rig.laptop.queue(train)
        die_with_every_local_checkpoint_damaged(rig, train, mirrored=False)
        ended = rig.wait_for_exit(train)
    assert (ended.state, ended.failure_class) == (RunState.FAILED, FailureClass.CHECKPOINT)
    assert "no checkpoint on this VM's disk verifies" in ended.message
    assert len(checkpoints.quarantined(rig.dir(train) / names.CHECKPOINTS)) == 2


@pytest.mark.parametrize("error", [Rejected("'bad name': not a safe name"), VerificationError("data.bin changed")])
def test_files_that_can_not_be_brought_do_not_leave_the_old_ones_running(rig: Rig, error: Exception) -> None:
    def manifest_document() -> dict[str, object]:
        raise error

    rig.laptop.manifest_document = manifest_document  # type: ignore[method-assign]
    with rig.daemon():
        train = rig.run(python("print('ran')"))
        rig.laptop.queue(train)
        ended = rig.wait_for_exit(train)
    assert (ended.state, ended.failure_class) == (RunState.FAILED, FailureClass.ENVIRONMENT)
    assert f"its files could not be brought: {error}" in ended.message
    assert "ran" not in log_of(rig.dir(train)).splitlines()
