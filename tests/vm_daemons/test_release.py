"""When a VM gives itself back, and each reason to stay. `google.colab.runtime` is a stand-in, named as such below."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bridgehead import files, names, processes
from bridgehead.names import Ack, RunState
from bridgehead.queue_lines import Verb
from bridgehead.records import AckRecord, Command, StageSpec
from support import wait_until
from vm_daemons import beats, daemons, lifetime, mounting, release, uploads
from vm_daemons.home import VmHome
from vm_daemons.journal import Journal
from vm_support import end_run, make_run, paired_home

RUN = "pretrain-0001-abcdef"
GRACE_S = 300.0


class Cell:
    """A home with rules, a journal, a clock that the test moves, and the release under test."""

    def __init__(self, root: Path) -> None:
        self.home = paired_home(root)
        self.home.update_record(vm_rules={"release_after_s": GRACE_S})
        self.journal = Journal(self.home.journal)
        beats.beat(self.home, names.COMMAND_DAEMON)
        self.now = 0.0
        self.said: list[str] = []
        self.release = release.Release(self.home, self.said.append, lambda: self.now)

    def command(self, verb: str = Verb.RUN, *, run_id: str = RUN, attempt: int = 1) -> Command:
        spec = StageSpec("pretrain", "python train.py") if verb in (Verb.RUN, Verb.SH) else None
        given = (f"{verb}{run_id}", 1, 1, "vm", verb, "pretrain", 0.0, attempt, run_id if spec else "")
        command = Command(*given, spec=spec)
        self.journal.accept([command])
        return command

    def finish(self, command: Command, state: RunState = RunState.DONE, *, told: bool = True) -> None:
        self.journal.finished(command, AckRecord("vm", Ack.FINISHED, command.attempt, state=state))
        if told:
            self.journal.acked(command, Ack.FINISHED)

    def run(self, *, mirrored: str = "complete", levels: dict[str, Any] | None = None) -> Path:
        """One that ended and was reported."""
        self.finish(self.command())
        run_dir = make_run(self.home, RUN)
        end_run(run_dir)
        if mirrored:
            files.write_json(run_dir / names.MIRRORED, {"attempt": 1, "store": mirrored})
        if levels is not None:
            files.write_json(run_dir / names.CHECKPOINT_LEVELS, levels)
        return run_dir

    def because(self) -> str:
        return self.release.look().because


@pytest.fixture
def cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cell:
    monkeypatch.setenv(names.ENV_LOCAL_VM, "vm-under-test")
    monkeypatch.setattr(release, "LAST_WORD_S", 0.05)
    return Cell(tmp_path / "vm")


@pytest.mark.parametrize(("away", "grace_s"), [(True, 180.0), (False, 20.0)])
def test_with_the_laptop_off_a_short_grace_lasts_until_a_dead_vms_runs_would_be_taken_up(
    cell: Cell, away: bool, grace_s: float
) -> None:
    cell.home.update_record(vm_rules={"release_after_s": 20.0, "lost_after_s": 60.0})
    if not away:
        (cell.home.state / daemons.CONTACT_MARK).touch()
    assert cell.release.look().in_s == grace_s


# --- reasons to stay -----------------------------------------------------------------------------------


def test_without_the_setting_it_never_goes_and_says_so(cell: Cell) -> None:
    cell.home.update_record(vm_rules={})
    cell.now = 1e9
    assert cell.because() == "[vm] release_after_s is not set"


def test_a_command_daemon_that_does_not_work_keeps_it_since_nobody_asks_for_the_queue(cell: Cell) -> None:
    beats.path(cell.home, names.COMMAND_DAEMON).unlink()
    cell.now = release.ASKING_S + 1
    assert "nobody knows what the queue holds" in cell.because()
    beats.beat(cell.home, names.COMMAND_DAEMON)
    assert cell.because() == ""


def test_in_the_first_minute_a_silent_command_daemon_is_one_that_starts(cell: Cell) -> None:
    beats.path(cell.home, names.COMMAND_DAEMON).unlink()
    assert cell.because() == "its daemons are starting"


def test_a_run_that_waits_or_runs_keeps_it(cell: Cell) -> None:
    command = cell.command()
    assert cell.because() == f"{RUN} waits to start"
    cell.journal.starting(command)
    assert cell.because() == f"{RUN} runs"


def test_a_run_that_ended_and_has_not_left_keeps_it(cell: Cell) -> None:
    cell.journal.starting(cell.command())
    end_run(make_run(cell.home, RUN))
    assert "on its way" in cell.because()


def test_an_answer_that_the_laptop_has_not_taken_keeps_it_for_a_while(
    cell: Cell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it the laptop would take the run for one that waits for the next VM."""
    command, contact = cell.command(), cell.home.state / daemons.CONTACT_MARK
    contact.touch()
    cell.finish(command, told=False)
    files.write_json(make_run(cell.home, RUN) / names.MIRRORED, {"attempt": 1, "store": "complete"})
    why = f"the laptop has not heard yet how {RUN} ended"
    assert cell.because() == why
    cell.journal.acked(command, Ack.STARTED)
    assert cell.because() == why
    cell.journal.acked(command, Ack.FINISHED)
    assert cell.because() == ""
    cell.journal.accept([command])  # delivered again: the laptop may have lost what it heard
    assert cell.because() == why
    os.utime(contact, (1.0, 1.0))
    assert cell.because() == "", "the laptop is away, and finds it in the store"
    contact.touch()
    monkeypatch.setattr(release, "UNTOLD_S", 0.0)
    assert cell.because() == "", "it does not take it"


