"""The ledger's tables, and its rows as the rest of the laptop sees them."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from bridgehead.names import ENDED as ENDED_RUNS
from bridgehead.names import FailureClass, RunState
from bridgehead.records import Command, StageSpec

REJECTED: Final = "rejected"  # a line that could not be read, or a command that a VM refused
ENDED: Final = frozenset({*map(str, ENDED_RUNS), REJECTED})
SCHEMA_VERSION: Final = 2

# `lines` is queue.txt as it was last seen: its command lines in the file's order, each with the seq it was taken as.
# `held_by`, `held_state` and `held_attempt` remember how a command stood when its VM fell silent, so that the VM gets
# it back when it speaks again; that ends when another VM has proof of the silence and says so ("accepted", or a claim).
# `top_attempt` is the highest attempt that ever went out, `losses` how often a VM was proven lost with the run.
# `kept_off` is the VM that handed a run over, `family` the pairing that the command is kept to (ledger_pairings).
# `withdrawn` lists what was lent to a VM and taken back.
SCHEMA: Final = """
CREATE TABLE counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
INSERT INTO counters VALUES ('delivery', 0);
CREATE TABLE commands (
    seq INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, digest TEXT NOT NULL, text TEXT NOT NULL,
    verb TEXT NOT NULL, argument TEXT NOT NULL, target_vm TEXT NOT NULL, state TEXT NOT NULL,
    run_id TEXT NOT NULL, stage TEXT NOT NULL, spec TEXT NOT NULL, inputs TEXT NOT NULL,
    vm_id TEXT NOT NULL DEFAULT '', delivery INTEGER NOT NULL DEFAULT 0, attempt INTEGER NOT NULL DEFAULT 1,
    top_attempt INTEGER NOT NULL DEFAULT 1, losses INTEGER NOT NULL DEFAULT 0,
    held_by TEXT NOT NULL DEFAULT '', held_state TEXT NOT NULL DEFAULT '', held_attempt INTEGER NOT NULL DEFAULT 0,
    former_vm TEXT NOT NULL DEFAULT '', former_gone INTEGER NOT NULL DEFAULT 0, kept_off TEXT NOT NULL DEFAULT '',
    exit_code INTEGER, failure_class TEXT NOT NULL DEFAULT '', reason TEXT NOT NULL DEFAULT '',
    created REAL NOT NULL, updated REAL NOT NULL, family TEXT NOT NULL DEFAULT ''
);
CREATE INDEX commands_by_vm ON commands (vm_id, state, seq);
CREATE INDEX commands_by_holder ON commands (held_by);
CREATE INDEX commands_by_run ON commands (run_id);
CREATE INDEX commands_by_stage ON commands (stage, seq);
CREATE TABLE vms (
    vm_id TEXT PRIMARY KEY, state TEXT NOT NULL, first_seen REAL NOT NULL, last_seen REAL NOT NULL,
    heartbeat TEXT NOT NULL DEFAULT '{}', reason TEXT NOT NULL DEFAULT '', refused_at REAL NOT NULL DEFAULT 0
) WITHOUT ROWID;
CREATE TABLE withdrawn (
    vm_id TEXT NOT NULL, run_id TEXT NOT NULL, attempt INTEGER NOT NULL, PRIMARY KEY (vm_id, run_id, attempt)
) WITHOUT ROWID;
CREATE TABLE lines (place INTEGER PRIMARY KEY, seq INTEGER NOT NULL, text TEXT NOT NULL);
CREATE TABLE notes (number INTEGER PRIMARY KEY, at REAL NOT NULL, line_number INTEGER NOT NULL, text TEXT NOT NULL);
"""


class VmState(StrEnum):
    LIVE = "live"
    SILENT = "silent"  # the bridge has not heard of it for too long: one sign, so its runs are only lent
    LOST = "lost"  # silent here, and another VM found it silent in the store too
    GONE = "gone"  # known to have ended


@dataclass(frozen=True)
class CommandRow:
    """One taken line and what became of it. `state` is "rejected" or a RunState, for stop and sync too."""

    seq: int
    id: str
    delivery: int
    text: str
    verb: str  # empty when the line could not be read
    argument: str
    target_vm: str
    state: str
    run_id: str
    stage: str
    vm_id: str  # the VM that has it now; empty: none
    attempt: int
    exit_code: int | None
    failure_class: str
    reason: str
    created: float
    updated: float
    spec: str = ""  # JSON of its StageSpec; read by whoever wants it, since most do not
    inputs: dict[str, str] = field(default_factory=dict)
    family: str = ""  # the pairing whose VMs alone may have it; empty: any

    @property
    def ended(self) -> bool:
        return self.state in ENDED


@dataclass(frozen=True)
class VmRow:
    vm_id: str
    state: str  # a VmState
    first_seen: float
    last_seen: float
    heartbeat: dict[str, Any]
    reason: str
    refused_at: float = 0.0  # when the bridge last refused a request of its: alive, but not paired any more

    @property
    def unpaired(self) -> bool:
        """It speaks, and what it says can't be trusted: a clock that is wrong, or an old pairing code."""
        return self.refused_at > self.last_seen


