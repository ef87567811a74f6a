"""`@vm release:`: a person wants a VM to give itself back. Functions of one open transaction each."""

from __future__ import annotations

import sqlite3

from bridge.ledger_rows import ENDED, VmState
from bridgehead.errors import UsageError
from bridgehead.names import RunState
from bridgehead.queue_lines import Verb, nearest
from bridgehead.records import Heartbeat

_NOT_ENDED = f"state NOT IN ({', '.join(repr(state) for state in sorted(ENDED))})"


def check(db: sqlite3.Connection, vm_id: str) -> None:
    """Raises UsageError for a VM that is not there any more, was never seen, or is being given back already."""
    vms = {row["vm_id"]: row["state"] for row in db.execute("SELECT vm_id, state FROM vms").fetchall()}
    there = [name for name, state in vms.items() if state in (VmState.LIVE, VmState.SILENT)]
    if vm_id not in vms:
        raise UsageError(f"no VM {vm_id!r} has ever reported here", hint=nearest(vm_id, there))
    if vm_id not in there:
        raise UsageError(f"{vm_id} is {vms[vm_id]}: there is nothing to give back", hint=nearest(vm_id, there))
    asked = _asked(db, vm_id)
    if asked is not None:
        raise UsageError(f"{vm_id} is being given back already", hint=f"line #{asked['seq']} asked for it")


def is_leaving(db: sqlite3.Connection, vm_id: str) -> bool:
    """Whether it was asked to give itself back: from then on it gets nothing new."""
    row = _asked(db, vm_id)
    return row is not None and row["vm_id"] == vm_id


def note(db: sqlite3.Connection, beat: Heartbeat, now: float) -> bool:
    """A VM's last word is that it gives itself back: the line that asked for it is done. True when there is one."""
    if not beat.lifetime.get("released"):
        return False
    because = str(beat.lifetime.get("released_because", ""))[:300]
    done = db.execute(
        f"UPDATE commands SET state = ?, reason = ?, updated = ? WHERE vm_id = ? AND verb = ? AND {_NOT_ENDED}",
        (RunState.DONE, because, now, beat.vm_id, Verb.RELEASE),
    )
    return done.rowcount > 0


def _asked(db: sqlite3.Connection, vm_id: str) -> sqlite3.Row | None:
    found: sqlite3.Row | None = db.execute(
        f"SELECT seq, vm_id FROM commands WHERE verb = ? AND target_vm = ? AND {_NOT_ENDED} LIMIT 1",
        (Verb.RELEASE, vm_id),
    ).fetchone()
    return found