def test_a_sync_keeps_it(cell: Cell) -> None:
    cell.command(Verb.SYNC)
    assert cell.because() == "a sync: command is under way"


def test_what_the_store_has_not_confirmed_keeps_it(cell: Cell) -> None:
    run_dir = cell.run(mirrored="dead")
    assert cell.because() == f"the store has not confirmed {RUN}"
    files.write_json(run_dir / names.MIRRORED, {"attempt": 1, "store": "complete"})
    assert cell.because() == ""


def test_a_run_folder_that_nobody_mirrored_keeps_it(cell: Cell) -> None:
    cell.run(mirrored="")
    assert cell.because() == f"what {RUN} made is only here"


def test_a_mark_of_an_earlier_attempt_is_none(cell: Cell) -> None:
    run_dir = cell.run()
    make_run(cell.home, RUN, attempt=2)
    end_run(run_dir, attempt=2)
    assert cell.because() == f"what {RUN} made is only here"


def test_where_the_store_can_confirm_the_newest_checkpoint_is_waited_for(cell: Cell) -> None:
    levels: dict[str, Any] = {"confirmed_by": "drive", "complete_attempt": 1, "complete_level": "mounted"}
    levels["levels"] = {"mounted": {"step": 9}, "confirmed": {"step": 6}}
    run_dir = cell.run(levels=levels)
    (run_dir / names.CHECKPOINTS / "step-000000000009").mkdir(parents=True)
    assert cell.because() == f"the store has not confirmed what {RUN} made"
    levels["complete_level"] = "confirmed"
    files.write_json(run_dir / names.CHECKPOINT_LEVELS, levels)
    assert cell.because() == f"the store has not confirmed the newest checkpoint of {RUN}"
    levels["levels"] = {"confirmed": {"step": 9}}
    files.write_json(run_dir / names.CHECKPOINT_LEVELS, levels)
    assert cell.because() == ""


def test_a_run_that_is_saving_for_the_next_vm_keeps_it_until_the_store_has_it(cell: Cell) -> None:
    command = cell.command()
    run_dir = make_run(cell.home, RUN)
    (run_dir / names.CHECKPOINTS / "step-000000000009").mkdir(parents=True)
    lifetime.begin_handover(run_dir, 1)
    lifetime.end_handover(run_dir, 1)
    cell.journal.handed_over(command)
    assert cell.because() == f"{RUN} is on its way to the next VM"
    files.write_json(run_dir / names.CHECKPOINT_LEVELS, {"levels": {"mounted": {"step": 9}}})
    assert cell.because() == ""