@dataclass(frozen=True)
class Note:
    """Something to tell the person who edits queue.txt. Line 0: about the file as a whole."""

    at: float
    line_number: int
    text: str


@dataclass(frozen=True)
class TakenLine:
    """A command line of queue.txt as last seen, and the seq it was taken as (0: about to be taken)."""

    seq: int
    text: str


def command_row(row: sqlite3.Row) -> CommandRow:
    values = {name: row[name] for name in CommandRow.__dataclass_fields__ if name != "inputs"}
    return CommandRow(**values, inputs=json.loads(row["inputs"]))


def command(row: sqlite3.Row) -> Command:
    """The command as it goes to its VM."""
    return Command(
        id=row["id"],
        seq=row["seq"],
        delivery=row["delivery"],
        vm_id=row["vm_id"],
        verb=row["verb"],
        argument=row["argument"],
        created=row["created"],
        attempt=row["attempt"],
        run_id=row["run_id"],
        inputs=json.loads(row["inputs"]),
        spec=StageSpec.from_json(json.loads(row["spec"])) if row["spec"] else None,
        former_vm=row["former_vm"],
        former_gone=bool(row["former_gone"]),
    )


def vm_row(row: sqlite3.Row) -> VmRow:
    return VmRow(
        row["vm_id"],
        row["state"],
        row["first_seen"],
        row["last_seen"],
        json.loads(row["heartbeat"]),
        row["reason"],
        row["refused_at"],
    )


def next_delivery(db: sqlite3.Connection) -> int:
    """A delivery number that no VM has seen yet."""
    row = db.execute("UPDATE counters SET value = value + 1 WHERE name = 'delivery' RETURNING value").fetchone()
    return int(row["value"])


def fail_orphans(db: sqlite3.Connection, now: float) -> None:
    """Runs that no VM has yet and that come after one that did not succeed will never start: say so."""
    while db.execute(
        """
        UPDATE commands SET state = :failed, failure_class = :upstream, updated = :now, reason =
            'comes after ' || (SELECT u.run_id || ', which is ' || u.state FROM json_each(commands.inputs) AS i
                JOIN commands AS u ON u.run_id = i.value WHERE u.state IN ('failed', 'stopped', 'rejected') LIMIT 1)
        WHERE vm_id = '' AND inputs != '{}' AND state IN (:queued, :lost) AND EXISTS (
            SELECT 1 FROM json_each(commands.inputs) AS i JOIN commands AS u ON u.run_id = i.value
            WHERE u.state IN ('failed', 'stopped', 'rejected'))
        """,
        {
            "failed": RunState.FAILED,
            "upstream": FailureClass.UPSTREAM,
            "queued": RunState.QUEUED,
            "lost": RunState.LOST,
            "now": now,
        },
    ).rowcount:
        pass
