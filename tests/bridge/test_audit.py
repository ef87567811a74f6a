"""The audit file: every command and what came of it, once, in a chain that shows an edit."""

from __future__ import annotations

import hashlib
import json
import stat
import threading
from pathlib import Path

import pytest
from ledger_support import PROJECT, Clock, ack, beat

from bridge import audit_head, key_audit
from bridge.audit import Audit
from bridge.audit_feed import HEAD, AuditFeed
from bridge.keys import KeyStore
from bridge.ledger import Ledger
from bridge.refusals import Refusals
from bridgehead import names
from bridgehead.names import Ack, RunState
from bridgehead.queue_lines import encode_shell

VM = "vm-1"


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / names.LEDGER_FILE, clock=Clock())


def _drained(ledger: Ledger, folder: Path) -> list[dict[str, object]]:
    audit = Audit(folder)
    AuditFeed(ledger, audit).drain()
    return list(audit.read())


def _path(folder: Path) -> Path:
    return folder / names.AUDIT_FILE


# --- what is in it ---------------------------------------------------------------------------------


def test_the_life_of_a_command_is_told_from_its_line_to_its_exit_code(ledger: Ledger, tmp_path: Path) -> None:
    ledger.bind_vm(VM, "k-1", "k-1", allow_sh=True)
    ledger.note_origin("run:pretrain", {"via": "cli", "user": "ada@laptop"})
    ledger.take([(1, "run:pretrain")], PROJECT)
    [command] = ledger.deliver(VM, 0)
    ack(ledger, command, Ack.STARTED)
    ack(ledger, command, Ack.FINISHED, exit_code=3, state=RunState.FAILED, reason="it fell over")
    lines = _drained(ledger, tmp_path)
    assert [line["event"] for line in lines] == ["taken", "given", "started", "finished"]
    taken, given, started, finished = lines
    assert (taken["verb"], taken["argument"], taken["id"]) == ("run", "pretrain", command.id)
    assert taken["queued_by"] == {"via": "cli", "user": "ada@laptop"}
    assert (given["vm_id"], given["key_id"], given["attempt"]) == (VM, "k-1", 1)
    assert started["vm_id"] == VM
    assert (finished["exit_code"], finished["state"], finished["reason"]) == (3, "failed", "it fell over")
    assert {line["run_id"] for line in lines} == {command.run_id}


def test_a_line_that_nobody_announced_was_put_into_the_file(ledger: Ledger, tmp_path: Path) -> None:
    ledger.note_origin("run:pretrain", {"via": "cli"})
    ledger.take([(1, "run:pretrain"), (2, "run:pretrain")], PROJECT)
    assert [line["queued_by"] for line in _drained(ledger, tmp_path)] == [{"via": "cli"}, {"via": names.QUEUE_FILE}]


def test_the_whole_shell_command_and_a_rejected_line_are_in_it(ledger: Ledger, tmp_path: Path) -> None:
    ledger.take([(1, encode_shell("rm -rf build")), (2, "run:nothing")], PROJECT)
    shell, rejected = _drained(ledger, tmp_path)
    assert shell["argument"] == "rm -rf build"
    assert (rejected["state"], rejected["line"]) == ("rejected", "run:nothing") and "unknown stage" in str(
        rejected["reason"]
    )


def test_a_run_that_goes_to_another_vm_is_told(ledger: Ledger, tmp_path: Path) -> None:
    ledger.take([(1, "run:pretrain")], PROJECT)
    ledger.deliver(VM, 0)
    ledger.mark_vm_gone(VM, "it was stopped")
    ledger.deliver("vm-2", 0)
    events = [(line["event"], line.get("vm_id", ""), line.get("attempt", 0)) for line in _drained(ledger, tmp_path)]
    assert events[1:] == [("given", VM, 1), ("lost", "", 0), ("given", "vm-2", 2)]


def test_a_heartbeat_is_no_event(ledger: Ledger, tmp_path: Path) -> None:
    ledger.heartbeat(beat(VM))
    assert _drained(ledger, tmp_path) == []


# --- once, whatever dies ---------------------------------------------------------------------------


