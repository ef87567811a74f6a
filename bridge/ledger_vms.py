"""Which VM has which command: delivery, a VM's loss, and its return. Functions of one open transaction each.

A lost VM's runs are offered to the next VM with `attempt` + 1. Until one has taken them they are only lent: when the
first VM shows a sign of life again it gets them back under the old attempt, so a short cut costs nothing.
"""

from __future__ import annotations

import json
import sqlite3
from typing import Any

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
    db.execute(
        "UPDATE commands SET vm_id = held_by, state = held_state, attempt = attempt - 1, held_by = '', reason = '',"
        " updated = ? WHERE held_by = ? AND vm_id = '' AND state = ?",
        (now, vm_id, RunState.LOST),
    )
    return True


def assign(db: sqlite3.Connection, vm_id: str, now: float) -> bool:
    """Give the VM what is queued and may go there, in the queue's order; True when there was some."""
    waiting = db.execute(
        "SELECT seq, inputs, target_vm FROM commands WHERE vm_id = '' AND state IN (?, ?) AND target_vm IN ('', ?)"
        " ORDER BY seq",
        (RunState.QUEUED, RunState.LOST, vm_id),
    ).fetchall()
    given = 0
    for row in waiting:
        if given == BATCH_MAX:
            break
        if not _may_go_to(db, row, vm_id):
            continue
        given += 1
        db.execute(
            "UPDATE commands SET vm_id = ?, delivery = ?, state = ?, held_by = '', reason = '', updated = ?"
            " WHERE seq = ?",
            (vm_id, next_delivery(db), RunState.QUEUED, now, row["seq"]),
        )
    return given > 0


def commands_of(db: sqlite3.Connection, vm_id: str, after: int) -> list[Command]:
    rows = db.execute(
        f"SELECT * FROM commands WHERE {_HELD} AND delivery > ? ORDER BY delivery LIMIT ?", (vm_id, after, BATCH_MAX)
    )
    return [command(row) for row in rows]


def revoked(db: sqlite3.Connection, beat: Heartbeat) -> list[tuple[str, int]]:
    """The runs that the VM reports and that are no longer its own. What is no run is passed over."""
    revoked = []
    for run in beat.runs:
        listed: Any = run  # came from the wire: the record's type does not reach into the list
        if not isinstance(listed, dict):
            continue
        run_id, attempt = listed.get("run_id"), listed.get("attempt")
        if isinstance(run_id, str) and paths.is_run_id(run_id) and isinstance(attempt, int):
            if not owns(db, run_id, beat.vm_id, attempt):
                revoked.append((run_id, attempt))
    return revoked


def owns(db: sqlite3.Connection, run_id: str, vm_id: str, attempt: int) -> bool:
    query = "SELECT attempt FROM commands WHERE run_id = ? AND vm_id = ? AND run_id != '' AND vm_id != ''"
    row = db.execute(query, (run_id, vm_id)).fetchone()
    return row is not None and row["attempt"] == attempt


def lose(db: sqlite3.Connection, vm_id: str, state: VmState, why: str, now: float) -> None:
    """Take everything that has not ended from a VM: its runs are offered again, the rest ends."""
    db.execute(
        "INSERT INTO vms (vm_id, state, first_seen, last_seen, reason) VALUES (?, ?, ?, ?, ?)"
        " ON CONFLICT (vm_id) DO UPDATE SET state = excluded.state, reason = excluded.reason",
        (vm_id, state, now, now, why),
    )
    _end_what_was_to_stop(db, vm_id, now)
    reason = f"{vm_id} is {state}: {why}"
    end = f"UPDATE commands SET state = ?, failure_class = ?, reason = ?, updated = ? WHERE {_HELD} AND verb = ?"
    db.execute(end, (RunState.FAILED, FailureClass.UNKNOWN_OUTCOME, f"{reason}; not repeated", now, vm_id, Verb.SH))
    for verb in (Verb.STOP, Verb.SYNC):
        db.execute(end, (RunState.FAILED, "", f"its VM is gone: {reason}", now, vm_id, verb))
    db.execute(
        "UPDATE commands SET held_by = vm_id, held_state = state, vm_id = '', state = ?, attempt = attempt + 1,"
        f" target_vm = '', reason = ?, updated = ? WHERE {_HELD} AND verb = ?",
        (RunState.LOST, f"{reason}; waits for the next VM", now, vm_id, Verb.RUN),
    )
    db.execute(  # meant for it and not delivered yet: a VM that died never comes back under its name
        "UPDATE commands SET target_vm = '', reason = ?, updated = ?"
        " WHERE target_vm = ? AND vm_id = '' AND verb = ? AND state IN (?, ?)",
        (f"was meant for {vm_id}, which is {state}", now, vm_id, Verb.RUN, RunState.QUEUED, RunState.LOST),
    )
    fail_orphans(db, now)


def _end_what_was_to_stop(db: sqlite3.Connection, vm_id: str, now: float) -> None:
    """A run that was asked to stop is not offered to another VM when its own dies first: it has stopped."""
    stops = db.execute(f"SELECT seq, argument FROM commands WHERE {_HELD} AND verb = ?", (vm_id, Verb.STOP)).fetchall()
    for stop in stops:
        stopped = db.execute(
            f"UPDATE commands SET state = ?, failure_class = ?, vm_id = '', reason = ?, updated = ?"
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
