"""Each invariant of the campaign must be able to fail: a checker that can't say no proves nothing."""

from __future__ import annotations

import hashlib
import json
import os
import random
from pathlib import Path

import pytest

from bridgehead import names
from bridgehead.names import FailureClass, RunState
from chaos import log_check, store_check
from chaos.log_check import Life
from chaos.store_check import FolderRun
from chaos.verdict import CommandSeen, Verdict, half_files


def _records(token: str, numbers: range) -> bytes:
    return b"".join(f"[{token}:{n:06d}] {n:06d}\n".encode() for n in numbers)


RECORD = len(_records("aaaaaaaa", range(1)))
FIRST = b"--- attempt 1 on vm-a\n" + _records("aaaaaaaa", range(40))
SECOND = b"--- attempt 2 on vm-b\n" + _records("bbbbbbbb", range(60))
LIVES = [Life("a", FIRST), Life("b", SECOND)]


@pytest.mark.parametrize("cut", [0, 1, 13, 21, 22, 100, 500, len(FIRST)])
def test_a_life_that_was_cut_anywhere_and_a_whole_last_one_are_accepted(cut: int) -> None:
    assert log_check.explain(FIRST[:cut] + SECOND, LIVES) == 0


def test_a_second_life_cut_within_the_header_that_it_shares_with_the_third_is_accepted() -> None:
    third = b"--- attempt 3 on vm-c\n" + _records("cccccccc", range(9))
    for cut in range(30):
        assert log_check.explain(FIRST[:100] + SECOND[:cut] + third, [*LIVES, Life("c", third)]) == 0


def test_an_attempt_that_came_back_to_its_first_vm_goes_on_in_the_same_file() -> None:
    both = FIRST + b"--- attempt 3 on vm-a\n" + _records("cccccccc", range(20))
    copy = both[:300] + SECOND[:200] + both[300:]
    assert log_check.explain(copy, [Life("a", both), Life("b", SECOND), Life("a", both)]) == 0


def test_a_new_vm_may_begin_its_file_with_what_the_store_had_of_the_former_one() -> None:
    inherited = 22 + 10 * RECORD
    lives = [Life("a", FIRST), Life("b", FIRST[:inherited] + SECOND)]
    assert log_check.explain(FIRST[: inherited + 60] + SECOND, lives) == 0
    assert log_check.explain(FIRST[:inherited] + SECOND, lives) == 0
    assert log_check.explain(FIRST[: inherited - 30] + SECOND, lives) > 0  # the store has it, so the laptop has to
    assert log_check.explain(FIRST + FIRST[:inherited] + SECOND, lives) > 0  # twice


def test_a_cut_before_a_line_that_begins_as_the_next_life_does_is_accepted() -> None:
    def line(at: str, attempt: int) -> bytes:
        return f'{{"v": 1, "at": {at}, "attempt": {attempt}, "event": "progress"}}\n'.encode()

    first, second = line("1796042610.856", 1) + line("1796042611.173", 1), line("1796042632.073", 2)
    lives = [Life("a", first), Life("b", second)]
    cut = len(line("1796042610.856", 1))
    assert log_check.explain(first[:cut] + second, lives) == 0
    assert log_check.explain(first[: cut - 1] + second[1:], lives) > 0


RESTORED = b"--- checkpoint 192 restored from the store and checked, 0.1 MiB\n"


def test_two_vms_that_put_the_same_into_words_have_both_said_it() -> None:
    at = FIRST.index(b"\n") + 1 + 10 * RECORD  # what the store had of the first one
    second, third = (
        FIRST[:at] + RESTORED + b"--- attempt 2 on vm-b\n",
        FIRST[:at] + RESTORED + b"--- attempt 3 on vm-c\n",
    )
    lives = [Life("a", FIRST), Life("b", second), Life("c", third)]
    assert log_check.explain(FIRST + second[at:] + third[at:], lives) == 0
    assert log_check.explain(FIRST + second[at:] + third[at - RECORD :], lives) > 0
    assert log_check.explain(FIRST + second[at:] + third[at + 10 :], lives) > 0


def test_two_files_whose_first_lines_begin_alike_are_not_taken_for_one_that_goes_on() -> None:
    first, second = (f'{{"v": 1, "at": 1796031{at}.1, "event": "progress"}}\n'.encode() for at in (238, 267))
    lives = [Life("a", first), Life("b", second)]
    assert log_check.explain(first + second, lives) == 0
    assert log_check.explain(first[:10] + second, lives) == 0
    assert log_check.explain(first, lives) > 0