def test_what_a_killed_bridge_wrote_is_not_written_twice(ledger: Ledger, tmp_path: Path) -> None:
    ledger.take([(1, "run:pretrain")], PROJECT)
    Audit(tmp_path).append([event for _, event in ledger.audit_waiting()])  # and then it died
    ledger.take([(2, "run:pretrain")], PROJECT)
    assert [line["seq"] for line in _drained(ledger, tmp_path)] == [1, 2]
    assert ledger.audit_waiting() == []


def test_a_line_that_was_cut_is_passed_over_and_its_event_is_written_anew(ledger: Ledger, tmp_path: Path) -> None:
    Audit(tmp_path).append([{"event": "key made"}])
    ledger.take([(1, "run:pretrain")], PROJECT)
    with _path(tmp_path).open("ab") as handle:
        handle.write(b'{"event":"tak')
    assert [line["event"] for line in _drained(ledger, tmp_path)] == ["key made", "taken"]
    verdict = Audit(tmp_path).verify(ledger.fact(HEAD))
    assert (verdict.problems, verdict.torn, verdict.lines) == ([], 1, 3)


def test_a_new_ledger_is_not_mistaken_for_the_old_one(ledger: Ledger, tmp_path: Path) -> None:
    ledger.take([(1, "run:pretrain"), (2, "run:pretrain")], PROJECT)
    _drained(ledger, tmp_path)
    other = Ledger(tmp_path / "other.sqlite3", clock=Clock())
    other.take([(1, "run:pretrain")], PROJECT)
    assert [line["seq"] for line in _drained(other, tmp_path)] == [1, 2, 1]


def test_a_disk_that_can_not_be_written_loses_nothing(ledger: Ledger, tmp_path: Path) -> None:
    ledger.take([(1, "run:pretrain")], PROJECT)
    _path(tmp_path).mkdir()
    with pytest.raises(OSError):
        AuditFeed(ledger, Audit(tmp_path / "gone")).drain()
    _path(tmp_path).rmdir()
    assert [line["seq"] for line in _drained(ledger, tmp_path)] == [1]


# --- the files -------------------------------------------------------------------------------------


def test_a_full_file_is_put_aside_and_nothing_is_lost(tmp_path: Path) -> None:
    audit = Audit(tmp_path, max_bytes=500)
    for number in range(20):
        audit.append([{"event": "key made", "number": number}])
    assert [line["number"] for line in audit.read()] == list(range(20))
    aside = sorted(path.name for path in tmp_path.glob("audit-*.jsonl"))
    assert len(aside) > 2 and aside[0] == "audit-1.jsonl"
    assert audit.verify().problems == []


def test_a_file_that_is_gone_is_missed_and_its_number_is_not_used_again(tmp_path: Path) -> None:
    audit = Audit(tmp_path, max_bytes=200)
    for _ in range(6):
        audit.append([{"event": "key made", "name": "x" * 60}])
    before = {path.name: path.read_bytes() for path in tmp_path.glob("audit-*.jsonl")}
    (tmp_path / "audit-2.jsonl").unlink()
    assert "changed, removed or added" in audit.verify().problems[0]
    for _ in range(4):
        audit.append([{"event": "key made", "name": "x" * 60}])
    after = {path.name: path.read_bytes() for path in tmp_path.glob("audit-*.jsonl")}
    assert "audit-2.jsonl" not in after and all(after[name] == before[name] for name in before.keys() & after.keys())


def test_only_its_owner_can_read_it(tmp_path: Path) -> None:
    Audit(tmp_path).append([{"event": "key made"}])
    assert stat.S_IMODE(_path(tmp_path).stat().st_mode) == 0o600


def test_many_writers_make_one_chain(tmp_path: Path) -> None:
    def write() -> None:
        for _ in range(10):
            Audit(tmp_path, max_bytes=2000).append([{"event": "key made"}])

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    verdict = Audit(tmp_path).verify()
    assert (verdict.problems, verdict.lines) == ([], 40)


# --- an edit shows ---------------------------------------------------------------------------------


def _written(folder: Path) -> list[bytes]:
    Audit(folder).append([{"event": "key made", "number": number} for number in range(5)])
    return _path(folder).read_bytes().splitlines(keepends=True)


