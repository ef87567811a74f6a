"""What a VM says of a command, and what that changes. Functions of one open transaction each."""

from __future__ import annotations

import sqlite3

from bridge import ledger_claims
from bridge.ledger_rows import ENDED, REJECTED, fail_orphans
from bridgehead.errors import UsageError
from bridgehead.names import Ack, FailureClass, RunState
from bridgehead.records import AckRecord


def own(db: sqlite3.Connection, row: sqlite3.Row, record: AckRecord, now: float) -> bool:
    """Whether the command is this VM's; by this very answer, it may be that it becomes so."""
    if (row["vm_id"], row["attempt"]) == (record.vm_id, record.attempt):
        lent = row["held_by"] not in ("", record.vm_id) and row["state"] not in ENDED
        return ledger_claims.accept(db, row, now) if lent else True
    if record.ack is Ack.UNKNOWN:  # told by whoever came upon it, and takes the command from nobody
        return row["state"] not in ENDED and row["attempt"] < record.attempt
    if ledger_claims.may_claim(db, row, record.vm_id, record.attempt):
        ledger_claims.claim(db, row, record.vm_id, record.attempt, now)
        return True
    return False


def apply(db: sqlite3.Connection, row: sqlite3.Row, record: AckRecord, now: float) -> bool:
    """Move the command on; False when that changes nothing. An outcome replaces "unknown", and nothing else does."""
    known = row["failure_class"] != FailureClass.UNKNOWN_OUTCOME
    if row["state"] in ENDED and (known or record.ack is not Ack.FINISHED):
        return False
    state, failure_class = _outcome(row, record)
    db.execute(
        "UPDATE commands SET state = ?, exit_code = ?, failure_class = ?, reason = ?, updated = ? WHERE seq = ?",
        (state, record.exit_code, failure_class, _plain(record.reason), now, row["seq"]),
    )
    fail_orphans(db, now)
    return True


def _plain(text: str) -> str:
    """What a VM says, cut to a readable length; half a surrogate pair (a file name that is not UTF-8) is no text."""
    return text[:2000].encode(errors="replace").decode()


def _outcome(row: sqlite3.Row, record: AckRecord) -> tuple[str, str]:
    """(state, failure class) after this ack."""
    if record.ack is Ack.ACCEPTED:
        return row["state"], ""
    if record.ack is Ack.STARTED:
        return RunState.RUNNING, ""
    if record.ack is Ack.REJECTED:
        return REJECTED, record.failure_class
    if record.ack is Ack.UNKNOWN:
        return RunState.FAILED, FailureClass.UNKNOWN_OUTCOME
    state = record.state or (RunState.FAILED if record.exit_code else RunState.DONE)
    if state not in ENDED:
        raise UsageError(f"finished, with the state {record.state[:40]!r}", hint="one of: " + ", ".join(sorted(ENDED)))
    return state, record.failure_class
