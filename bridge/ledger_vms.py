"""Which VM has which command: delivery, a VM's silence, its return and its end. Functions of one open transaction each.

A silent VM's runs are offered to the next VM with a higher attempt. Until that one has accepted them (it does so once
it has a second sign that the first VM is dead) they are only lent: when the first VM shows a sign of life again it gets
them back under its own attempt, so a short cut costs nothing. What else it had is given back in the same way.
"""

from __future__ import annotations

import json
import sqlite3
from typing import Any

from bridge import ledger_claims, ledger_keys, ledger_pairings, ledger_releases
from bridge.ledger_rows import ENDED, VmState, command, fail_orphans, next_delivery
from bridgehead import paths
from bridgehead.names import FailureClass, RunState
from bridgehead.queue_lines import Verb
from bridgehead.records import Command, Heartbeat

BATCH_MAX = 200  # commands in one answer; the VM asks again at once
_NOT_ENDED = f"state NOT IN ({', '.join(repr(state) for state in sorted(ENDED))})"
_HELD = f"vm_id = ? AND {_NOT_ENDED}"


def see(db: sqlite3.Connection, vm_id: str, now: float, *, beat: Heartbeat | None = None) -> bool:
    """Note a sign of life; True when the VM was not known to be alive.

    Only a heartbeat brings back a VM that is known to be gone: a poll of its may still hang in the server.
    """
    row = db.execute("SELECT state FROM vms WHERE vm_id = ?", (vm_id,)).fetchone()
    if row is not None and row["state"] == VmState.GONE and beat is None:
        return False
    db.execute(
        "INSERT INTO vms (vm_id, state, first_seen, last_seen) VALUES (?, ?, ?, ?)"
        " ON CONFLICT (vm_id) DO UPDATE SET state = excluded.state, last_seen = excluded.last_seen, reason = ''",
        (vm_id, VmState.LIVE, now, now),
    )
    if beat is not None:
        db.execute("UPDATE vms SET heartbeat = ? WHERE vm_id = ?", (json.dumps(beat.to_json()), vm_id))
    if row is not None and row["state"] == VmState.LIVE:
        return False
    _give_back(db, vm_id, now)
    return True


def _give_back(db: sqlite3.Connection, vm_id: str, now: float) -> None:
    """Undo what the silence of this VM did, as far as no other VM has taken it up."""
    for row in db.execute("SELECT * FROM commands WHERE held_by = ?", (vm_id,)).fetchall():
        if row["vm_id"] not in ("", vm_id):
            ledger_claims.withdraw(db, row)
        db.execute(
            "UPDATE commands SET vm_id = held_by, state = held_state, attempt = held_attempt, held_by = '',"
            " former_vm = '', former_gone = 0, failure_class = '', exit_code = NULL, reason = '', updated = ?"
            " WHERE seq = ?",
            (now, row["seq"]),
        )


def assign(db: sqlite3.Connection, vm_id: str, now: float) -> bool:
    """Give the VM what is queued and may go there, in the queue's order; True when there was some."""
    given = 0
    for row in _waiting_for(db, vm_id):
        if given == BATCH_MAX:
            break
        if not _may_go_to(db, row, vm_id):
            continue
        given += 1
        db.execute(
            "UPDATE commands SET vm_id = ?, delivery = ?, state = ?, top_attempt = max(top_attempt, attempt),"
            " reason = '', updated = ? WHERE seq = ?",
            (vm_id, next_delivery(db), RunState.QUEUED, now, row["seq"]),
        )
        ledger_pairings.keep(db, row["seq"], vm_id)
    if given:
        ledger_pairings.follow(db)
    return given > 0


def has_news(db: sqlite3.Connection, vm_id: str, after: int) -> bool:
    """Whether to look properly: something waits that may go to the VM, it has newer commands, or it is not alive."""
    row = db.execute("SELECT state FROM vms WHERE vm_id = ?", (vm_id,)).fetchone()
    if row is None or row["state"] != VmState.LIVE or commands_of(db, vm_id, after):
        return True
    return any(_may_go_to(db, waiting, vm_id) for waiting in _waiting_for(db, vm_id))


def changes_more_than_time(db: sqlite3.Connection, beat: Heartbeat) -> bool:
    """Whether a heartbeat says more than that a VM known to be alive still is."""
    row = db.execute("SELECT state FROM vms WHERE vm_id = ?", (beat.vm_id,)).fetchone()
    last_words = beat.lifetime.get("handed_over") or beat.lifetime.get("released")
    return row is None or row["state"] != VmState.LIVE or bool(last_words)