@pytest.mark.parametrize(
    ("name", "copy"),
    [
        ("a doubled line", FIRST[: 22 + 7 * RECORD] + FIRST[22 + 6 * RECORD : 22 + 7 * RECORD] + SECOND),
        ("a lost line in the last life", FIRST + SECOND[: 22 + 7 * RECORD] + SECOND[22 + 8 * RECORD :]),
        ("a lost byte", FIRST + SECOND[:-1]),
        ("a byte too many", FIRST + SECOND + b"x"),
        ("a gap of zeros", FIRST + SECOND[:100] + bytes(50) + SECOND[150:]),
        ("the last life missing", FIRST),
        ("nothing at all", b""),
        ("the first life twice", FIRST + FIRST + SECOND),
        ("another order", SECOND + FIRST),
    ],
)
def test_a_log_that_is_not_what_its_vms_wrote_is_refused(name: str, copy: bytes) -> None:
    verdict = Verdict()
    verdict.judge_log(name, copy, LIVES)
    assert not verdict.ok
    assert verdict.log_bytes_lost > 0


def test_random_damage_to_a_log_is_never_accepted() -> None:
    whole = FIRST[:321] + SECOND
    for seed in range(200):
        draw = random.Random(seed)
        at = draw.randrange(321, len(whole) - 1)
        size = draw.randint(1, 60)
        damaged = draw.choice((whole[:at] + whole[at + size :], whole[: at + size] + whole[at:]))
        assert log_check.explain(damaged, LIVES) > 0, (seed, at, size)


def test_numbered_records_alone_show_what_is_missing_and_doubled() -> None:
    text = _records("aaaaaaaa", range(10))
    assert log_check.records(text) == (0, 0)
    assert log_check.records(text + text[:RECORD] + text[-RECORD:])[1] > 0
    assert log_check.records(text[: 2 * RECORD] + text[3 * RECORD :])[0] > 0


@pytest.mark.parametrize(
    ("seen", "field"),
    [
        (CommandSeen("sh-1", "sh", RunState.DONE, begun=2), "commands_doubled"),
        (CommandSeen("sh-1", "sh", RunState.FAILED, FailureClass.UNKNOWN_OUTCOME, begun=2), "commands_doubled"),
        (CommandSeen("sh-1", "sh", RunState.DONE, begun=0), "commands_lost"),
        (CommandSeen("sh-1", "sh", RunState.QUEUED), "commands_lost"),
        (CommandSeen("pretrain-1", "run", RunState.LOST), "commands_lost"),
    ],
)
def test_a_doubled_and_a_forgotten_command_fail(seen: CommandSeen, field: str) -> None:
    verdict = Verdict()
    verdict.judge_commands([seen])
    assert getattr(verdict, field) == 1
    assert not verdict.ok


def test_a_run_that_failed_fails_and_an_unknown_outcome_is_none() -> None:
    verdict = Verdict()
    verdict.judge_commands(
        [
            CommandSeen("sh-1", "sh", RunState.DONE, begun=1),
            CommandSeen("sh-2", "sh", RunState.FAILED, FailureClass.UNKNOWN_OUTCOME, begun=1),
            CommandSeen("sh-3", "sh", RunState.FAILED, FailureClass.UNKNOWN_OUTCOME),
            CommandSeen("pretrain-1", "run", RunState.DONE),
        ]
    )
    assert verdict.ok
    verdict.judge_commands([CommandSeen("pretrain-1", "run", RunState.FAILED, FailureClass.KILLED)])
    assert not verdict.finished


@pytest.mark.parametrize("got", [None, {}, {"raw": "1", "ema": "3"}, {"raw": "2", "ema": "2"}])
def test_other_weights_fail(got: dict[str, str] | None) -> None:
    verdict = Verdict()
    verdict.judge_weights("pretrain-1", got, {"raw": "1", "ema": "2"})
    assert not verdict.bitwise_equal
    assert not verdict.ok


def test_a_process_that_was_left_fails() -> None:
    verdict = Verdict()
    verdict.judge_left("left", {4711: "python -m stages"})
    assert (verdict.orphans, verdict.ok) == (1, False)


# --- the store --------------------------------------------------------------------------------


