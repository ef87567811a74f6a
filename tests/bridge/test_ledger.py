"""The ledger: what becomes of a line, which VM gets it, and what happens when a VM dies or comes back."""

from __future__ import annotations

import contextlib
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ledger_support import PROJECT, Clock, ack, beat, keep_listening

from bridge.ledger import Ledger
from bridge.ledger_rows import CommandRow
from bridgehead import names, paths
from bridgehead.errors import NotFoundError, SupersededError, UsageError, VerificationError
from bridgehead.names import Ack, FailureClass, RunState
from bridgehead.queue_lines import encode_shell
from bridgehead.records import AckRecord, Heartbeat

A, B = "vm-aaaaaa", "vm-bbbbbb"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ledger(tmp_path: Path, clock: Clock) -> Iterator[Ledger]:
    ledger = Ledger(tmp_path / names.LEDGER_FILE, clock=clock)
    yield ledger
    ledger.close()


def take(ledger: Ledger, *lines: str) -> list[CommandRow]:
    return ledger.take(list(enumerate(lines, start=1)), PROJECT)


def row(ledger: Ledger, seq: int) -> CommandRow:
    return ledger.commands()[seq - 1]


# --- taking lines ----------------------------------------------------------------------------


def test_a_run_line_becomes_a_command_with_merged_config_and_a_run_id(ledger: Ledger) -> None:
    taken = take(ledger, "run:pretrain epochs=3")[0]
    command = ledger.deliver(A, 0)[0]
    assert (taken.seq, taken.state, taken.text) == (1, RunState.QUEUED, "run:pretrain epochs=3")
    assert taken.run_id == f"pretrain-0001-{taken.id[:6]}" and paths.is_run_id(taken.run_id)
    assert command.spec is not None and command.spec.config == {"epochs": 3, "seed": 1}


def test_inputs_are_the_newest_run_of_each_stage_it_comes_after(ledger: Ledger) -> None:
    rows = take(ledger, "run:pretrain", "run:pretrain", "run:finetune")
    assert rows[2].inputs == {"pretrain": rows[1].run_id}


def test_a_stopped_run_is_no_input(ledger: Ledger) -> None:
    rows = take(ledger, "run:pretrain", "run:pretrain", "stop:pretrain", "run:finetune")
    assert rows[3].inputs == {"pretrain": rows[0].run_id}


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("run:pretran", "unknown stage 'pretran': did you mean pretrain?"),
        ("ruin:pretrain", "unknown verb 'ruin': did you mean run?"),
        ("run:gate", "gate comes after finetune, which is not queued: add run:finetune first"),
        ("sh:!!!", "base64"),
        ("run:pretrain note=\ufffd", "UTF-8"),
        ("\0\0\0", "UTF-8"),
        ("x" * 70_000, "the most is"),
        ("stop:pretrain", "nothing to stop"),
        ("stop:pretrian", "did you mean pretrain?"),
    ],
)
def test_a_line_that_cannot_be_read_is_rejected_with_its_reason_and_the_next_goes_on(
    ledger: Ledger, line: str, reason: str
) -> None:
    bad, good = take(ledger, line, "run:pretrain")
    assert bad.state == "rejected" and reason in bad.reason
    assert good.state == RunState.QUEUED
    assert [command.seq for command in ledger.deliver(A, 0)] == [2]


def test_a_shell_line_gets_a_run_of_its_own(ledger: Ledger) -> None:
    taken = take(ledger, encode_shell("nvidia-smi | head"))[0]
    command = ledger.deliver(A, 0)[0]
    assert taken.run_id.startswith("sh-0001-") and command.argument == "nvidia-smi | head"
    assert command.spec is not None and command.spec.command == "nvidia-smi | head"


def test_everything_survives_closing_and_opening(tmp_path: Path) -> None:
    first = Ledger(tmp_path / "ledger")
    rows = first.take([(1, "run:pretrain")], PROJECT)
    first.deliver(A, 0)
    first.add_note(3, "a note")
    first.close()
    again = Ledger(tmp_path / "ledger")
    assert again.commands()[0].id == rows[0].id and again.commands()[0].vm_id == A
    assert [note.text for note in again.notes()] == ["a note"]
    again.close()


def test_a_damaged_file_is_told_with_a_next_step(tmp_path: Path) -> None:
    (tmp_path / "ledger").write_bytes(b"no database at all, but long enough to be looked at" * 100)
    with pytest.raises(VerificationError) as caught:
        Ledger(tmp_path / "ledger")
    assert names.QUEUE_FILE in caught.value.hint


