"""The journal: what is in it is never acted on twice, and a kill at any byte leaves it readable."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from bridgehead import files
from bridgehead.names import Ack, RunState
from bridgehead.records import AckRecord, Command
from vm_daemons.journal import Journal, Step


def command(delivery: int = 1, *, identity: str = "a" * 32, attempt: int = 1) -> Command:
    return Command(identity, 1, delivery, "vm-1", "sync", "", 0.0, attempt)


def answer() -> AckRecord:
    return AckRecord("vm-1", Ack.FINISHED, 1, state=RunState.DONE)


def test_what_was_accepted_is_known_after_a_restart(tmp_path: Path) -> None:
    Journal(tmp_path / "journal").accept([command(7)])
    again = Journal(tmp_path / "journal")
    assert again.seen("a" * 32)
    assert again.highest_delivery == 7
    assert [entry.step for entry in again.entries()] == [Step.ACCEPTED]


def test_each_step_is_replayed(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    journal.accept([command()])
    journal.starting(command())
    journal.starting(command())
    journal.started(command())
    journal.finished(command(), answer())
    journal.acked(command(), Ack.ACCEPTED)
    entry = Journal(tmp_path / "journal").entry(command())
    assert entry is not None
    assert (entry.step, entry.starts, entry.started, entry.acked) == (Step.FINISHED, 2, True, {"accepted"})
    assert entry.answer == answer()


def test_a_second_delivery_is_not_accepted_again(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    assert journal.accept([command(1)]) == [command(1)]
    assert journal.accept([command(5)]) == []
    assert Journal(tmp_path / "journal").highest_delivery == 5


def test_the_same_command_twice_in_one_delivery_is_accepted_once(tmp_path: Path) -> None:
    assert len(Journal(tmp_path / "journal").accept([command(2), command(1)])) == 1


def test_a_second_delivery_makes_all_answers_due_again(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    journal.accept([command(1)])
    journal.acked(command(1), Ack.ACCEPTED)
    journal.accept([command(2)])
    entry = journal.entry(command())
    assert entry is not None
    assert entry.acked == set()


def test_a_new_attempt_is_a_new_entry_and_an_older_one_is_known(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    journal.accept([command(1, attempt=2)])
    assert journal.accept([command(2, attempt=1)]) == []
    assert journal.accept([command(3, attempt=3)]) == [command(3, attempt=3)]


@pytest.mark.parametrize("cut", [1, 20, 60])
def test_a_torn_last_line_was_never_acted_on(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "journal"
    Journal(path).accept([command(1)])
    whole = path.stat().st_size
    Journal(path).accept([command(2, identity="b" * 32)])
    os.truncate(path, whole + cut)
    journal = Journal(path)
    assert not journal.seen("b" * 32)
    journal.accept([command(2, identity="b" * 32)])
    assert Journal(path).seen("b" * 32)


def test_a_line_of_garbage_in_the_middle_hides_nothing(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    Journal(path).accept([command(1)])
    with path.open("ab") as handle:
        handle.write(b"\xff\x00 not json\n{}\n[1]\n")
    Journal(path).accept([command(2, identity="b" * 32)])
    journal = Journal(path)
    assert journal.seen("a" * 32)
    assert journal.seen("b" * 32)


def test_a_full_disk_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "journal"
    journal = Journal(path)

    def torn(target: Path, line: str, *, durable: bool = True) -> None:
        target.write_bytes(line[:10].encode())
        raise OSError(errno.ENOSPC, "no room")

    with monkeypatch.context() as patch:
        patch.setattr(files, "append_line", torn)
        with pytest.raises(OSError, match="no room"):
            journal.accept([command(1)])
    assert not journal.seen("a" * 32)
    assert path.read_bytes() == b""


def test_ten_thousand_commands_cost_one_fsync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(tmp_path / "journal")
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    many = [command(number, identity=f"{number:032x}") for number in range(10_000)]
    assert len(journal.accept(many)) == 10_000
    assert len(synced) == 1