def test_a_run_that_was_handed_over_keeps_it_until_its_log_has_left(cell: Cell) -> None:
    command = cell.command()
    run_dir = make_run(cell.home, RUN)
    (run_dir / names.LOG).write_text("0123456789")
    lifetime.begin_handover(run_dir, 1)
    lifetime.end_handover(run_dir, 1)
    cell.journal.handed_over(command)
    files.write_json(run_dir / uploads.GENERATIONS, {names.LOG: {"base": 4, "acked": 5}})
    assert cell.because() == f"{RUN} is on its way to the next VM"
    assert lifetime.snapshot(cell.home)["handed_over"] == []  # once it is another VM's, its log is taken from there
    files.write_json(run_dir / uploads.GENERATIONS, {names.LOG: {"base": 4, "acked": 6}})
    assert lifetime.snapshot(cell.home)["handed_over"] == [RUN]
    assert cell.because() == ""


def test_another_vms_run_does_not_keep_it(cell: Cell) -> None:
    cell.journal.abandoned(cell.command())
    end_run(make_run(cell.home, RUN))
    assert cell.because() == ""


def test_while_the_laptop_is_away_a_run_that_is_whole_in_the_store_does_not_keep_it(cell: Cell) -> None:
    cell.journal.starting(cell.command())
    run_dir = make_run(cell.home, RUN)
    end_run(run_dir)
    files.write_json(run_dir / names.CHECKPOINT_LEVELS, {"complete_attempt": 1})
    contact = cell.home.state / daemons.CONTACT_MARK
    contact.touch()
    assert "on its way" in cell.because()
    os.utime(contact, (1.0, 1.0))
    assert cell.because() == ""


def test_a_damaged_line_of_the_journal_is_passed_over(cell: Cell) -> None:
    cell.command()
    with cell.home.journal.open("ab") as handle:
        handle.write(b'[1]\n{"id": 3}\nnonsense\n{"step": "accepted", "id": "x", "attempt": "y"}\n\xff')
    assert cell.because() == f"{RUN} waits to start"


# --- the grace ------------------------------------------------------------------------------------------


def test_it_goes_after_the_grace_and_says_when(cell: Cell) -> None:
    cell.run()
    assert release.stays_for(cell.release.look()) == "gives itself back in 5m00s"
    told = files.read_json(cell.home.state / names.VM_LIFETIME)
    assert told["releases_at"] == pytest.approx(time.time() + GRACE_S, abs=60.0) and told["stays_because"] == ""
    cell.now += GRACE_S - 1
    assert not cell.release.look().now
    cell.now += 1
    assert cell.release.look().now


@pytest.mark.parametrize("verb", [Verb.SYNC, Verb.SH, Verb.STOP])
def test_a_new_command_begins_the_grace_anew_even_when_it_is_over_at_once(cell: Cell, verb: str) -> None:
    cell.release.look()
    cell.now += GRACE_S - 1
    cell.journal.abandoned(cell.command(verb, run_id="sh-0002-abcdef"))
    assert cell.release.look().in_s == GRACE_S


def test_an_old_word_of_a_release_is_overwritten_when_the_cell_begins_again(cell: Cell) -> None:
    files.write_json(cell.home.state / names.VM_LIFETIME, {"released": 1.0})
    cell.release.look()
    assert "released" not in files.read_json(cell.home.state / names.VM_LIFETIME)


# --- the release itself -----------------------------------------------------------------------------------