def test_an_untouched_file_verifies(tmp_path: Path) -> None:
    _written(tmp_path)
    verdict = Audit(tmp_path).verify()
    assert (verdict.problems, verdict.lines, verdict.files, verdict.torn) == ([], 5, 1, 0)


@pytest.mark.parametrize("edit", ["change", "remove", "swap", "insert", "renumber"])
def test_an_edit_breaks_the_chain_and_its_place_is_named(tmp_path: Path, edit: str) -> None:
    lines = _written(tmp_path)
    if edit == "change":
        lines[1] = lines[1].replace(b'"number":1', b'"number":9')
    elif edit == "remove":
        del lines[1]
    elif edit == "swap":
        lines[1], lines[2] = lines[2], lines[1]
    elif edit == "insert":
        lines.insert(2, lines[1])
    else:
        lines[0] = lines[0].replace(b'"n":1', b'"n":2')
    _path(tmp_path).write_bytes(b"".join(lines))
    problems = Audit(tmp_path).verify().problems
    assert problems and problems[0].startswith("audit.jsonl:")


def test_a_cut_end_shows_when_the_ledger_knows_of_more(ledger: Ledger, tmp_path: Path) -> None:
    ledger.take([(1, "run:pretrain"), (2, "run:pretrain")], PROJECT)
    _drained(ledger, tmp_path)
    lines = _path(tmp_path).read_bytes().splitlines(keepends=True)
    _path(tmp_path).write_bytes(lines[0])
    assert "missing or changed at the end" in Audit(tmp_path).verify(ledger.fact(HEAD)).problems[0]


@pytest.mark.parametrize("left", [0, 1, 4])
def test_a_cut_end_shows_whoever_wrote_it_and_for_ever(tmp_path: Path, left: int) -> None:
    lines = _written(tmp_path)  # key events, of which the ledger hears nothing
    _path(tmp_path).write_bytes(b"".join(lines[:left]))
    assert "audit.head knows of 5 lines" in Audit(tmp_path).verify().problems[-1]
    for number in range(8):
        Audit(tmp_path).append([{"event": "key made", "number": number}])
    problems = Audit(tmp_path).verify().problems
    assert len(problems) == 1 and f"found {left} lines where 5 had been" in problems[0]


def _cut_with_its_head(folder: Path, left: int) -> None:
    """As by somebody who knows the format: the file and audit.head fit each other."""
    lines = _path(folder).read_bytes().splitlines(keepends=True)[:left]
    _path(folder).write_bytes(b"".join(lines))
    last = lines[-1].removesuffix(b"\n")
    audit_head.write(folder, audit_head.Head(json.loads(last)["n"], hashlib.sha256(last).hexdigest()))


@pytest.mark.parametrize("more", [True, False], ids=["with a line to come", "idle"])
def test_a_file_that_is_cut_together_with_its_head_is_told_by_the_ledger_for_ever(
    ledger: Ledger, tmp_path: Path, more: bool
) -> None:
    feed = AuditFeed(ledger, Audit(tmp_path))
    ledger.take([(1, "run:pretrain"), (2, "run:pretrain")], PROJECT)
    feed.drain()
    Audit(tmp_path).append([{"event": "key revoked"}])  # by the command line, of which the ledger hears nothing
    feed.drain()
    _cut_with_its_head(tmp_path, 2)
    assert Audit(tmp_path).verify().problems == []
    assert "missing or changed at the end" in Audit(tmp_path).verify(ledger.fact(HEAD)).problems[0]
    if more:
        ledger.take([(3, "run:pretrain")], PROJECT)
    feed.drain()
    for _ in range(3):
        Audit(tmp_path).append([{"event": "key made"}])
        feed.drain()
    problems = Audit(tmp_path).verify(ledger.fact(HEAD)).problems
    assert len(problems) == 1 and "found 2 lines where 3 had been" in problems[0]


def test_what_others_write_and_full_files_are_no_cut(ledger: Ledger, tmp_path: Path) -> None:
    feed = AuditFeed(ledger, Audit(tmp_path, max_bytes=600))
    for number in range(6):
        ledger.take([(number, "run:pretrain")], PROJECT)
        feed.drain()
        for _ in range(number):
            Audit(tmp_path, max_bytes=600).append([{"event": "key made"}])
        if number % 2:
            feed.drain()
            AuditFeed(ledger, Audit(tmp_path)).drain()  # the next process
    verdict = Audit(tmp_path).verify(ledger.fact(HEAD))
    assert (verdict.problems, verdict.lines) == ([], 21) and verdict.files > 3


