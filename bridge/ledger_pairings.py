"""Which pairing a run is kept to, and what becomes of what waits for a pairing that is no more.

A run belongs to the pairing of the VM that it was given to or pinned to: it holds that pairing's data, so when its VM
dies it waits for another VM of the same pairing, and so does what comes after it. Once a pairing is revoked, those that
were made after that follow it, as its VMs may be paired anew with them. Functions of one open transaction each, and the
table they need.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from bridge import ledger_keys
from bridge.ledger_rows import ENDED, REJECTED, fail_orphans
from bridgehead.names import FailureClass, RunState
from bridgehead.queue_lines import Verb

# What keys.json says, so that a transaction can go by it. `ended` is 0 while a key of the pairing is good.
SCHEMA: Final = (
    "CREATE TABLE IF NOT EXISTS pairings (family TEXT PRIMARY KEY, made REAL NOT NULL, ended REAL NOT NULL,"
    " allow_sh INTEGER NOT NULL) WITHOUT ROWID",
)
COLUMN: Final = "family"  # of `commands`: the pairing that it is kept to; empty: any
# For a SELECT on commands: whether a VM of the pairing :family may have it.
OPEN_TO: Final = (
    "(commands.family IN ('', :family) OR EXISTS (SELECT 1 FROM pairings AS old JOIN pairings AS new"
    " WHERE old.family = commands.family AND new.family = :family AND old.ended > 0 AND new.made >= old.ended))"
)
_WAITS: Final = f"vm_id = '' AND state IN ('{RunState.QUEUED}', '{RunState.LOST}')"
_HEIRLESS: Final = (
    "family != '' AND EXISTS (SELECT 1 FROM pairings AS old WHERE old.family = commands.family AND old.ended > 0"
    " AND NOT EXISTS (SELECT 1 FROM pairings AS new WHERE new.ended = 0 AND new.made >= old.ended))"
)
_INPUTS: Final = "json_each(commands.inputs) AS i JOIN commands AS u ON u.run_id = i.value"
# Of what comes after a run that a VM still has nobody says that it waits in vain: that VM may yet be paired anew.
_INPUTS_ENDED: Final = (
    f"NOT EXISTS (SELECT 1 FROM {_INPUTS} WHERE u.state NOT IN ({', '.join(repr(state) for state in sorted(ENDED))}))"
)


@dataclass(frozen=True)
class PairingState:
    """One pairing as keys.json has it. Times in seconds since 1970; `allow_sh`: a key that is good runs sh:."""

    family: str
    made: float
    ended: float
    allow_sh: bool


def add_column(db: sqlite3.Connection) -> None:
    """For a ledger of before."""
    if COLUMN not in {row["name"] for row in db.execute("PRAGMA table_info(commands)")}:
        db.execute(f"ALTER TABLE commands ADD COLUMN {COLUMN} TEXT NOT NULL DEFAULT ''")


def states(db: sqlite3.Connection) -> list[PairingState]:
    rows = db.execute("SELECT * FROM pairings ORDER BY made, family")
    return [PairingState(row["family"], row["made"], row["ended"], bool(row["allow_sh"])) for row in rows]


def heed(db: sqlite3.Connection, told: Iterable[PairingState]) -> None:
    """From now on the pairings are these."""
    db.execute("DELETE FROM pairings")
    rows = [(item.family, item.made, item.ended, item.allow_sh) for item in told]
    db.executemany("INSERT INTO pairings VALUES (?, ?, ?, ?)", rows)


def family_of(db: sqlite3.Connection, vm_id: str) -> str:
    """The pairing that the VM speaks with; empty while it has not spoken."""
    found = ledger_keys.vm_key(db, vm_id) if vm_id else None
    return found.family if found is not None else ""


def keep(db: sqlite3.Connection, seq: int, vm_id: str) -> None:
    """The command is this VM's now, and so its pairing's."""
    family = family_of(db, vm_id)
    if family:
        db.execute("UPDATE commands SET family = ? WHERE seq = ?", (family, seq))


def keep_all_of(db: sqlite3.Connection, vm_id: str) -> None:
    """What this VM has, and what was meant for it and waits, is kept to its pairing."""
    family = family_of(db, vm_id)
    if family:
        db.execute(
            f"UPDATE commands SET family = ? WHERE verb = ? AND (vm_id = ? OR target_vm = ? AND {_WAITS})",
            (family, Verb.RUN, vm_id, vm_id),
        )
        follow(db)


def follow(db: sqlite3.Connection) -> None:
    """What waits and comes after a run of a pairing is kept to that pairing too, since it reads what that run made.

    Not so what somebody has pinned to a VM.
    """
    found = f"SELECT u.family FROM {_INPUTS} WHERE u.family != '' ORDER BY u.seq DESC LIMIT 1"
    waits = f"{_WAITS} AND inputs != '{{}}' AND family = '' AND target_vm = ''"
    while db.execute(f"UPDATE commands SET family = ({found}) WHERE {waits} AND EXISTS ({found})").rowcount:
        pass  # what comes after those


def move(db: sqlite3.Connection, vm_id: str, family: str) -> None:
    """The VM was paired anew: what it has, or had when it fell silent, goes with it."""
    db.execute("UPDATE commands SET family = ? WHERE family != '' AND ? IN (vm_id, held_by)", (family, vm_id))


def may_have(db: sqlite3.Connection, row: sqlite3.Row, vm_id: str) -> bool:
    """Whether a VM of this one's pairing may have the command, which no VM has or the ledger took from one."""
    family = family_of(db, vm_id)
    if row["target_vm"] not in ("", vm_id) and not ledger_keys.same_pairing(db, row["target_vm"], vm_id):
        return False
    query = f"SELECT 1 FROM commands WHERE seq = :seq AND {OPEN_TO}"
    return db.execute(query, {"seq": row["seq"], "family": family}).fetchone() is not None