def _waiting_for(db: sqlite3.Connection, vm_id: str) -> list[sqlite3.Row]:
    """What has no VM and asks for this one or any, in the queue's order; nothing for one that is being given back."""
    not_for_it = "" if ledger_keys.runs_shell(db, vm_id) else Verb.SH
    rows = db.execute(
        "SELECT seq, inputs, target_vm FROM commands WHERE vm_id = '' AND state IN (:queued, :lost)"
        f" AND target_vm IN ('', :vm) AND kept_off != :vm AND verb != :not_verb AND {ledger_pairings.OPEN_TO}"
        " ORDER BY seq",
        {
            "queued": RunState.QUEUED,
            "lost": RunState.LOST,
            "vm": vm_id,
            "not_verb": not_for_it,
            "family": ledger_pairings.family_of(db, vm_id),
        },
    ).fetchall()
    return [] if rows and ledger_releases.is_leaving(db, vm_id) else rows


def commands_of(db: sqlite3.Connection, vm_id: str, after: int) -> list[Command]:
    rows = db.execute(
        f"SELECT * FROM commands WHERE {_HELD} AND delivery > ? ORDER BY delivery LIMIT ?", (vm_id, after, BATCH_MAX)
    )
    return [command(row) for row in rows]


def revoked(db: sqlite3.Connection, beat: Heartbeat) -> list[tuple[str, int]]:
    """What is no longer the VM's own of the runs that it reports, and what was lent to it and taken back.

    A higher attempt than the ledger knows is none of it: the VM took that run over from the store, and its claim is on
    the way. What is no run is passed over.
    """
    rows = db.execute("SELECT run_id, attempt FROM withdrawn WHERE vm_id = ?", (beat.vm_id,)).fetchall()
    revoked = [(str(row["run_id"]), int(row["attempt"])) for row in rows]
    for run in beat.runs:
        listed: Any = run  # came from the wire: the record's type does not reach into the list
        if not isinstance(listed, dict):
            continue
        run_id, attempt = listed.get("run_id"), listed.get("attempt")
        if isinstance(run_id, str) and paths.is_run_id(run_id) and isinstance(attempt, int):
            row = db.execute("SELECT * FROM commands WHERE run_id = ?", (run_id,)).fetchone()
            its_own = row is not None and (row["vm_id"], row["attempt"]) == (beat.vm_id, attempt)
            if not its_own and not ledger_claims.may_claim(db, row, beat.vm_id, attempt):
                revoked.append((run_id, attempt))
    return list(dict.fromkeys(revoked))


def owns(db: sqlite3.Connection, run_id: str, vm_id: str, attempt: int) -> bool:
    """Not while it is only lent: whoever has not accepted a run has nothing to send of it."""
    query = (
        "SELECT attempt FROM commands WHERE run_id = ? AND vm_id = ? AND run_id != '' AND vm_id != ''"
        " AND (held_by = '' OR former_gone)"
    )
    row = db.execute(query, (run_id, vm_id)).fetchone()
    return row is not None and row["attempt"] == attempt


def lose(db: sqlite3.Connection, vm_id: str, state: VmState, why: str, now: float) -> None:
    """Lend a VM's runs to the next one and end the rest; `state` says whether it is silent or known to be gone."""
    db.execute(
        "INSERT INTO vms (vm_id, state, first_seen, last_seen, reason) VALUES (?, ?, ?, ?, ?)"
        " ON CONFLICT (vm_id) DO UPDATE SET state = excluded.state, reason = excluded.reason",
        (vm_id, state, now, now, why),
    )
    ledger_pairings.keep_all_of(db, vm_id)
    if state == VmState.GONE:
        _tell_it_is_gone(db, vm_id)
    _take_back_what_was_lent(db, vm_id, now)
    reason = f"{vm_id} is {state}: {why}"
    ledger_claims.fail_beyond_budget(db, vm_id, reason, now, gone=state == VmState.GONE)
    db.execute(
        f"UPDATE commands SET held_by = vm_id, held_state = state, held_attempt = attempt WHERE {_HELD}", (vm_id,)
    )
    _end_what_was_to_stop(db, vm_id, now)
    end = f"UPDATE commands SET state = ?, failure_class = ?, reason = ?, updated = ? WHERE {_HELD} AND verb = ?"
    # Only the VM's own journal can prove that it never began, and that is gone or out of reach.
    began = (f"{reason}; it had begun, and nobody knows how it ended; not repeated", now, vm_id, Verb.SH)
    db.execute(end + " AND state = ?", (RunState.FAILED, FailureClass.UNKNOWN_OUTCOME, *began, RunState.RUNNING))
    unseen = (f"{reason}; nobody heard that it had begun, and it may have; not repeated", now, vm_id, Verb.SH)
    db.execute(end, (RunState.FAILED, FailureClass.UNKNOWN_OUTCOME, *unseen))
    for verb in (Verb.STOP, Verb.SYNC, Verb.RELEASE):
        db.execute(end, (RunState.FAILED, "", f"its VM is gone: {reason}", now, vm_id, verb))
    db.execute(
        "UPDATE commands SET former_vm = vm_id, former_gone = ?, vm_id = '', state = ?, attempt = top_attempt + 1,"
        f" target_vm = '', reason = ?, updated = ? WHERE {_HELD} AND verb = ?",
        (state == VmState.GONE, RunState.LOST, f"{reason}; waits for the next VM of its pairing", now, vm_id, Verb.RUN),
    )
    db.execute(  # meant for it and not delivered yet: a VM that died never comes back under its name
        "UPDATE commands SET target_vm = '', reason = ?, updated = ?"
        " WHERE target_vm = ? AND vm_id = '' AND verb = ? AND state IN (?, ?)",
        (f"was meant for {vm_id}, which is {state}", now, vm_id, Verb.RUN, RunState.QUEUED, RunState.LOST),
    )
    if state == VmState.GONE:
        db.execute(
            "UPDATE commands SET state = ?, reason = ?, updated = ?"
            " WHERE target_vm = ? AND vm_id = '' AND verb IN (?, ?, ?) AND state = ?",
            (
                RunState.FAILED,
                f"was meant for {vm_id}, which is {state}: {why}",
                now,
                vm_id,
                Verb.SH,
                Verb.SYNC,
                Verb.RELEASE,
                RunState.QUEUED,
            ),
        )
    fail_orphans(db, now)