class Colab:
    """A stand-in for google.colab.runtime and for the flush of its Drive."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.did: list[str] = []
        self.refuses: Exception | None = None
        self.flush_says = ""
        runtime, package = types.ModuleType("google.colab.runtime"), types.ModuleType("google.colab")
        runtime.unassign = self._unassign  # type: ignore[attr-defined]
        package.runtime = runtime  # type: ignore[attr-defined]
        google = types.ModuleType("google")
        for name, module in {"google": google, package.__name__: package, runtime.__name__: runtime}.items():
            monkeypatch.setitem(sys.modules, name, module)
        monkeypatch.setattr(daemons, "stop", lambda _: self.did.append("daemons stopped"))
        monkeypatch.setattr(mounting, "flush_drive", self._flush)

    def _flush(self, _timeout_ms: int) -> str:
        self.did.append("flushed")
        return self.flush_says

    def _unassign(self) -> None:
        self.did.append("unassigned")
        if self.refuses is not None:
            raise self.refuses


@pytest.fixture
def colab(monkeypatch: pytest.MonkeyPatch) -> Colab:
    return Colab(monkeypatch)


def test_it_is_given_back_after_the_flush_and_the_heartbeat_says_so_before(cell: Cell, colab: Colab) -> None:
    assert cell.release.go()
    assert colab.did == ["daemons stopped", "flushed", "unassigned"]
    told = lifetime.snapshot(cell.home)
    assert told["released"] is True and told["released_at"] == pytest.approx(time.time(), abs=60.0)
    assert told["released_because"] == "idle for 5m00s, everything is done and safe"


def test_it_says_which_runs_it_leaves_to_the_next_vm(cell: Cell, colab: Colab) -> None:
    command = cell.command()
    run_dir = make_run(cell.home, RUN)
    lifetime.begin_handover(run_dir, 1)
    lifetime.end_handover(run_dir, 1)
    cell.journal.handed_over(command)
    assert cell.release.go()
    assert lifetime.snapshot(cell.home)["released_because"] == f"near its cap; for the next VM: {RUN}"


def test_an_answer_to_a_heartbeat_that_was_under_way_is_no_goodbye(
    cell: Cell, colab: Colab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The laptop has to hear what was handed over: an earlier heartbeat may not tell of it."""
    monkeypatch.setattr(release, "LAST_WORD_S", 600.0)
    goodbye, ended = cell.home.state / daemons.GOODBYE_MARK, threading.Event()
    goodbye.touch()
    os.utime(goodbye, (1.0, 1.0))  # of a release that failed

    def go() -> None:
        assert cell.release.go()
        ended.set()

    leaving = threading.Thread(target=go, daemon=True)
    leaving.start()
    wait_until(lambda: lifetime.snapshot(cell.home).get("released"), 20, what="the word of its release")
    files.write_json(cell.home.state / names.VM_STORE_STATE, {"beat_number": 7})
    (cell.home.state / daemons.CONTACT_MARK).touch()
    assert not ended.wait(0.5)
    goodbye.touch()
    assert ended.wait(100)
    leaving.join(100)


def test_a_command_that_comes_at_the_last_moment_keeps_it(cell: Cell, colab: Colab) -> None:
    cell.command()
    assert not cell.release.go()
    assert colab.did == [] and "released" not in lifetime.snapshot(cell.home)
    assert f"{RUN} waits to start" in cell.said[-1]


def test_the_command_daemon_is_ended_first_so_that_none_comes_after_that(
    cell: Cell, colab: Colab, sleeper: subprocess.Popen[bytes]
) -> None:
    record = {"pid": sleeper.pid, "start_ticks": processes.start_ticks(sleeper.pid), "boot_id": processes.boot_id()}
    files.write_json(daemons.pid_file(cell.home, names.COMMAND_DAEMON), record)
    assert cell.release.go()
    assert sleeper.wait(100) < 0


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    yield process
    process.kill()
    process.wait(100)


def test_what_drive_has_not_taken_keeps_it(cell: Cell, colab: Colab) -> None:
    colab.flush_says = "quota"
    assert not cell.release.go()
    assert "unassigned" not in colab.did and "Drive has not taken everything: quota" in cell.said[-1]


def test_a_vm_that_is_not_taken_back_stays_and_tries_again_later(cell: Cell, colab: Colab) -> None:
    colab.refuses = RuntimeError("no address")
    cell.now = GRACE_S
    assert not cell.release.go()
    assert "no address" in lifetime_file(cell.home)["stays_because"]
    assert "released" not in lifetime.snapshot(cell.home)
    assert not cell.release.look().now
    colab.refuses = None
    cell.now += release.PAUSES_S[0] + GRACE_S
    cell.release.look()  # the grace may have begun anew
    cell.now += GRACE_S
    assert cell.release.look().now and cell.release.go()


def test_elsewhere_the_daemons_are_stopped_and_the_cell_may_end(cell: Cell, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped: list[VmHome] = []
    monkeypatch.setattr(daemons, "stop", stopped.append)
    assert cell.release.go() and stopped == [cell.home]


def lifetime_file(home: VmHome) -> dict[str, Any]:
    found = files.read_json(home.state / names.VM_LIFETIME)
    assert isinstance(found, dict)
    return found
