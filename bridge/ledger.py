"""The ledger: every line ever taken from queue.txt, which VM has it, and how it ended. One SQLite file per project.

A line becomes a command once and for all. Delivery is at least once (a VM may ask again after the same number),
execution at most once (the VM journals an id before it acts). The bridge writes; the CLI reads the same file and may
write too: every change is one transaction, flushed to the disk before anybody hears of it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bridge import ledger_acks, ledger_audit, ledger_keys, ledger_lines, ledger_pairings, ledger_room, ledger_vms
from bridge.ledger_rows import (
    SCHEMA,
    SCHEMA_VERSION,
    CommandRow,
    Note,
    TakenLine,
    VmRow,
    VmState,
    command_row,
    vm_row,
)
from bridge.project import ProjectView
from bridge.sqlite_faults import is_passing, not_now
from bridgehead import names
from bridgehead.errors import NotFoundError, SupersededError, VerificationError
from bridgehead.records import AckRecord, Command, Heartbeat, StageSpec

_BUSY_TIMEOUT_S = 15.0
_ASLEEP_S = 10.0  # a longer pause between two sweeps: it was this machine that slept, not the VMs that were silent


class Ledger:
    """Safe from several threads and several processes. Times are seconds since 1970."""

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.time) -> None:
        """Open or create it.

        Raises VerificationError when the file is damaged or of another version, BridgeDownError when the disk is full.
        """
        self._clock = clock
        self._lock = threading.RLock()
        self._durable = True  # what the connection is set to
        self._callbacks: list[Callable[[], None]] = []
        self._last_sweep = self._listening_since = float("-inf")
        with contextlib.suppress(FileExistsError):
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))  # it holds shell commands
        try:
            self._db = _open(path)
        except sqlite3.DatabaseError as error:
            if is_passing(error):
                raise not_now(path, error) from None
            raise VerificationError(
                f"the ledger {path.name} can't be read: {error}",
                hint=f"move {path.name} away and empty {names.QUEUE_FILE}; what is in {names.IN_FOLDER}/ stays",
            ) from None
        self._data_version = self._version()

    def close(self) -> None:
        with self._lock:
            self._db.close()

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call `callback` (from any thread, after the commit) when there may be something to deliver."""
        self._callbacks.append(callback)

    # --- queue.txt → commands -------------------------------------------------------------------

    def take(
        self,
        lines: Sequence[tuple[int, str]],
        project: ProjectView,
        *,
        seen: tuple[int, Sequence[TakenLine]] | None = None,
    ) -> list[CommandRow]:
        """Make each (line number, text) a command or a rejected line, in order and in one transaction.

        `seen` = (place, lines): what queue.txt holds from that place on; a seq of 0 stands for the next of `lines`.
        It is remembered in the same transaction, so that no line of the file is ever taken twice.
        """
        now = self._clock()
        with self._write() as db:
            taken = [ledger_lines.take_line(db, text, project, now) for _, text in lines]
            ledger_pairings.follow(db)
            if seen is not None:
                fresh = iter(taken)
                db.execute("DELETE FROM lines WHERE place >= ?", (seen[0],))
                db.executemany(
                    "INSERT INTO lines VALUES (?, ?, ?)",
                    ((place, line.seq or next(fresh), line.text) for place, line in enumerate(seen[1], seen[0])),
                )
            rows = db.execute("SELECT * FROM commands WHERE seq >= ? ORDER BY seq", (min(taken, default=0),))
            commands = [command_row(row) for row in rows] if taken else []
        if commands:
            self._changed()
        return commands

    def taken_lines(self) -> list[TakenLine]:
        """queue.txt as it was last seen; survives restarts of the bridge."""
        with self._read() as db:
            return [TakenLine(row["seq"], row["text"]) for row in db.execute("SELECT * FROM lines ORDER BY place")]

    def add_note(self, line_number: int, text: str) -> None:
        with self._write() as db:
            db.execute("INSERT INTO notes (at, line_number, text) VALUES (?, ?, ?)", (self._clock(), line_number, text))

    def notes(self, limit: int = 50) -> list[Note]:
        """The newest notes, oldest of them first."""
        with self._read() as db:
            rows = db.execute("SELECT * FROM notes ORDER BY number DESC LIMIT ?", (limit,)).fetchall()
        return [Note(row["at"], row["line_number"], row["text"]) for row in reversed(rows)]

    def spec_of(self, run_id: str) -> StageSpec | None:
        """The stage as it was resolved when its line was taken, with what the run was pinned to."""
        with self._read() as db:
            row = db.execute("SELECT spec FROM commands WHERE run_id = ?", (run_id,)).fetchone()
        return StageSpec.from_json(json.loads(row["spec"])) if row is not None and row["spec"] else None

    # --- what a VM says and hears -----------------------------------------------------------------

    def deliver(self, vm_id: str, after: int) -> list[Command]:
        """Give the VM what is queued and may go there; return its commands newer than delivery `after`.

        At most ledger_vms.BATCH_MAX of them. Counts as a sign of life, except from a VM that is known to be gone.
        """
        now = self._clock()
        with self._lock, self._write(durable=ledger_vms.has_news(self._db, vm_id, after)) as db:
            returned = ledger_vms.see(db, vm_id, now)
            if self._vm_state(db, vm_id) != VmState.LIVE:
                return []
            ledger_vms.assign(db, vm_id, now)
            commands = ledger_vms.commands_of(db, vm_id, after)
        if returned:
            self._changed()
        return commands

    def news_of(self, asks: Sequence[tuple[str, int]]) -> list[bool]:
        """For each (VM, last delivery) whether `deliver` may bring something. Only reads, and is no sign of life."""
        with self._read() as db:
            return [ledger_vms.has_news(db, vm_id, after) for vm_id, after in asks]

    def ack(self, command_id: str, record: AckRecord) -> None:
        """Note what a VM says of a command; repeating it, or saying it late, changes nothing.

        A higher attempt than the ledger's is a claim: while the laptop was away the VM took the command over.
        Raises NotFoundError, SupersededError (another VM or attempt has it now) and UsageError (no such state).
        """
        now = self._clock()
        with self._write() as db:
            ledger_vms.see(db, record.vm_id, now)
            row = db.execute("SELECT * FROM commands WHERE id = ?", (command_id,)).fetchone()
            if row is None:
                raise NotFoundError(f"no command {command_id[:40]!r}")
            owned = ledger_acks.own(db, row, record, now)
            if owned:
                row = db.execute("SELECT * FROM commands WHERE id = ?", (command_id,)).fetchone()
                changed = ledger_acks.apply(db, row, record, now)
        if not owned:
            raise SupersededError(f"command #{row['seq']} no longer belongs to {record.vm_id}")
        if changed:
            self._changed()

    def heartbeat(self, beat: Heartbeat) -> list[tuple[str, int]]:
        """Note a VM's state; return the (run id, attempt) that it reports and that are no longer its own."""
        with self._lock, self._write(durable=ledger_vms.changes_more_than_time(self._db, beat)) as db:
            now = self._clock()
            returned = ledger_vms.see(db, beat.vm_id, now, beat=beat)
            returned = ledger_vms.hand_over(db, beat, now) or returned
            revoked = ledger_vms.revoked(db, beat)
        if returned:
            self._changed()
        return revoked

    def refused(self, vm_id: str) -> None:
        """A request of this VM failed its signature: it is alive, though nothing that it says can be trusted."""
        with self._write() as db:
            db.execute("UPDATE vms SET refused_at = ? WHERE vm_id = ?", (self._clock(), vm_id))

    def owns(self, run_id: str, vm_id: str, attempt: int) -> bool:
        """Whether this VM, in this attempt, is the one that the run was given to last."""
        with self._read() as db:
            return ledger_vms.owns(db, run_id, vm_id, attempt)

    # --- VMs that fall silent ----------------------------------------------------------------------

    def sweep_lost(self, lost_after_s: float) -> list[str]:
        """Find VMs that have been silent for longer; lend their runs to others. To be called about once a second.

        One whose requests are refused is not silent: its clock or its pairing code is wrong.

        Silence counts from when this bridge began to listen: after a restart or a night's sleep every VM gets
        `lost_after_s` to report again.
        """
        now = self._clock()
        if now - self._last_sweep > _ASLEEP_S:
            self._listening_since = now
        self._last_sweep = now
        version = self._version()
        if version != self._data_version:  # another process wrote
            self._data_version = version
            self._changed()
        if now - self._listening_since <= lost_after_s:
            return []
        silent = "SELECT vm_id, last_seen FROM vms WHERE state = ? AND max(last_seen, refused_at) < ?"
        with self._read() as db:
            if not db.execute(silent, (VmState.LIVE, now - lost_after_s)).fetchall():
                return []
        with self._write() as db:
            rows = db.execute(silent, (VmState.LIVE, now - lost_after_s)).fetchall()
            for row in rows:
                why = f"silent for {now - row['last_seen']:.0f} s"
                ledger_vms.lose(db, row["vm_id"], VmState.SILENT, why, now)
        self._changed()
        return [row["vm_id"] for row in rows]

    def mark_vm_gone(self, vm_id: str, reason: str) -> None:
        """It is known that the VM has ended: offer its runs again at once."""
        with self._write() as db:
            ledger_vms.lose(db, vm_id, VmState.GONE, reason, self._clock())
        self._changed()

    # --- for people ------------------------------------------------------------------------------------

    def commands(self, *, limit: int | None = None) -> list[CommandRow]:
        """All commands in the queue's order, or the newest `limit` of them."""
        with self._read() as db:
            rows = db.execute("SELECT * FROM commands ORDER BY seq DESC LIMIT ?", (-1 if limit is None else limit,))
            return [command_row(row) for row in rows.fetchall()[::-1]]

    def find_run(self, text: str) -> CommandRow:
        """A run id, a stage (its newest run) or the beginning of one run id alone.

        Raises NotFoundError with the nearest names, UsageError when several begin so.
        """
        with self._read() as db:
            return command_row(ledger_lines.find_run(db, text))

    def vms(self) -> list[VmRow]:
        """All VMs ever seen, in the order of their first sign of life."""
        with self._read() as db:
            return [vm_row(row) for row in db.execute("SELECT * FROM vms ORDER BY first_seen, vm_id")]

    def no_room(self) -> list[ledger_room.Shortage]:
        """What the laptop's disk has no room for; it waits on its VM."""
        with self._read() as db:
            return ledger_room.read(db)

    def set_no_room(self, items: Sequence[ledger_room.Shortage]) -> None:
        with self._write(durable=False) as db:
            ledger_room.write(db, items)

    # --- keys, and what the audit file hears --------------------------------------------------------------

    def vm_key(self, vm_id: str) -> ledger_keys.VmKey | None:
        """The key that the VM speaks with; None when it has not spoken yet."""
        with self._read() as db:
            return ledger_keys.vm_key(db, vm_id)

    def vm_keys(self) -> list[ledger_keys.VmKey]:
        with self._read() as db:
            return ledger_keys.vm_keys(db)

    def fresh_vms(self, family: str, within_s: float) -> int:
        """How many VMs of this pairing are alive, or are new since so many seconds."""
        with self._read() as db:
            return ledger_keys.fresh_vms(db, family, self._clock() - within_s)

    def bind_vm(self, vm_id: str, key_id: str, family: str, *, allow_sh: bool) -> None:
        """The VM speaks with this key from now on."""
        with self._write() as db:
            now = self._clock()
            ledger_keys.bind(db, vm_id, key_id, family, allow_sh=allow_sh, now=now)
            ledger_pairings.move(db, vm_id, family)
            if not allow_sh:
                ledger_pairings.refuse_shell(db, vm_id, now)
        self._changed()

    def heed_pairings(self, told: Sequence[ledger_pairings.PairingState]) -> None:
        """The pairings are these from now on; what waits for one that is no more ends. About once a second."""
        with self._read() as db:
            if ledger_pairings.states(db) == list(told) and not ledger_pairings.waits_in_vain(db):
                return
        with self._write() as db:
            ledger_pairings.heed(db, told)
            ledger_pairings.end_what_waits_in_vain(db, self._clock())
        self._changed()

    def note_key_use(self, key_id: str) -> None:
        with self._write(durable=False) as db:
            ledger_keys.note_use(db, key_id, self._clock())

    def keys_last_used(self) -> dict[str, float]:
        with self._read() as db:
            return ledger_keys.last_used(db)

    def note_origin(self, line: str, told: Mapping[str, str]) -> None:
        """Say who is about to add this line to queue.txt; the command that it becomes remembers it."""
        with self._write() as db:
            digest = hashlib.sha256(line.strip().encode()).hexdigest()
            ledger_audit.note_origin(db, digest, json.dumps(dict(told)), self._clock())

    def audit_waiting(self, after: int = 0) -> list[tuple[int, dict[str, Any]]]:
        """(number, event) of what has happened and is not in the audit file yet."""
        with self._read() as db:
            return ledger_audit.waiting(db, after)

    def audit_done(self, number: int, head: str, lines: int) -> None:
        with self._write() as db:
            ledger_audit.done(db, number, head, lines)

    def fact(self, name: str) -> str:
        """`id`: of this ledger; `audit_head`, `audit_lines`: hash and number of the audit file's last line."""
        with self._read() as db:
            return ledger_audit.fact(db, name)

    # --- inside ------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _read(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            yield self._db

    @contextlib.contextmanager
    def _write(self, *, durable: bool = True) -> Iterator[sqlite3.Connection]:
        """One transaction, undone as a whole when the block raises.

        One that is not `durable` survives the death of the bridge, and of the machine once a later one is durable: for
        signs of life, of which there are many. While a disk is busy with the VMs' logs, an fsync can take a second.
        """
        with self._lock:
            if durable != self._durable:
                self._db.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
                self._durable = durable
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")

    def _vm_state(self, db: sqlite3.Connection, vm_id: str) -> str:
        return str(db.execute("SELECT state FROM vms WHERE vm_id = ?", (vm_id,)).fetchone()["state"])

    def _version(self) -> int:
        """Changes when another connection has written to the file."""
        with self._lock:
            return int(self._db.execute("PRAGMA data_version").fetchone()[0])

    def _changed(self) -> None:
        for callback in self._callbacks:
            callback()


def _open(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, timeout=_BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
    try:
        db.row_factory = sqlite3.Row
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        db.execute("BEGIN IMMEDIATE")  # two processes may create it at once
        version = db.execute("PRAGMA user_version").fetchone()[0]
        if version == 0:
            for statement in SCHEMA.split(";"):
                db.execute(statement)
            db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        elif version != SCHEMA_VERSION:
            raise sqlite3.DatabaseError(f"it is of version {version}, this is {SCHEMA_VERSION}")
        ledger_pairings.add_column(db)
        for part in (ledger_keys, ledger_pairings, ledger_room, ledger_audit):  # a ledger of before gets them too
            for statement in part.SCHEMA:
                db.execute(statement)
        db.execute("COMMIT")
    except BaseException:
        db.close()
        raise
    return db
