"""What the audit file has to hear of commands. It is noted in the transaction that changes them, by the ledger's own
triggers, so nothing that happened can be left out; `Bridge` brings it to the file and takes it out of here.
"""

from __future__ import annotations

import json
import sqlite3
from typing import Any, Final

from bridge.ledger_rows import ENDED, REJECTED
from bridgehead import names
from bridgehead.names import RunState

_VALUES: Final = "NEW.vm_id, NEW.attempt, NEW.state, NEW.exit_code, NEW.failure_class, NEW.reason"
_COLUMNS: Final = "at, seq, event, key_id, vm_id, attempt, state, exit_code, failure_class, reason, queued_by"
_KEY: Final = "coalesce((SELECT key_id FROM vm_keys WHERE vm_id = NEW.vm_id), '')"
_ORIGIN: Final = "FROM origins WHERE digest = NEW.digest ORDER BY number LIMIT 1"
TAKEN, GIVEN, MOVED = "taken", "given", "moved"
HEAD, LINES = "audit_head", "audit_lines"  # facts: hash and number of the audit file's last line as the ledger knows it

# `origins` says who is about to add a line to queue.txt; the first command of that text takes it away.
SCHEMA: Final = (
    "CREATE TABLE IF NOT EXISTS ledger_facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    "INSERT OR IGNORE INTO ledger_facts VALUES ('id', lower(hex(randomblob(4))))",
    "CREATE TABLE IF NOT EXISTS origins (number INTEGER PRIMARY KEY, at REAL NOT NULL, digest TEXT NOT NULL,"
    " told TEXT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS audit_outbox (number INTEGER PRIMARY KEY AUTOINCREMENT, at REAL NOT NULL,"
    " seq INTEGER NOT NULL, event TEXT NOT NULL, key_id TEXT NOT NULL, vm_id TEXT NOT NULL, attempt INTEGER NOT NULL,"
    " state TEXT NOT NULL, exit_code INTEGER, failure_class TEXT NOT NULL, reason TEXT NOT NULL,"
    " queued_by TEXT NOT NULL)",
    "CREATE TRIGGER IF NOT EXISTS audit_taken AFTER INSERT ON commands BEGIN"
    f" INSERT INTO audit_outbox ({_COLUMNS}) VALUES (NEW.created, NEW.seq, '{TAKEN}', '', {_VALUES},"
    f" coalesce((SELECT told {_ORIGIN}), ''));"
    f" DELETE FROM origins WHERE number = (SELECT number {_ORIGIN}); END",
    "CREATE TRIGGER IF NOT EXISTS audit_given AFTER UPDATE OF vm_id, attempt ON commands WHEN NEW.vm_id != ''"
    " AND (NEW.vm_id, NEW.attempt) != (OLD.vm_id, OLD.attempt) BEGIN"
    f" INSERT INTO audit_outbox ({_COLUMNS}) VALUES (NEW.updated, NEW.seq, '{GIVEN}', {_KEY}, {_VALUES}, ''); END",
    "CREATE TRIGGER IF NOT EXISTS audit_moved AFTER UPDATE OF state ON commands WHEN NEW.state != OLD.state"
    f" AND NEW.state != '{RunState.QUEUED}' BEGIN"  # to be queued again is to be given, which has a line of its own
    f" INSERT INTO audit_outbox ({_COLUMNS}) VALUES (NEW.updated, NEW.seq, '{MOVED}', {_KEY}, {_VALUES}, ''); END",
)
BATCH_MAX: Final = 500
_ORIGINS_MAX: Final = 1000


def note_origin(db: sqlite3.Connection, digest: str, told: str, now: float) -> None:
    db.execute("INSERT INTO origins (at, digest, told) VALUES (?, ?, ?)", (now, digest, told))
    db.execute("DELETE FROM origins WHERE number <= (SELECT max(number) FROM origins) - ?", (_ORIGINS_MAX,))


def waiting(db: sqlite3.Connection, after: int) -> list[tuple[int, dict[str, Any]]]:
    """(number, event for the audit file) of what waits, oldest first."""
    rows = db.execute(
        "SELECT o.*, c.id, c.verb, c.argument, c.text, c.run_id FROM audit_outbox AS o"
        " JOIN commands AS c ON c.seq = o.seq WHERE o.number > ? ORDER BY o.number LIMIT ?",
        (after, BATCH_MAX),
    )
    ledger_id = fact(db, "id")
    return [(int(row["number"]), _event(row, ledger_id)) for row in rows]


def done(db: sqlite3.Connection, number: int, head: str, lines: int) -> None:
    """Everything up to this number is in the audit file, whose last line had this hash and this number of its own."""
    db.execute("DELETE FROM audit_outbox WHERE number <= ?", (number,))
    db.executemany("INSERT OR REPLACE INTO ledger_facts VALUES (?, ?)", [(HEAD, head), (LINES, str(lines))])


def fact(db: sqlite3.Connection, name: str) -> str:
    row = db.execute("SELECT value FROM ledger_facts WHERE name = ?", (name,)).fetchone()
    return str(row["value"]) if row is not None else ""


def _event(row: sqlite3.Row, ledger_id: str) -> dict[str, Any]:
    event: dict[str, Any] = {
        "event": _name(row),
        "at": round(row["at"], 3),
        "seq": row["seq"],
        "id": row["id"],
        "run_id": row["run_id"],
        "ledger": f"{ledger_id}-{row['number']}",
    }
    if row["event"] == TAKEN:
        queued_by = json.loads(row["queued_by"]) if row["queued_by"] else {"via": names.QUEUE_FILE}
        event |= {"verb": row["verb"], "argument": row["argument"], "line": row["text"], "queued_by": queued_by}
    if row["vm_id"]:
        event |= {"vm_id": row["vm_id"], "key_id": row["key_id"], "attempt": row["attempt"]}
    if row["event"] == MOVED or row["state"] == REJECTED:
        event |= {"state": row["state"]}
        event |= {key: row[key] for key in ("exit_code", "failure_class", "reason") if row[key] not in (None, "")}
    return event


def _name(row: sqlite3.Row) -> str:
    if row["event"] != MOVED:
        return str(row["event"])
    if row["state"] in ENDED:
        return "finished"
    return {RunState.RUNNING: "started", RunState.LOST: "lost"}.get(row["state"], "moved")
