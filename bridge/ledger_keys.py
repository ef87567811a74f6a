"""Which pairing each VM speaks with. Functions of one open transaction each, and the tables they need.

A VM's id belongs to the pairing that it first spoke with. So a key writes to the runs of its own VMs alone, and a run
goes from the VM of one pairing to that of another when the ledger gives it, never because the other one claims it.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from typing import Final

from bridge.ledger_rows import VmState

# `family` is the first key of a pairing, `key_id` the one that the VM used last: a rotation changes that alone.
SCHEMA: Final = (
    "CREATE TABLE IF NOT EXISTS vm_keys (vm_id TEXT PRIMARY KEY, key_id TEXT NOT NULL, family TEXT NOT NULL,"
    " allow_sh INTEGER NOT NULL, since REAL NOT NULL) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS key_use (key_id TEXT PRIMARY KEY, first_used REAL NOT NULL, last_used REAL NOT NULL)"
    " WITHOUT ROWID",
)


@dataclass(frozen=True)
class VmKey:
    """The key that a VM speaks with; `since` in seconds since 1970. `vm_state`: a VmState, "" before its first beat."""

    vm_id: str
    key_id: str
    family: str
    allow_sh: bool
    since: float
    vm_state: str = ""
    last_seen: float = 0.0


def vm_key(db: sqlite3.Connection, vm_id: str) -> VmKey | None:
    rows = _select(db, "WHERE k.vm_id = ?", vm_id)
    return rows[0] if rows else None


def vm_keys(db: sqlite3.Connection) -> list[VmKey]:
    return _select(db, "ORDER BY k.since")


def bind(db: sqlite3.Connection, vm_id: str, key_id: str, family: str, *, allow_sh: bool, now: float) -> None:
    """The VM speaks with this key from now on; the caller has found that it may."""
    db.execute(
        "INSERT INTO vm_keys VALUES (?, ?, ?, ?, ?) ON CONFLICT (vm_id) DO UPDATE SET"
        " key_id = excluded.key_id, family = excluded.family, allow_sh = excluded.allow_sh, since = excluded.since",
        (vm_id, key_id, family, allow_sh, now),
    )


def fresh_vms(db: sqlite3.Connection, family: str, since: float) -> int:
    """How many of a pairing's VMs are alive, or first spoke after `since`."""
    query = (
        "SELECT count(*) AS found FROM vm_keys AS k LEFT JOIN vms AS v ON v.vm_id = k.vm_id"
        " WHERE k.family = ? AND (v.state = ? OR k.since > ?)"
    )
    return int(db.execute(query, (family, VmState.LIVE, since)).fetchone()["found"])


def note_use(db: sqlite3.Connection, key_id: str, now: float) -> None:
    db.execute(
        "INSERT INTO key_use VALUES (?, ?, ?) ON CONFLICT (key_id) DO UPDATE SET last_used = excluded.last_used",
        (key_id, now, now),
    )


def last_used(db: sqlite3.Connection) -> dict[str, float]:
    """When each key was last used, to within a minute or better."""
    used = {str(row["key_id"]): float(row["last_used"]) for row in db.execute("SELECT * FROM key_use")}
    for item in vm_keys(db):
        used[item.key_id] = max(used.get(item.key_id, 0.0), item.last_seen)
    return used


def same_pairing(db: sqlite3.Connection, one: str, other: str) -> bool:
    """Whether two VMs speak with keys of one pairing; True where the ledger is older than its knowledge of that."""
    keys = (vm_key(db, one), vm_key(db, other))
    return keys[0] is None or keys[1] is None or keys[0].family == keys[1].family


def runs_shell(db: sqlite3.Connection, vm_id: str) -> bool:
    """Whether the VM was paired with a key that allows `sh:`; True for one that has not spoken yet."""
    found = vm_key(db, vm_id)
    return found is None or found.allow_sh


def _select(db: sqlite3.Connection, rest: str, *values: str) -> list[VmKey]:
    rows = db.execute(
        "SELECT k.*, coalesce(v.state, '') AS vm_state, coalesce(v.last_seen, 0) AS last_seen"
        f" FROM vm_keys AS k LEFT JOIN vms AS v ON v.vm_id = k.vm_id {rest}",
        values,
    )
    return [
        VmKey(
            row["vm_id"],
            row["key_id"],
            row["family"],
            bool(row["allow_sh"]),
            row["since"],
            row["vm_state"],
            row["last_seen"],
        )
        for row in rows
    ]
