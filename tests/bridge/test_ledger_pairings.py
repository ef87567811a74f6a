"""A run stays in the pairing of the VM that it was given to or pinned to; what waits in vain ends with words."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from ledger_support import PROJECT, Clock, ack, beat, keep_listening

from bridge.keys import KeyStore
from bridge.ledger import Ledger
from bridge.ledger_rows import CommandRow
from bridgehead import names
from bridgehead.errors import SupersededError
from bridgehead.names import Ack, RunState
from bridgehead.queue_lines import encode_shell
from bridgehead.records import AckRecord

A1, A2, B1 = "vm-a1", "vm-a2", "vm-b1"
SHELL = encode_shell("nvidia-smi")


class Laptop:
    """A ledger and its keys, with two pairings: "a", whose VMs are A1 and A2, and the current one, with B1."""

    def __init__(self, folder: Path) -> None:
        self.clock = Clock()
        self.keys = KeyStore(folder / names.KEYS_FILE)
        self.ledger = Ledger(folder / names.LEDGER_FILE, clock=self.clock)
        self.a = self.keys.make("a")
        self.speaks(A1, self.a.id)
        self.speaks(B1, self.keys.current()[0])

    def speaks(self, vm_id: str, key_id: str) -> None:
        item = self.keys.get(key_id)
        assert item is not None
        self.ledger.bind_vm(vm_id, item.id, item.family, allow_sh=item.allow_sh)
        self.heed()

    def heed(self) -> None:
        self.ledger.heed_pairings(self.keys.pairings())

    def given(self, vm_id: str) -> list[str]:
        return [command.run_id for command in self.ledger.deliver(vm_id, 0)]

    def row(self) -> CommandRow:
        return self.ledger.commands()[0]

    def take(self, line: str) -> CommandRow:
        return self.ledger.take([(1, line)], PROJECT)[0]


@pytest.fixture
def laptop(tmp_path: Path) -> Iterator[Laptop]:
    made = Laptop(tmp_path)
    yield made
    made.ledger.close()


@pytest.mark.parametrize("line", ["run:pretrain", f"@{A1} run:pretrain"])
@pytest.mark.parametrize("end", ["gone", "silent", "handed over"])
def test_a_run_whose_vm_is_no_more_waits_for_one_of_the_same_pairing(laptop: Laptop, line: str, end: str) -> None:
    run_id = laptop.take(line).run_id
    assert laptop.given(A1) == [run_id]
    if end == "gone":
        laptop.ledger.mark_vm_gone(A1, "killed")
    elif end == "silent":
        keep_listening(laptop.ledger, laptop.clock, 65)
    else:
        last = beat(A1)
        last.lifetime["handed_over"] = [run_id]
        laptop.ledger.heartbeat(last)
    assert laptop.given(B1) == [] and laptop.ledger.news_of([(B1, 0)]) == [False]
    laptop.heed()
    assert laptop.row().state == "lost"
    laptop.speaks(A2, laptop.a.id)
    assert laptop.given(A2) == [run_id]


def test_what_was_pinned_and_never_delivered_stays_in_the_pairing_of_its_vm(laptop: Laptop) -> None:
    laptop.ledger.heartbeat(beat(A1))
    laptop.clock.now += 1
    run_id = laptop.take(f"@{A1} run:pretrain").run_id
    laptop.ledger.mark_vm_gone(A1, "killed")
    assert laptop.given(B1) == []
    laptop.speaks(A2, laptop.a.id)
    assert laptop.given(A2) == [run_id]


def test_a_vm_of_another_pairing_claims_nothing_that_was_pinned_or_lost(laptop: Laptop) -> None:
    pinned = laptop.take(f"@{A1} run:pretrain")
    with pytest.raises(SupersededError):
        laptop.ledger.ack(pinned.id, AckRecord(B1, Ack.STARTED, 2))
    laptop.given(A1)
    laptop.ledger.mark_vm_gone(A1, "killed")
    with pytest.raises(SupersededError):
        laptop.ledger.ack(pinned.id, AckRecord(B1, Ack.STARTED, 3))
    laptop.speaks(A2, laptop.a.id)
    laptop.ledger.ack(pinned.id, AckRecord(A2, Ack.STARTED, 3))
    assert laptop.row().vm_id == A2


def _pipeline_with_a_finished_pretrain(laptop: Laptop) -> list[CommandRow]:
    """pretrain is done on A1, which is gone; finetune and gate wait."""
    rows = laptop.ledger.take([(1, "run:pretrain"), (2, "run:finetune"), (3, "run:gate")], PROJECT)
    pretrain = next(command for command in laptop.ledger.deliver(A1, 0) if command.run_id == rows[0].run_id)
    ack(laptop.ledger, pretrain, Ack.STARTED)
    ack(laptop.ledger, pretrain, Ack.FINISHED, state=RunState.DONE)
    laptop.ledger.mark_vm_gone(A1, "killed")
    return rows


def test_what_comes_after_a_run_stays_in_its_pairing(laptop: Laptop) -> None:
    _, finetune, gate = _pipeline_with_a_finished_pretrain(laptop)
    late = laptop.take("run:finetune")
    laptop.heed()
    assert laptop.given(B1) == [] and laptop.ledger.news_of([(B1, 0)]) == [False]
    with pytest.raises(SupersededError):
        laptop.ledger.ack(gate.id, AckRecord(B1, Ack.STARTED, 2))
    laptop.speaks(A2, laptop.a.id)
    assert laptop.given(A2)[0] == finetune.run_id and late.run_id in laptop.given(A2)


def test_what_is_pinned_to_a_vm_of_another_pairing_goes_there_all_the_same(laptop: Laptop) -> None:
    _pipeline_with_a_finished_pretrain(laptop)
    pinned = laptop.take(f"@{B1} run:finetune")
    assert laptop.given(B1) == [pinned.run_id]


def test_what_comes_after_a_run_of_a_revoked_pairing_ends_with_words_once_that_run_has(laptop: Laptop) -> None:
    pretrain, finetune = laptop.ledger.take([(1, "run:pretrain"), (2, "run:finetune")], PROJECT)
    (command, *_) = laptop.ledger.deliver(A1, 0)
    late = laptop.take("run:finetune")
    laptop.keys.revoke(laptop.a.id)
    laptop.heed()
    assert {row.run_id: row.state for row in laptop.ledger.commands()}[late.run_id] == "queued"
    ack(laptop.ledger, command, Ack.FINISHED, state=RunState.DONE)
    laptop.ledger.mark_vm_gone(A1, "killed")
    laptop.heed()
    told = {row.run_id: row for row in laptop.ledger.commands()}
    assert told[late.run_id].state == told[finetune.run_id].state == "failed"
    assert laptop.a.id in told[late.run_id].reason and "keys new" in told[late.run_id].reason
    assert told[pretrain.run_id].state == "done"


def test_a_rotated_key_is_the_same_pairing(laptop: Laptop) -> None:
    run_id = laptop.take("run:pretrain").run_id
    laptop.given(A1)
    laptop.ledger.mark_vm_gone(A1, "killed")
    laptop.speaks(A2, laptop.keys.rotate(laptop.a.id).id)
    assert laptop.given(A2) == [run_id]


def test_without_an_heir_of_a_revoked_pairing_its_run_fails_with_words(laptop: Laptop) -> None:
    run_id = laptop.take("run:pretrain").run_id
    laptop.given(A1)
    laptop.keys.revoke(laptop.a.id)
    laptop.heed()
    assert laptop.row().state == "queued"  # its VM has it: it may yet be paired anew
    laptop.ledger.mark_vm_gone(A1, "killed")
    laptop.heed()
    row = laptop.row()
    assert (row.state, row.failure_class) == ("failed", "vm_lost")
    assert laptop.a.id in row.reason and "revoked" in row.reason and f"resume={run_id}" in row.reason


def test_a_pairing_that_was_made_after_the_revocation_follows(laptop: Laptop) -> None:
    run_id = laptop.take("run:pretrain").run_id
    laptop.given(A1)
    laptop.keys.revoke(laptop.a.id)
    heir = laptop.keys.make("a again")
    laptop.ledger.mark_vm_gone(A1, "killed")
    laptop.heed()
    assert laptop.given(B1) == []
    laptop.speaks(A2, heir.id)
    assert laptop.given(A2) == [run_id]


def test_a_silent_vm_that_is_paired_anew_gets_back_what_had_failed(laptop: Laptop) -> None:
    laptop.take("run:pretrain")
    (command,) = laptop.ledger.deliver(A1, 0)
    ack(laptop.ledger, command, Ack.STARTED)
    laptop.keys.revoke(laptop.a.id)
    keep_listening(laptop.ledger, laptop.clock, 65)
    laptop.heed()
    assert laptop.row().state == "failed"
    heir = laptop.keys.make("a again")
    laptop.speaks(A1, heir.id)
    laptop.ledger.heartbeat(beat(A1, (command.run_id, 1)))
    assert (laptop.row().state, laptop.row().vm_id, laptop.row().family) == ("running", A1, heir.family)


def test_a_shell_line_for_a_vm_that_turns_out_to_run_none_is_rejected_with_words(laptop: Laptop) -> None:
    laptop.take(f"@vm-new {SHELL}")
    laptop.speaks("vm-new", laptop.keys.make("narrow", allow_sh=False).id)
    row = laptop.row()
    assert row.state == "rejected" and "vm-new was paired with a key that does not allow sh:" in row.reason


def test_a_shell_line_that_no_pairing_runs_any_more_is_rejected_with_words(tmp_path: Path) -> None:
    keys = KeyStore(tmp_path / names.KEYS_FILE)
    ledger = Ledger(tmp_path / names.LEDGER_FILE, clock=Clock())
    ledger.heed_pairings(keys.pairings())
    ledger.take([(1, SHELL), (2, "run:pretrain")], PROJECT)
    only, narrow = keys.current()[0], keys.make("narrow", allow_sh=False)
    keys.revoke(only)
    keys.revoke(keys.current()[0])  # its heir
    told = [item for item in keys.pairings() if item.family == narrow.id or item.ended]
    ledger.heed_pairings(told)
    shell, run = ledger.commands()
    ledger.close()
    assert shell.state == "rejected" and "keys new" in shell.reason and run.state == "queued"


def test_a_shell_line_for_a_vm_that_is_gone_has_ended(laptop: Laptop) -> None:
    laptop.ledger.heartbeat(beat(A1))
    laptop.take(f"@{A1} {SHELL}")
    laptop.ledger.mark_vm_gone(A1, "killed")
    assert laptop.row().state == "failed" and f"was meant for {A1}, which is gone: killed" in laptop.row().reason


def test_a_ledger_of_before_gets_the_column(tmp_path: Path) -> None:
    path = tmp_path / names.LEDGER_FILE
    Ledger(path).close()
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("ALTER TABLE commands DROP COLUMN family")
        db.execute("DROP TABLE pairings")
    ledger = Ledger(path)
    assert ledger.take([(1, "run:pretrain")], PROJECT)[0].family == ""
    ledger.close()