def waits_in_vain(db: sqlite3.Connection) -> bool:
    """Whether `end_what_waits_in_vain` has something to do."""
    return any(db.execute(f"SELECT 1 FROM commands WHERE {where} LIMIT 1").fetchone() for where in _in_vain())


def end_what_waits_in_vain(db: sqlite3.Connection, now: float) -> None:
    """Say of what no VM can take any more that it has ended, and why."""
    heirless, shell = _in_vain()
    db.execute(
        "UPDATE commands SET state = ?, failure_class = ?, updated = ?, reason ="
        " 'its pairing ' || family || ' was revoked, and no key was made after that: bridgehead keys new, pair a VM"
        " with it, and queue it again' || CASE state WHEN ? THEN ', with resume=' || run_id ELSE '' END"
        f" WHERE {heirless}",
        (RunState.FAILED, FailureClass.VM_LOST, now, RunState.LOST),
    )
    why = "no VM is paired with a key that allows sh: any more: bridgehead keys new, then queue it again"
    db.execute(f"UPDATE commands SET state = ?, reason = ?, updated = ? WHERE {shell}", (REJECTED, why, now))
    fail_orphans(db, now)


def refuse_shell(db: sqlite3.Connection, vm_id: str, now: float) -> None:
    """The VM turns out to be paired without sh:; what waits for it would wait for ever."""
    why = f"{vm_id} was paired with a key that does not allow sh:: bridgehead keys list"
    db.execute(
        f"UPDATE commands SET state = ?, reason = ?, updated = ? WHERE target_vm = ? AND verb = ? AND {_WAITS}",
        (REJECTED, why, now, vm_id, Verb.SH),
    )


def _in_vain() -> tuple[str, str]:
    """What waits for a revoked pairing without an heir; shell commands when no pairing runs any."""
    no_shell = "EXISTS (SELECT 1 FROM pairings) AND NOT EXISTS (SELECT 1 FROM pairings WHERE ended = 0 AND allow_sh)"
    return f"{_WAITS} AND {_HEIRLESS} AND {_INPUTS_ENDED}", f"{_WAITS} AND verb = '{Verb.SH}' AND {no_shell}"
