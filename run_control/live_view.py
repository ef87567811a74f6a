"""Looking at a project again and again for next to nothing: what has not changed is neither read nor parsed anew."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from bridge.ledger_reader import LedgerReader
from bridge.ledger_room import Shortage
from bridge.ledger_rows import CommandRow, VmRow
from bridgehead import names
from bridgehead.errors import BridgeheadError
from bridgehead.records import Status
from run_control import views
from run_control.project import Project
from run_control.views import RunView

COMMANDS_MAX: Final = 100  # the newest lines of the queue
RUNS_MAX: Final = 60  # the newest runs
T = TypeVar("T")
Stamp = tuple[int, int, int]  # inode, size, time of the last change


def stamp(path: Path) -> Stamp | None:
    """What differs when the file does; None when it is not there."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


class Cached(Generic[T]):
    """What `read` makes of a file, made again only when the file has changed."""

    def __init__(self, path: Path, read: Callable[[], T]) -> None:
        self._path = path
        self._read = read
        self._stamp: Stamp | None = None
        self._value: T | None = None
        self._fresh = True

    def get(self) -> T:
        """Raises what `read` raises, and then reads again at the next call."""
        found = stamp(self._path)
        if self._fresh or found != self._stamp or self._value is None:
            self._fresh = True
            self._value = self._read()
            self._stamp, self._fresh = found, False
        return self._value


@dataclass(frozen=True)
class _Told:
    """What a status file held when it bore this stamp."""

    stamp: Stamp | None
    status: Status | None
    levels: dict[str, dict[str, Any]]


class LiveView:
    """The ledger's newest rows and the status of each run, for one thread. `close()` when done."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self.rows: list[CommandRow] = []
        self.vm_rows: list[VmRow] = []
        self.short: list[Shortage] = []  # what this laptop has no room for
        self.trouble = ""  # why the ledger can't be read
        self._ledger: LedgerReader | None = None
        self._version: int | None = None
        self._inode = 0
        self._status: dict[str, _Told] = {}
        self._paths: dict[str, Path] = {}  # of the status files: to put one together takes longer than to look at it

    def look(self) -> bool:
        """Read what was written since the last look. Returns whether the ledger has changed."""
        try:
            return self._look()
        except (BridgeheadError, sqlite3.Error, OSError) as error:  # moved away, or just being made: tried again
            self.close()
            self.trouble = error.message if isinstance(error, BridgeheadError) else f"the ledger can't be read: {error}"
            return False

    def runs(self, now: float) -> list[RunView]:
        """The newest runs, oldest first."""
        rows = [row for row in self.rows if row.run_id][-RUNS_MAX:]
        told = [(row, self._status_of(row.run_id)) for row in rows]
        return [
            views.view_of(self.project, row, found.status, now, short=self.short, levels=found.levels)
            for row, found in told
        ]

    def vms(self, now: float) -> list[dict[str, Any]]:
        """As `views.vms`."""
        return [views.vm_view(row, now) for row in self.vm_rows]

    def close(self) -> None:
        if self._ledger is not None:
            with contextlib.suppress(sqlite3.Error):
                self._ledger.close()
        self._ledger, self._version = None, None

    def _look(self) -> bool:
        found = stamp(self.project.ledger)
        if found is None:
            changed = bool(self.rows or self.vm_rows)
            self.rows, self.vm_rows, self.short, self.trouble = [], [], [], ""
            self.close()
            return changed
        if self._ledger is not None and found[0] != self._inode:
            self.close()  # it was moved away, and another one lies there
        if self._ledger is None:
            self._ledger, self._inode = LedgerReader(self.project.ledger), found[0]
        version = self._ledger.version()
        if version == self._version:
            return False
        self.rows, self.vm_rows = self._ledger.commands(limit=COMMANDS_MAX), self._ledger.vms()
        self.short, self._version, self.trouble = self._ledger.no_room(), version, ""
        return True

    def _status_of(self, run_id: str) -> _Told:
        known, path = self._status.get(run_id), self._paths.get(run_id)
        if path is None:
            path = self._paths[run_id] = self.project.run(run_id) / names.STATUS
        found = stamp(path)
        if known is None or known.stamp != found:
            status = views.read_status(self.project, run_id) if found is not None else None
            known = self._status[run_id] = _Told(found, status, views.levels_of(status) if status else {})
        return known