def test_a_changed_last_line_shows_at_once_and_for_ever(tmp_path: Path) -> None:
    lines = _written(tmp_path)
    lines[-1] = lines[-1].replace(b'"number":4', b'"number":9')
    _path(tmp_path).write_bytes(b"".join(lines))
    assert "end is missing or changed" in Audit(tmp_path).verify().problems[0]
    Audit(tmp_path).append([{"event": "key made"}])
    assert "or another last one" in Audit(tmp_path).verify().problems[0]


@pytest.mark.parametrize("garbage", [b"garbage\n", b"garbage", b"{}\n", b'"x"', b"[" * 9999 + b"\n", b'{"n":"x"}\n'])
def test_garbage_at_the_end_is_no_torn_line(tmp_path: Path, garbage: bytes) -> None:
    _written(tmp_path)
    with _path(tmp_path).open("ab") as handle:
        handle.write(garbage)
    assert "audit.jsonl:6: this was never written" in Audit(tmp_path).verify().problems[0]
    Audit(tmp_path).append([{"event": "key made"}])
    assert "audit.jsonl:6: this was never written" in Audit(tmp_path).verify().problems[0]


@pytest.mark.parametrize("torn", [b'{"at":12', bytes(40), b'{"at":12' + bytes(40)])
def test_what_a_crash_leaves_of_a_line_is_no_edit(tmp_path: Path, torn: bytes) -> None:
    _written(tmp_path)
    with _path(tmp_path).open("ab") as handle:
        handle.write(torn)
    for _ in range(2):
        verdict = Audit(tmp_path).verify()
        assert (verdict.problems, verdict.torn) == ([], 1)
        Audit(tmp_path).append([{"event": "key made"}])


def test_a_writer_that_died_before_it_noted_the_end_is_no_edit(tmp_path: Path) -> None:
    _written(tmp_path)
    before = (tmp_path / audit_head.FILE).read_bytes()
    Audit(tmp_path).append([{"event": "key made"}])
    (tmp_path / audit_head.FILE).write_bytes(before)
    assert Audit(tmp_path).verify().problems == []
    Audit(tmp_path).append([{"event": "key made"}])
    assert Audit(tmp_path).verify().problems == []


def test_a_missing_head_is_told(tmp_path: Path) -> None:
    _written(tmp_path)
    (tmp_path / audit_head.FILE).unlink()
    assert "audit.head is missing" in Audit(tmp_path).verify().problems[0]


# --- keys ------------------------------------------------------------------------------------------


def test_the_first_key_is_told_by_whoever_makes_it(tmp_path: Path) -> None:
    store = key_audit.open_keys(tmp_path, {"via": "cli"})
    key_audit.open_keys(tmp_path, {"via": "bridge"})
    (line,) = Audit(tmp_path).read()
    assert (line["event"], line["key_id"], line["queued_by"]) == ("key made", store.current()[0], {"via": "cli"})


def test_a_key_that_no_line_tells_of_is_found_once(tmp_path: Path) -> None:
    store = KeyStore(tmp_path / names.KEYS_FILE)
    for _ in range(2):
        key_audit.tell_unknown(store, Audit(tmp_path))
    assert [(line["event"], line["key_id"]) for line in Audit(tmp_path).read()] == [("key found", store.current()[0])]


# --- refusals --------------------------------------------------------------------------------------


def test_refusals_are_counted_and_cost_a_line_for_a_stretch_that_grows(tmp_path: Path) -> None:
    now = 1000.0
    refusals = Refusals(Audit(tmp_path), clock=lambda: now)
    for second in range(24 * 3600):
        now += 1.0
        for _ in range(3):
            refusals.note("unsigned")
        if second % 10 == 0:
            refusals.flush()
    refusals.flush(now=True)
    lines = [json.loads(line) for line in _path(tmp_path).read_text().splitlines()]
    assert sum(line["counts"]["unsigned"] for line in lines) == 3 * 24 * 3600
    assert len(lines) < 40
