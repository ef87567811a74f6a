"""Who owns a run when VMs fall silent, come back, take over from the store or hand over."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from ledger_support import PROJECT, Clock, ack, beat, keep_listening

from bridge import ledger_claims
from bridge.ledger import Ledger
from bridge.ledger_rows import CommandRow
from bridgehead import names
from bridgehead.errors import NotFoundError, SupersededError
from bridgehead.names import Ack, FailureClass
from bridgehead.queue_lines import encode_shell
from bridgehead.records import AckRecord, Command, Heartbeat

A, B, C = "vm-aaaaaa", "vm-bbbbbb", "vm-cccccc"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ledger(tmp_path: Path, clock: Clock) -> Iterator[Ledger]:
    ledger = Ledger(tmp_path / names.LEDGER_FILE, clock=clock)
    yield ledger
    ledger.close()


@pytest.fixture
def lent(ledger: Ledger, clock: Clock) -> Command:
    """A has started a run and fallen silent; B was given it and has not accepted it. The command as B has it."""
    ledger.take([(1, "run:pretrain")], PROJECT)
    ack(ledger, ledger.deliver(A, 0)[0], Ack.STARTED)
    keep_listening(ledger, clock, 65)
    return ledger.deliver(B, 0)[0]


def row(ledger: Ledger) -> CommandRow:
    return ledger.commands()[0]


def claims(ledger: Ledger, command: Command, vm_id: str, attempt: int, kind: Ack = Ack.STARTED) -> None:
    ledger.ack(command.id, AckRecord(vm_id, kind, attempt, state="done" if kind is Ack.FINISHED else ""))


# --- lent until there is a second sign -----------------------------------------------------------------------


def test_what_is_lent_names_its_former_vm_and_that_it_is_only_silent(lent: Command) -> None:
    assert (lent.attempt, lent.former_vm, lent.former_gone) == (2, A, False)


def test_a_vm_to_which_a_run_is_only_lent_may_send_nothing_of_it(ledger: Ledger, lent: Command) -> None:
    assert not ledger.owns(lent.run_id, B, 2)
    ack(ledger, lent, Ack.ACCEPTED)
    assert ledger.owns(lent.run_id, B, 2)


def test_a_silent_vm_is_lost_once_another_has_accepted_its_run(ledger: Ledger, lent: Command) -> None:
    assert [vm.state for vm in ledger.vms()] == ["silent", "live"]
    ack(ledger, lent, Ack.ACCEPTED)
    assert [vm.state for vm in ledger.vms()] == ["lost", "live"]
    assert ledger.heartbeat(beat(A, (lent.run_id, 1))) == [(lent.run_id, 1)]
    assert ledger.owns(lent.run_id, B, 2)


def test_a_vm_that_comes_back_before_that_keeps_its_run_and_the_other_hears_of_it(
    ledger: Ledger, lent: Command
) -> None:
    assert ledger.heartbeat(beat(A, (lent.run_id, 1))) == []
    assert (row(ledger).vm_id, row(ledger).attempt, row(ledger).state) == (A, 1, "running")
    assert ledger.heartbeat(beat(B)) == [(lent.run_id, 2)]
    with pytest.raises(SupersededError):
        ack(ledger, lent, Ack.ACCEPTED)


def test_what_was_lent_and_taken_back_is_offered_next_time_with_a_new_attempt(
    ledger: Ledger, lent: Command, clock: Clock
) -> None:
    ledger.heartbeat(beat(A))
    ledger.heartbeat(beat(B))
    for _ in range(65):  # B goes on polling
        keep_listening(ledger, clock, 1)
        found = ledger.deliver(B, lent.delivery)
    assert [(command.id, command.attempt) for command in found] == [(lent.id, 3)]


def test_a_vm_that_falls_silent_with_what_it_had_not_accepted_owns_nothing_of_it(
    ledger: Ledger, lent: Command, clock: Clock
) -> None:
    keep_listening(ledger, clock, 65)
    (third,) = ledger.deliver(C, 0)
    assert (third.attempt, third.former_vm) == (3, A)
    assert ledger.heartbeat(beat(B)) == [(lent.run_id, 2)]
    assert ledger.heartbeat(beat(A, (lent.run_id, 1))) == []
    assert row(ledger).vm_id == A


def test_when_the_silent_vm_turns_out_to_be_gone_the_other_hears_of_it(ledger: Ledger, lent: Command) -> None:
    ledger.mark_vm_gone(A, "killed")
    (again,) = ledger.deliver(B, lent.delivery)
    assert (again.id, again.attempt, again.former_gone) == (lent.id, 2, True)


def test_silence_ends_neither_a_shell_command_nor_a_stop_for_good(ledger: Ledger, clock: Clock) -> None:
    ledger.take([(1, encode_shell("pip list")), (2, "run:pretrain"), (3, "sync:")], PROJECT)
    for command in ledger.deliver(A, 0):
        ack(ledger, command, Ack.STARTED)
    ledger.take([(4, "stop:pretrain")], PROJECT)
    before = [(row.state, row.vm_id, row.attempt) for row in ledger.commands()]
    keep_listening(ledger, clock, 65)
    assert [row.state for row in ledger.commands()] == ["failed", "stopped", "failed", "done"]
    ledger.heartbeat(beat(A))
    assert [(row.state, row.vm_id, row.attempt) for row in ledger.commands()] == before


def test_a_run_that_is_only_lent_is_stopped_at_once_and_stays_so(ledger: Ledger, lent: Command) -> None:
    ledger.take([(2, "stop:pretrain")], PROJECT)
    assert [row.state for row in ledger.commands()] == ["stopped", "done"]
    assert ledger.heartbeat(beat(B)) == [(lent.run_id, 2)]
    assert ledger.heartbeat(beat(A, (lent.run_id, 1))) == [(lent.run_id, 1)]
    assert row(ledger).state == "stopped"


# --- claims ------------------------------------------------------------------------------------------------------


def test_a_vm_that_took_a_run_over_while_the_laptop_was_away_owns_it(ledger: Ledger, clock: Clock) -> None:
    ledger.take([(1, "run:pretrain")], PROJECT)
    command = ledger.deliver(A, 0)[0]
    assert ledger.heartbeat(beat(B, (command.run_id, 2))) == []  # its claim is on the way
    claims(ledger, command, B, 2)
    assert (row(ledger).vm_id, row(ledger).attempt, row(ledger).state) == (B, 2, "running")
    assert ledger.owns(command.run_id, B, 2)
    assert ledger.heartbeat(beat(A, (command.run_id, 1))) == [(command.run_id, 1)]
    with pytest.raises(SupersededError):
        ack(ledger, command, Ack.FINISHED, state="done")


def test_a_claim_of_an_ended_command_or_of_an_equal_attempt_is_refused(ledger: Ledger) -> None:
    ledger.take([(1, "run:pretrain")], PROJECT)
    command = ledger.deliver(A, 0)[0]
    claims(ledger, command, B, 2)
    with pytest.raises(SupersededError):
        claims(ledger, command, C, 2)
    claims(ledger, command, B, 2, Ack.FINISHED)
    with pytest.raises(SupersededError):
        claims(ledger, command, C, 3)
    assert (row(ledger).state, row(ledger).vm_id) == ("done", B)


def test_a_claim_goes_before_an_offer_that_nobody_has_accepted(ledger: Ledger, lent: Command) -> None:
    claims(ledger, lent, C, 2)
    assert (row(ledger).vm_id, row(ledger).attempt) == (C, 2)
    with pytest.raises(SupersededError):
        ack(ledger, lent, Ack.ACCEPTED)
    assert ledger.heartbeat(beat(B)) == [(lent.run_id, 2)]
    assert ledger.heartbeat(beat(A, (lent.run_id, 1))) == [(lent.run_id, 1)]


def test_a_run_that_ended_in_the_store_alone_is_finished_by_a_claim(ledger: Ledger) -> None:
    ledger.take([(1, "run:pretrain")], PROJECT)
    command = ledger.deliver(A, 0)[0]
    claims(ledger, command, B, 2, Ack.FINISHED)
    assert (row(ledger).state, row(ledger).vm_id, row(ledger).attempt) == ("done", B, 2)


def test_a_vm_may_say_of_a_dead_ones_shell_command_that_nobody_knows_its_outcome(ledger: Ledger) -> None:
    ledger.take([(1, encode_shell("rm -rf scratch"))], PROJECT)
    command = ledger.deliver(A, 0)[0]
    claims(ledger, command, B, 2, Ack.UNKNOWN)
    assert (row(ledger).failure_class, row(ledger).vm_id) == (FailureClass.UNKNOWN_OUTCOME, A)
    ack(ledger, command, Ack.FINISHED, exit_code=0, state="done")  # it lived after all
    assert (row(ledger).state, row(ledger).failure_class) == ("done", "")


def test_a_claim_of_a_command_that_was_never_queued_here_is_unknown(ledger: Ledger) -> None:
    with pytest.raises(NotFoundError):
        ledger.ack("f" * 32, AckRecord(B, Ack.STARTED, 2))


@pytest.mark.parametrize("attempt", [2**31, 2**70, -1])
def test_an_attempt_that_makes_no_sense_is_no_claim(ledger: Ledger, attempt: int) -> None:
    ledger.take([(1, "run:pretrain")], PROJECT)
    command = ledger.deliver(A, 0)[0]
    with pytest.raises(SupersededError):
        claims(ledger, command, B, attempt)


# --- the end of a VM's life, and the budget -----------------------------------------------------------------------


def _handing_over(vm_id: str, *run_ids: str) -> Heartbeat:
    return Heartbeat(vm_id, "boot", 0.0, lifetime={"handed_over": list(run_ids)})


def test_what_a_vm_has_handed_over_is_offered_at_once_and_to_others_alone(ledger: Ledger) -> None:
    run_id = ledger.take([(1, f"@{A} run:pretrain")], PROJECT)[0].run_id
    ack(ledger, ledger.deliver(A, 0)[0], Ack.STARTED)
    ledger.heartbeat(_handing_over(A, run_id))
    ledger.heartbeat(_handing_over(A, run_id))
    assert ledger.deliver(A, 0) == []
    (command,) = ledger.deliver(B, 0)
    assert (command.attempt, command.former_vm, command.former_gone) == (2, A, True)


@pytest.mark.parametrize("listed", [None, "x", [None, 1, {}, "../x", "pretrain-0009-abcdef"]])
def test_a_list_of_what_is_handed_over_that_makes_no_sense_moves_nothing(ledger: Ledger, listed: object) -> None:
    ledger.take([(1, "run:pretrain")], PROJECT)
    ledger.deliver(A, 0)
    ledger.heartbeat(Heartbeat(A, "boot", 0.0, lifetime={"handed_over": listed}))
    assert row(ledger).vm_id == A


def test_a_run_that_has_lost_too_many_vms_fails(ledger: Ledger) -> None:
    ledger.take([(1, "run:pretrain")], PROJECT)
    for number in range(ledger_claims.LOSSES_MAX):
        (command,) = ledger.deliver(f"vm-{number}", 0)
        ack(ledger, command, Ack.ACCEPTED)
        ledger.mark_vm_gone(f"vm-{number}", "killed")
    assert (row(ledger).state, row(ledger).failure_class) == ("failed", FailureClass.VM_LOST)
    assert f"{ledger_claims.LOSSES_MAX} VMs" in row(ledger).reason


def test_offers_that_nobody_accepted_cost_nothing_of_the_budget(ledger: Ledger, clock: Clock) -> None:
    ledger.take([(1, "run:pretrain")], PROJECT)
    ack(ledger, ledger.deliver(A, 0)[0], Ack.STARTED)
    for _ in range(ledger_claims.LOSSES_MAX + 2):
        keep_listening(ledger, clock, 62)
        ledger.deliver(B, 0)
        ledger.heartbeat(beat(A))
    assert (row(ledger).state, row(ledger).vm_id, row(ledger).attempt) == ("running", A, 1)