def _slot(run: Path, name: str, step: int, data: bytes) -> Path:
    slot = run / names.CHECKPOINTS / name
    slot.mkdir(parents=True)
    (slot / "f").write_bytes(data)
    entry = {"path": "state.pt", "stored": "f", "size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (slot / names.SLOT_COMMIT).write_text(json.dumps({"step": step, "files": [entry]}))
    return slot


def test_a_forged_confirmed_fails(tmp_path: Path) -> None:
    _slot(tmp_path, "slot-a", 10, b"ten" * 100)
    newer = _slot(tmp_path, "slot-b", 20, b"twenty" * 100)
    assert store_check.readable_steps(FolderRun(tmp_path)) == {10, 20}
    (newer / "f").write_bytes(b"twenty" * 99 + b"twentY")
    assert store_check.readable_steps(FolderRun(tmp_path)) == {10}
    verdict = Verdict()
    verdict.judge_confirmed("pretrain-1", 10, store_check.readable_steps(FolderRun(tmp_path)))
    assert verdict.ok
    verdict.judge_confirmed("pretrain-1", 20, store_check.readable_steps(FolderRun(tmp_path)))
    assert verdict.false_confirmed == 1


def test_a_missing_file_a_cut_commit_and_an_empty_store_are_not_readable(tmp_path: Path) -> None:
    assert store_check.readable_steps(FolderRun(tmp_path)) == set()
    (_slot(tmp_path, "slot-a", 10, b"x") / "f").unlink()
    commit = _slot(tmp_path, "slot-b", 20, b"y") / names.SLOT_COMMIT
    commit.write_bytes(commit.read_bytes()[:-5])
    assert store_check.readable_steps(FolderRun(tmp_path)) == set()
    assert store_check.is_in_the_making(store_check.content(FolderRun(tmp_path))) is False
    commit.unlink()
    assert store_check.is_in_the_making(store_check.content(FolderRun(tmp_path))) is True


def test_a_commit_that_was_written_before_its_files_fails(tmp_path: Path) -> None:
    slot = _slot(tmp_path, "slot-a", 10, b"x")
    assert store_check.early_commits(FolderRun(tmp_path)) == []
    commit = (slot / names.SLOT_COMMIT).stat().st_mtime_ns
    os.utime(slot / "f", ns=(commit + 1, commit + 1))
    assert store_check.early_commits(FolderRun(tmp_path)) == ["checkpoints/slot-a"]
    (slot / "f").unlink()
    verdict = Verdict()
    verdict.judge_commits("pretrain-1", store_check.early_commits(FolderRun(tmp_path)))
    assert (verdict.false_confirmed, verdict.ok) == (1, False)


# --- in/ ---------------------------------------------------------------------------------------


def test_a_half_written_file_fails(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "whole.json").write_text("{}")
    (tmp_path / "run" / "encoder.pt").write_bytes(b"weights")
    good = {"run/encoder.pt": hashlib.sha256(b"weights").hexdigest()}
    assert half_files(tmp_path, good) == []
    (tmp_path / "run" / "results.json").write_text('{"a": ')
    (tmp_path / "run" / ".tmp-0123").write_bytes(b"")
    (tmp_path / "run" / "encoder.pt").write_bytes(b"weight")
    found = half_files(tmp_path, {**good, "run/absent.pt": "0"})
    assert sorted(found) == ["run/.tmp-0123", "run/absent.pt", "run/encoder.pt", "run/results.json"]
    verdict = Verdict()
    verdict.judge_inbox(found)
    assert not verdict.ok


def test_a_journal_tells_the_highest_attempt_of_each_run_that_its_vm_took() -> None:
    def accepted(command: str, run_id: str, attempt: int) -> bytes:
        entry = {"v": 1, "step": "accepted", "id": command, "attempt": attempt, "command": {"run_id": run_id}}
        return json.dumps(entry).encode() + b"\n"

    again = json.dumps({"v": 1, "step": "accepted", "id": "c1", "attempt": 3, "delivery": 7}).encode() + b"\n"
    journal = accepted("c1", "run-1", 1) + accepted("c2", "run-2", 2) + accepted("c1", "run-1", 3) + again
    assert log_check.taken(journal + b'{"step": "acce') == {"run-1": 3, "run-2": 2}
    assert log_check.taken(b"") == {}


def test_a_log_whose_header_a_full_disk_swallowed_is_a_life_too() -> None:
    words = b"--- exit code 1 while this VM's disk was full: retry 1 of 20\n"
    assert log_check.attempts_in(b"--- attempt 1 on vm-a\n" + words + b"--- attempt 3 on vm-a\n", 3) == [1, 3]
    assert log_check.attempts_in(words, 2) == [2] and log_check.attempts_in(words, 0) == [1]
    assert log_check.attempts_in(b"", 1) == [1], "a file beside the log may have words of its own"