def hand_over(db: sqlite3.Connection, beat: Heartbeat, now: float) -> bool:
    """Offer to other VMs what this one has stopped because its own end is near; True when there was something.

    With its very last word the line that asked for its release is done, too.
    """
    listed: Any = beat.lifetime.get("handed_over")
    why = "was given back" if beat.lifetime.get("release_asked") else "reached the end of its life"
    given = int(ledger_releases.note(db, beat, now))
    for run_id in listed if isinstance(listed, list) else []:
        if not isinstance(run_id, str):
            continue
        given += db.execute(
            "UPDATE commands SET former_vm = vm_id, former_gone = 1, kept_off = vm_id, vm_id = '', target_vm = '',"
            f" held_by = '', state = ?, attempt = top_attempt + 1, reason = ?, updated = ? WHERE {_HELD}"
            " AND verb = ? AND run_id = ?",
            (RunState.LOST, f"{beat.vm_id} {why}", now, beat.vm_id, Verb.RUN, run_id),
        ).rowcount
    return given > 0


def _tell_it_is_gone(db: sqlite3.Connection, vm_id: str) -> None:
    """What waits for a second sign of this VM's death has it now; those to whom it was lent hear of it."""
    lent = db.execute(f"SELECT seq, vm_id FROM commands WHERE held_by = ? AND {_NOT_ENDED}", (vm_id,)).fetchall()
    for row in lent:
        delivery = next_delivery(db) if row["vm_id"] else 0
        db.execute("UPDATE commands SET former_gone = 1, delivery = ? WHERE seq = ?", (delivery, row["seq"]))


def _take_back_what_was_lent(db: sqlite3.Connection, vm_id: str, now: float) -> None:
    """Runs of another silent VM that this one had not accepted yet wait for the next."""
    lent = f"SELECT * FROM commands WHERE {_HELD} AND held_by NOT IN ('', vm_id)"
    for row in db.execute(lent, (vm_id,)).fetchall():
        ledger_claims.withdraw(db, row)
        db.execute(
            "UPDATE commands SET vm_id = '', state = ?, attempt = top_attempt + 1, updated = ? WHERE seq = ?",
            (RunState.LOST, now, row["seq"]),
        )


def _end_what_was_to_stop(db: sqlite3.Connection, vm_id: str, now: float) -> None:
    """A run that was asked to stop is not offered to another VM when its own falls silent: it has stopped."""
    stops = db.execute(f"SELECT seq, argument FROM commands WHERE {_HELD} AND verb = ?", (vm_id, Verb.STOP)).fetchall()
    for stop in stops:
        stopped = db.execute(
            "UPDATE commands SET state = ?, failure_class = ?, vm_id = '', reason = ?, updated = ?"
            f" WHERE {_HELD} AND verb = ? AND run_id = ?",
            (
                RunState.STOPPED,
                FailureClass.STOPPED,
                f"line #{stop['seq']} asked for a stop; then {vm_id} went away",
                now,
                vm_id,
                Verb.RUN,
                stop["argument"],
            ),
        )
        if stopped.rowcount:
            db.execute("UPDATE commands SET state = ?, updated = ? WHERE seq = ?", (RunState.DONE, now, stop["seq"]))


def _may_go_to(db: sqlite3.Connection, row: sqlite3.Row, vm_id: str) -> bool:
    """Whether the VM can get at what the run comes after: it has it, or it is finished and in the durable store."""
    if row["inputs"] == "{}":
        return True
    inputs = db.execute(
        "SELECT c.state, c.vm_id, v.state AS vm_state FROM json_each(?) AS i"
        " JOIN commands AS c ON c.run_id = i.value LEFT JOIN vms AS v ON v.vm_id = c.vm_id",
        (row["inputs"],),
    ).fetchall()
    elsewhere = [item for item in inputs if item["vm_id"] != vm_id]
    if any(item["state"] != RunState.DONE for item in elsewhere):
        return False
    if row["target_vm"] == vm_id or len(elsewhere) < len(inputs):
        return True
    return all(item["vm_state"] != VmState.LIVE for item in elsewhere)  # else the VM that holds it takes it
