"""Who may take a run from whom: claims of VMs that took one over from the store, and what is lent until it is accepted.

The highest attempt that a VM has begun wins; of two with the same one, the first that the ledger hears of. So whatever
VMs agreed upon by the store's leases while the laptop was away, the ledger ends up with the same owner.
"""

from __future__ import annotations

import sqlite3

from bridge import ledger_keys, ledger_pairings
from bridge.ledger_rows import ENDED, VmState
from bridgehead.names import FailureClass, RunState
from bridgehead.queue_lines import Verb

LOSSES_MAX = 20  # VMs that may die with one run; then it fails
_NOT_ENDED = f"state NOT IN ({', '.join(repr(state) for state in sorted(ENDED))})"


def may_claim(db: sqlite3.Connection, row: sqlite3.Row | None, vm_id: str, attempt: int) -> bool:
    """Whether a VM that has begun this attempt of a command owns it, though the ledger gave it to nobody or another."""
    if row is None or row["state"] in ENDED or not 0 < attempt < 2**31:
        return False
    key = (vm_id, row["run_id"], attempt)
    if db.execute("SELECT 1 FROM withdrawn WHERE (vm_id, run_id, attempt) = (?, ?, ?)", key).fetchone() is not None:
        return False
    holder = row["held_by"] or row["vm_id"] or row["former_vm"]
    if holder and not ledger_keys.same_pairing(db, holder, vm_id):
        return False  # the VM of another pairing gets it from the ledger alone
    if not ledger_pairings.may_have(db, row, vm_id):
        return False
    # While a run is only lent, whoever has begun an attempt after that of the silent VM is ahead of the offer.
    return attempt > int(row["held_attempt"] if row["held_by"] else row["attempt"])


def claim(db: sqlite3.Connection, row: sqlite3.Row, vm_id: str, attempt: int, now: float) -> None:
    """The command is this VM's from now on; the former holder hears of it in its hints."""
    if row["held_by"] and row["vm_id"] not in ("", vm_id):
        withdraw(db, row)
    db.execute(
        "UPDATE commands SET vm_id = ?, attempt = ?, top_attempt = max(top_attempt, ?), target_vm = '', state = ?,"
        " losses = losses + ?, reason = '', updated = ? WHERE seq = ?",
        (vm_id, attempt, attempt, RunState.QUEUED, _newly_lost(row), now, row["seq"]),
    )
    ledger_pairings.keep(db, row["seq"], vm_id)
    ledger_pairings.follow(db)
    _no_longer_held(db, row, now)


def accept(db: sqlite3.Connection, row: sqlite3.Row, now: float) -> bool:
    """The VM has its second sign: what was lent is its own. False when the run has been lost too often for that."""
    losses = int(row["losses"]) + _newly_lost(row)
    db.execute("UPDATE commands SET losses = ? WHERE seq = ?", (losses, row["seq"]))
    within = losses < LOSSES_MAX
    if not within:
        withdraw(db, row)
        _fail(db, row, now)
    _no_longer_held(db, row, now)
    return within


def withdraw(db: sqlite3.Connection, row: sqlite3.Row) -> None:
    """Note that the VM that has the command now is not to begin this attempt of it."""
    if row["run_id"]:
        db.execute("INSERT OR IGNORE INTO withdrawn VALUES (?, ?, ?)", (row["vm_id"], row["run_id"], row["attempt"]))


def fail_beyond_budget(db: sqlite3.Connection, vm_id: str, reason: str, now: float, *, gone: bool) -> None:
    """With a VM that is known to be gone: its runs that have lost too many VMs end here."""
    rows = db.execute(f"SELECT * FROM commands WHERE vm_id = ? AND verb = ? AND {_NOT_ENDED}", (vm_id, Verb.RUN))
    for row in rows.fetchall() if gone else []:
        db.execute("UPDATE commands SET losses = losses + 1 WHERE seq = ?", (row["seq"],))
        if int(row["losses"]) + 1 >= LOSSES_MAX:
            _fail(db, row, now, reason)


def _newly_lost(row: sqlite3.Row) -> int:
    """1 when its former VM has not been counted yet: only those that are known to be gone have been."""
    return 0 if row["held_by"] and row["former_gone"] else 1


def _fail(db: sqlite3.Connection, row: sqlite3.Row, now: float, reason: str = "") -> None:
    text = f"{LOSSES_MAX} VMs were lost with it" + (f"; the last: {reason}" if reason else "")
    db.execute(
        "UPDATE commands SET state = ?, failure_class = ?, reason = ?, updated = ? WHERE seq = ?",
        (RunState.FAILED, FailureClass.VM_LOST, text, now, row["seq"]),
    )


def _no_longer_held(db: sqlite3.Connection, row: sqlite3.Row, now: float) -> None:
    former = row["held_by"] or ""
    db.execute("UPDATE commands SET held_by = '', former_gone = 1, updated = ? WHERE seq = ?", (now, row["seq"]))
    db.execute(
        "UPDATE vms SET state = ?, reason = reason || ', and in the store too' WHERE vm_id = ? AND state = ?",
        (VmState.LOST, former, VmState.SILENT),
    )
