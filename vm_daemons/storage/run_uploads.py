"""All runs of this VM on their way into the store: which are due, which have trouble, which are done.

The uploader's mirror thread calls `step`, its confirm thread `confirm`, its main thread `tell`; only the first two
touch the store, and only the last writes into run folders.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bridgehead import files, names
from bridgehead.errors import BridgeheadError, StoreFull, SupersededError, UsageError
from bridgehead.records import RunRecord
from vm_daemons.home import VmHome
from vm_daemons.storage import drive_cache, store_choice, store_slots
from vm_daemons.storage.confirm import Confirmer
from vm_daemons.storage.levels import Levels
from vm_daemons.storage.pace import Backoff
from vm_daemons.storage.store import Store
from vm_daemons.storage.store_progress import Progress, Stamp, stamp_of

_log = logging.getLogger("uploader")

MEASURE_AGAIN_S = 60.0  # while there is no room for all that is kept: somebody may make some


@dataclass
class _Run:
    """One attempt of a run. Each field has one writer: the mirror thread, but for `levels` and what is marked."""

    run_dir: Path
    attempt: int
    stamp: tuple[Stamp | None, Stamp | None]  # of run.json and exit.json
    levels: Levels  # main thread
    trouble: str = ""
    warning: str = ""  # of the preflight
    measure_at: float = 0.0  # monotonic; infinite once there was room
    superseded: bool = False
    not_before: float = 0.0  # monotonic
    backoff: Backoff = field(default_factory=lambda: Backoff(0.5))
    confirm_not_before: float = 0.0  # confirm thread
    confirm_backoff: Backoff = field(default_factory=lambda: Backoff(2.0, 60.0))  # confirm thread
    settled: bool = False  # main thread


class RunUploads:
    def __init__(self, home: VmHome, store: Store, says: Callable[[str], None]) -> None:
        self._home = home
        self._store = store
        self._says = says  # hears what the store said to the last round, "" when all went well
        self._runs: dict[str, _Run] = {}
        self._confirm_known = False  # whether anything can confirm has been found out
        self.trouble = ""

    # --- mirror thread ----------------------------------------------------------------------------

    def step(self, *, available: bool) -> None:
        """One round over all runs; trouble with one holds up no other. Raises OSError of the local disk."""
        self._discover()
        trouble = ""
        for run in list(self._runs.values()) if available else []:
            if run.settled or run.superseded:
                continue
            if time.monotonic() >= run.not_before:
                self._mirror(run)
            trouble = trouble or run.trouble
        self.trouble = trouble
        self._says(trouble)

    def catch_up(self) -> None:
        """The store is well again: nobody waits any longer."""
        for run in list(self._runs.values()):
            run.not_before = 0.0
            run.backoff.reset()

    def _mirror(self, run: _Run) -> None:
        try:
            self._measure(run)
            self._spare_the_disk(run)
            self._store.mirror(run.run_dir)
        except SupersededError as error:  # a higher attempt holds the lease in the store
            _log.warning("%s: %s", run.run_dir.name, error.message)
            run.superseded = True
        except (BridgeheadError, OSError) as error:
            trouble = error.in_one_line() if isinstance(error, BridgeheadError) else str(error)
            if trouble != run.trouble:
                _log.warning("%s: store: %s", run.run_dir.name, trouble)
            run.trouble = trouble
            run.not_before = time.monotonic() + run.backoff.next_s()
        else:
            run.trouble = ""
            run.backoff.reset()

    def _measure(self, run: _Run) -> None:
        """Before the first checkpoint goes up: whether there is room for as many as will lie there."""
        size_bytes = int(run.levels.local().get("size_bytes") or 0)
        if not size_bytes or time.monotonic() < run.measure_at:
            return
        known = self._store.known(run.run_dir)
        there = len(known.good()) if known is not None else 0
        quota_bytes = int(store_choice.spec_of(self._home).quota_gb * 1e9)
        kept = max(1, len(store_slots.SLOTS) - there)
        before, run.warning = run.warning, store_slots.fits(self._store.objects(), size_bytes, kept, quota_bytes)
        run.measure_at = time.monotonic() + MEASURE_AGAIN_S if run.warning else float("inf")
        if run.warning and run.warning != before:
            _log.warning("%s: %s", run.run_dir.name, run.warning)

    def _spare_the_disk(self, run: _Run) -> None:
        """Raises StoreFull while what goes up next would fill this VM's disk on its way."""
        local, known = run.levels.local(), self._store.known(run.run_dir)
        there = known.mounted.step if known is not None and known.mounted is not None else -1
        if local and int(local["step"]) > there:
            why = drive_cache.no_room(self._home.store_path(), int(local["size_bytes"]))
            if why:
                raise StoreFull(why, hint="make room on the VM; it goes up by itself then")

    def _discover(self) -> None:
        revoked = _revoked(self._home)
        for run_dir in self._home.runs.iterdir():
            known = self._runs.get(run_dir.name)
            stamp = (stamp_of(run_dir / names.RUN_RECORD), stamp_of(run_dir / names.EXIT))
            if stamp[0] is None or (known is not None and known.stamp == stamp and not known.superseded):
                continue
            try:
                record = RunRecord.from_json(files.read_json(run_dir / names.RUN_RECORD))
            except UsageError:
                continue  # the status daemon says so
            if known is not None and known.attempt == record.attempt:
                known.stamp, known.settled = stamp, known.settled and known.stamp[1] == stamp[1]
            else:
                told = Levels(run_dir, record.attempt)
                settled = bool(told.before("settled")) and stamp[1] is not None
                known = self._runs[run_dir.name] = _Run(run_dir, record.attempt, stamp, told, settled=settled)
            if (record.run_id, record.attempt) in revoked:
                known.settled, known.superseded = True, False
        for name in [name for name, run in self._runs.items() if not run.run_dir.exists()]:
            del self._runs[name]

    # --- confirm thread -----------------------------------------------------------------------------

    def confirm(self, confirmer: Confirmer) -> None:
        """Ask for what is only mounted. Raises StoreError, and then the rest has to wait."""
        self._confirm_known = True
        for run in self._unconfirmed():
            if time.monotonic() < run.confirm_not_before:
                continue
            run.confirm_not_before = time.monotonic() + run.confirm_backoff.next_s()
            if self._store.confirm(run.run_dir, confirmer):
                run.confirm_backoff.reset()

    def nothing_confirms(self) -> None:
        self._confirm_known = True

    def has_unconfirmed(self) -> bool:
        return bool(self._unconfirmed())

    def _unconfirmed(self) -> list[_Run]:
        return [run for run in list(self._runs.values()) if not run.settled and _wants(self._store.known(run.run_dir))]

    # --- main thread --------------------------------------------------------------------------------

    @property
    def warning(self) -> str:
        """What the preflight of a run that is not over says of the room in the store."""
        return next((run.warning for run in list(self._runs.values()) if run.warning and not run.settled), "")

    def tell(self, kind: str, where: str, confirmed_by: str, *, hangs: bool) -> None:
        """Write checkpoints.json where something changed. A full disk is told by others."""
        if not self._confirm_known:
            return
        for run in list(self._runs.values()):
            if run.settled:
                continue
            known, told = self._store.known(run.run_dir), run.levels
            told.kind, told.where, told.confirmed_by = kind, where, confirmed_by
            told.trouble, told.failing = run.trouble or run.warning, bool(run.trouble) or hangs
            told.settled = kind == "none" and run.stamp[1] is not None
            if known is not None and known.complete_attempt == run.attempt and not run.trouble:
                told.settled = not (confirmed_by and _wants(known))
            try:
                told.write(known)
            except (OSError, BridgeheadError) as error:
                _log.warning("%s: %s", run.run_dir.name, error)
                continue
            run.settled = told.settled and kind != "none"

    def superseded(self) -> list[dict[str, Any]]:
        """Runs that belong to a later attempt by the word of the store; the status daemon passes it on."""
        found = [run for run in list(self._runs.values()) if run.superseded]
        return [{"run_id": run.run_dir.name, "attempt": run.attempt} for run in found]


def _wants(known: Progress | None) -> bool:
    """Whether something is only mounted that is worth asking for."""
    if known is None:
        return False
    newest = known.newest_slot
    newest_waits = newest is not None and not newest.confirmed_at
    return newest_waits or bool(known.complete_attempt and not known.outputs_confirmed)


def _revoked(home: VmHome) -> set[tuple[str, int]]:
    found = files.read_json(home.state / names.VM_REVOKED)
    listed = [item for item in found if isinstance(item, dict)] if isinstance(found, list) else []
    return {(str(item.get("run_id")), int(item.get("attempt") or 0)) for item in listed}