def test_a_half_taken_batch_is_not_there_after_a_crash(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    from bridge import ledger_lines

    def crash(*_: object) -> int:
        if ledger_lines_taken:
            raise KeyboardInterrupt
        ledger_lines_taken.append(1)
        return original(*_)  # type: ignore[arg-type]

    ledger_lines_taken: list[int] = []
    original = ledger_lines.take_line
    monkeypatch.setattr(ledger_lines, "take_line", crash)
    with pytest.raises(KeyboardInterrupt):
        take(ledger, "run:pretrain", "run:pretrain")
    assert ledger.commands() == []


# --- delivery ------------------------------------------------------------------------------------


def test_delivery_numbers_grow_and_a_poll_returns_only_newer_ones(ledger: Ledger) -> None:
    take(ledger, "run:pretrain", "sync:")
    first = ledger.deliver(A, 0)
    take(ledger, "run:finetune")
    second = ledger.deliver(A, first[-1].delivery)
    assert [c.seq for c in first] == [1, 2] and [c.seq for c in second] == [3]
    assert [c.delivery for c in first + second] == [1, 2, 3]
    assert [c.seq for c in ledger.deliver(A, 0)] == [1, 2, 3]  # a daemon that has forgotten asks again


def test_an_ended_command_is_not_delivered_again(ledger: Ledger) -> None:
    take(ledger, "run:pretrain")
    ack(ledger, ledger.deliver(A, 0)[0], Ack.FINISHED, exit_code=0, state="done")
    assert ledger.deliver(A, 0) == []


def test_two_vms_that_poll_at_once_share_the_commands(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    setup = Ledger(path)
    setup.take([(n, encode_shell(f"echo {n}")) for n in range(60)], PROJECT)
    got: dict[str, list[str]] = {A: [], B: []}
    barrier = threading.Barrier(2)

    def poll(vm_id: str) -> None:
        mine = Ledger(path)  # a connection of its own, as another process would have
        barrier.wait(100)
        got[vm_id] = [command.id for command in mine.deliver(vm_id, 0)]
        mine.close()

    threads = [threading.Thread(target=poll, args=(vm_id,)) for vm_id in got]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    assert sorted(got[A] + got[B]) == sorted(row.id for row in setup.commands())
    setup.close()


def test_a_pinned_line_waits_for_its_vm(ledger: Ledger) -> None:
    taken = take(ledger, f"@{B} run:pretrain")[0]
    assert B in taken.reason and "not been seen" in taken.reason
    assert ledger.deliver(A, 0) == []
    assert [c.seq for c in ledger.deliver(B, 0)] == [1]


def test_what_comes_after_a_run_goes_to_the_vm_that_has_it(ledger: Ledger) -> None:
    take(ledger, "run:pretrain")
    ledger.deliver(A, 0)
    take(ledger, "run:finetune")
    assert ledger.deliver(B, 0) == []
    assert [c.seq for c in ledger.deliver(A, 0)] == [1, 2]


def test_what_comes_after_a_finished_run_goes_anywhere_once_its_vm_is_gone(ledger: Ledger) -> None:
    take(ledger, "run:pretrain")
    ack(ledger, ledger.deliver(A, 0)[0], Ack.FINISHED, exit_code=0, state="done")
    take(ledger, "run:finetune")
    assert ledger.deliver(B, 0) == []
    ledger.mark_vm_gone(A, "ended by the provider")
    assert [c.seq for c in ledger.deliver(B, 0)] == [2]


def test_a_pinned_run_whose_input_is_elsewhere_waits_until_that_is_done(ledger: Ledger) -> None:
    ledger.deliver(B, 0)
    take(ledger, "run:pretrain", f"@{B} run:finetune")
    first = ledger.deliver(A, 0)[0]
    assert ledger.deliver(B, 0) == []
    ack(ledger, first, Ack.FINISHED, exit_code=0, state="done")
    assert [c.seq for c in ledger.deliver(B, 0)] == [2]


def test_a_run_after_one_that_failed_fails_by_itself(ledger: Ledger) -> None:
    take(ledger, "run:pretrain", f"@{B} run:finetune", f"@{B} run:gate")
    ack(ledger, ledger.deliver(A, 0)[0], Ack.FINISHED, exit_code=3, state="failed", failure_class="user_error")
    for seq in (2, 3):
        assert (row(ledger, seq).state, row(ledger, seq).failure_class) == ("failed", FailureClass.UPSTREAM)
    assert "pretrain-0001" in row(ledger, 2).reason


# --- acks -------------------------------------------------------------------------------------------


def test_acks_move_a_run_on_and_repeating_them_changes_nothing(ledger: Ledger) -> None:
    take(ledger, "run:pretrain")
    command = ledger.deliver(A, 0)[0]
    states = []
    for kind in (Ack.ACCEPTED, Ack.STARTED, Ack.STARTED):
        ack(ledger, command, kind)
        states.append(row(ledger, 1).state)
    ack(ledger, command, Ack.FINISHED, exit_code=20, state="failed", failure_class="gate", reason="worse")
    ack(ledger, command, Ack.STARTED)
    ack(ledger, command, Ack.FINISHED, exit_code=0, state="done")
    assert states == ["queued", "running", "running"]
    ended = row(ledger, 1)
    assert (ended.state, ended.exit_code, ended.failure_class, ended.reason) == ("failed", 20, "gate", "worse")


def test_an_ack_from_another_vm_or_attempt_is_superseded(ledger: Ledger) -> None:
    take(ledger, "run:pretrain")
    command = ledger.deliver(A, 0)[0]
    for vm_id, attempt in ((B, 1), (A, 0)):
        with pytest.raises(SupersededError):
            ledger.ack(command.id, AckRecord(vm_id, Ack.STARTED, attempt))
    assert row(ledger, 1).state == RunState.QUEUED


def test_an_ack_of_an_unknown_command_or_state_is_refused(ledger: Ledger) -> None:
    with pytest.raises(NotFoundError):
        ledger.ack("f" * 32, AckRecord(A, Ack.STARTED, 1))
    take(ledger, "run:pretrain")
    command = ledger.deliver(A, 0)[0]
    with pytest.raises(UsageError):
        ack(ledger, command, Ack.FINISHED, state="wonderful")


def test_odd_texts_and_lists_from_a_vm_are_taken_for_what_they_are(ledger: Ledger) -> None:
    take(ledger, "run:pretrain")
    ack(
        ledger, ledger.deliver(A, 0)[0], Ack.FINISHED, exit_code=1, state="failed", reason="no file \udcff" + "x" * 9999
    )
    assert row(ledger, 1).reason.startswith("no file ?") and len(row(ledger, 1).reason) == 2000
    odd: list[Any] = [{}, "x", {"run_id": "pretrain-0001-abcdef", "attempt": "1"}, {"run_id": "../x", "attempt": 1}]
    assert ledger.heartbeat(Heartbeat(A, "boot", 0.0, runs=odd)) == []
    assert ledger.heartbeat(beat(A, ("pretrain-0009-abcdef", 2**70))) == [("pretrain-0009-abcdef", 2**70)]


def test_unknown_is_a_failure_of_its_own_class_and_rejected_ends_the_command(ledger: Ledger) -> None:
    take(ledger, encode_shell("rm -rf scratch"), "run:pretrain")
    shell, run = ledger.deliver(A, 0)
    ack(ledger, shell, Ack.UNKNOWN)
    ack(ledger, run, Ack.REJECTED, reason="needs a GPU")
    assert (row(ledger, 1).state, row(ledger, 1).failure_class) == ("failed", FailureClass.UNKNOWN_OUTCOME)
    assert (row(ledger, 2).state, row(ledger, 2).reason) == ("rejected", "needs a GPU")


# --- stop ---------------------------------------------------------------------------------------------


def test_stopping_a_run_that_no_vm_has_is_done_at_once(ledger: Ledger) -> None:
    rows = take(ledger, "run:pretrain", "run:finetune", "stop:pretrain")
    assert row(ledger, 1).state == "stopped" and rows[2].state == "done"
    assert row(ledger, 2).failure_class == FailureClass.UPSTREAM
    assert ledger.deliver(A, 0) == []


def test_stopping_a_delivered_run_goes_to_the_vm_that_has_it(ledger: Ledger) -> None:
    run_id = take(ledger, "run:pretrain")[0].run_id
    first = ledger.deliver(A, 0)[0]
    take(ledger, f"stop:{run_id[:12]}")
    assert ledger.deliver(B, 0) == []
    stop = ledger.deliver(A, first.delivery)[0]
    assert (stop.verb, stop.argument, stop.spec) == ("stop", run_id, None)
    ack(ledger, stop, Ack.FINISHED)
    assert row(ledger, 2).state == "done"


def test_a_run_that_was_asked_to_stop_is_not_offered_again_when_its_vm_dies(ledger: Ledger) -> None:
    take(ledger, "run:pretrain")
    ledger.deliver(A, 0)
    take(ledger, "stop:pretrain")
    ledger.mark_vm_gone(A, "killed")
    assert (row(ledger, 1).state, row(ledger, 2).state) == ("stopped", "done")
    assert ledger.deliver(B, 0) == []


# --- lost, gone, back ------------------------------------------------------------------------------------


def test_a_gone_vms_run_is_offered_to_the_next_with_a_higher_attempt(ledger: Ledger) -> None:
    run_id = take(ledger, f"@{A} run:pretrain")[0].run_id
    first = ledger.deliver(A, 0)[0]
    ack(ledger, first, Ack.STARTED)
    ledger.mark_vm_gone(A, "its kernel is gone")
    lost = row(ledger, 1)
    assert (lost.state, lost.vm_id, lost.attempt, lost.target_vm) == ("lost", "", 2, "")
    second = ledger.deliver(B, 0)[0]
    assert (second.id, second.attempt, second.run_id) == (first.id, 2, run_id) and second.delivery > first.delivery
    assert ledger.owns(run_id, B, 2) and not ledger.owns(run_id, A, 1)
    assert [(vm.vm_id, vm.state) for vm in ledger.vms()] == [(A, "gone"), (B, "live")]


def test_a_lost_vms_shell_command_has_an_unknown_outcome_and_is_never_repeated(ledger: Ledger) -> None:
    take(ledger, encode_shell("pip list"), "sync:")
    ledger.deliver(A, 0)
    ledger.mark_vm_gone(A, "killed")
    assert (row(ledger, 1).state, row(ledger, 1).failure_class) == ("failed", FailureClass.UNKNOWN_OUTCOME)
    assert row(ledger, 2).state == "failed" and "its VM is gone" in row(ledger, 2).reason
    assert ledger.deliver(B, 0) == []


def test_of_a_shell_command_it_says_whether_it_was_heard_to_begin(ledger: Ledger) -> None:
    take(ledger, encode_shell("pip list"), encode_shell("nvidia-smi"))
    ack(ledger, ledger.deliver(A, 0)[0], Ack.STARTED)
    ledger.mark_vm_gone(A, "killed")
    assert row(ledger, 1).reason == f"{A} is gone: killed; it had begun, and nobody knows how it ended; not repeated"
    assert "nobody heard that it had begun, and it may have; not repeated" in row(ledger, 2).reason
    assert row(ledger, 2).failure_class == FailureClass.UNKNOWN_OUTCOME


def test_a_shell_outcome_that_arrives_after_all_replaces_the_unknown_one(ledger: Ledger, clock: Clock) -> None:
    take(ledger, encode_shell("pip list"))
    command = ledger.deliver(A, 0)[0]
    assert keep_listening(ledger, clock, 65) == [A]
    ack(ledger, command, Ack.FINISHED, exit_code=0, state="done")
    assert (row(ledger, 1).state, row(ledger, 1).failure_class) == ("done", "")


def test_a_vm_is_lost_after_the_silence_and_not_before(ledger: Ledger, clock: Clock) -> None:
    take(ledger, "run:pretrain")
    ledger.deliver(A, 0)
    assert keep_listening(ledger, clock, 60) == []
    assert keep_listening(ledger, clock, 5) == [A]
    assert row(ledger, 1).state == "lost" and ledger.vms()[0].state == "silent"


def test_a_night_of_sleep_or_a_restart_of_the_bridge_loses_nobody(ledger: Ledger, clock: Clock) -> None:
    take(ledger, "run:pretrain")
    ledger.deliver(A, 0)
    keep_listening(ledger, clock, 10)
    clock.now += 8 * 3600
    assert keep_listening(ledger, clock, 30) == []
    ledger.heartbeat(beat(A))
    assert keep_listening(ledger, clock, 50) == []
    assert row(ledger, 1).vm_id == A


def test_a_vm_that_comes_back_before_another_took_its_run_keeps_it(ledger: Ledger, clock: Clock) -> None:
    run_id = take(ledger, "run:pretrain")[0].run_id
    command = ledger.deliver(A, 0)[0]
    ack(ledger, command, Ack.STARTED)
    keep_listening(ledger, clock, 65)
    assert not ledger.owns(run_id, A, 1)
    assert ledger.heartbeat(beat(A, (run_id, 1))) == []
    assert (row(ledger, 1).state, row(ledger, 1).attempt, row(ledger, 1).vm_id) == ("running", 1, A)
    assert ledger.deliver(B, 0) == []


def test_a_poll_of_a_vm_that_comes_back_gives_its_run_back_too(ledger: Ledger, clock: Clock) -> None:
    take(ledger, "run:pretrain")
    command = ledger.deliver(A, 0)[0]
    keep_listening(ledger, clock, 65)
    assert ledger.deliver(A, command.delivery) == []
    assert (row(ledger, 1).attempt, row(ledger, 1).vm_id) == (1, A)


def test_a_vm_that_comes_back_too_late_is_told_what_it_no_longer_owns(ledger: Ledger, clock: Clock) -> None:
    run_id = take(ledger, "run:pretrain")[0].run_id
    command = ledger.deliver(A, 0)[0]
    keep_listening(ledger, clock, 65)
    ack(ledger, ledger.deliver(B, 0)[0], Ack.ACCEPTED)
    assert ledger.heartbeat(beat(A, (run_id, 1))) == [(run_id, 1)]
    with pytest.raises(SupersededError):
        ack(ledger, command, Ack.FINISHED, exit_code=0, state="done")
    assert row(ledger, 1).vm_id == B


def test_a_poll_that_still_hangs_in_the_server_does_not_revive_a_gone_vm(ledger: Ledger) -> None:
    take(ledger, "run:pretrain")
    ledger.deliver(A, 0)
    ledger.mark_vm_gone(A, "killed")
    assert ledger.deliver(A, 0) == []
    assert ledger.vms()[0].state == "gone" and row(ledger, 1).state == "lost"


def test_a_line_pinned_to_a_vm_that_dies_is_set_free(ledger: Ledger) -> None:
    ledger.deliver(B, 0)
    take(ledger, "run:pretrain", f"@{B} run:finetune")
    ledger.deliver(A, 0)
    ledger.mark_vm_gone(B, "killed")
    assert row(ledger, 2).target_vm == ""
    assert [c.seq for c in ledger.deliver(A, 0)] == [1, 2]


# --- for people, and for other processes -----------------------------------------------------------------------


def test_a_run_is_found_by_id_by_stage_and_by_the_beginning_of_its_id(ledger: Ledger) -> None:
    rows = take(ledger, "run:pretrain", "run:pretrain")
    assert ledger.find_run(rows[0].run_id).seq == 1
    assert ledger.find_run("pretrain").seq == 2
    assert ledger.find_run("pretrain-0001").seq == 1
    with pytest.raises(UsageError, match="2 runs begin"):
        ledger.find_run("pretrain-")
    with pytest.raises(NotFoundError) as caught:
        ledger.find_run("pretrian")
    assert "did you mean" in caught.value.hint


def test_the_newest_commands_and_notes_come_oldest_first(ledger: Ledger) -> None:
    take(ledger, "run:pretrain", "sync:", "sync:")
    for number in range(4):
        ledger.add_note(number, f"note {number}")
    assert [row.seq for row in ledger.commands(limit=2)] == [2, 3]
    assert [note.line_number for note in ledger.notes(limit=2)] == [2, 3]


def test_listeners_hear_of_changes_also_of_those_that_another_process_makes(ledger: Ledger, tmp_path: Path) -> None:
    heard: list[int] = []
    take(ledger, "run:pretrain")
    ledger.deliver(A, 0)
    ledger.sweep_lost(60)
    ledger.on_change(lambda: heard.append(1))
    code = "import sys; from pathlib import Path; from bridge.ledger import Ledger\n"
    code += f"Ledger(Path(sys.argv[1])).mark_vm_gone({A!r}, 'killed')"
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", code, str(tmp_path / names.LEDGER_FILE)], cwd=root, check=True, timeout=30)
    assert heard == []
    ledger.sweep_lost(60)
    assert heard == [1]
    assert row(ledger, 1).state == "lost"


def test_many_queued_commands_come_in_batches_that_lose_none(ledger: Ledger) -> None:
    ledger.take([(n, encode_shell("true")) for n in range(1000)], PROJECT)
    got: list[int] = []
    after = 0
    while commands := ledger.deliver(A, after):
        got += [command.seq for command in commands]
        after = commands[-1].delivery
    assert got == list(range(1, 1001))


def test_what_must_last_is_flushed_to_the_disk(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger")
    assert ledger._db.execute("PRAGMA synchronous").fetchone()[0] == 2  # FULL
    with contextlib.closing(sqlite3.connect(tmp_path / "ledger")) as other:
        assert other.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
    ledger.close()
