"""Putting a line into queue.txt and hearing what the bridge made of it."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bridge.ledger_reader import LedgerReader
from bridge.ledger_rows import REJECTED
from bridgehead.errors import BridgeheadError, UsageError
from run_control import bridge_control, locks, queue_writer
from run_control.key_control import me
from run_control.project import Project
from run_control.views import ledger_of

TAKEN_TIMEOUT_S = 15.0  # a bridge takes it at once; one on a busy laptop that wakes up may not
_POLL_S = 0.02


@dataclass(frozen=True)
class Queued:
    """A line that was added. `run_id` is empty while no bridge has taken it."""

    line: str
    taken: bool
    seq: int = 0
    run_id: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@contextlib.contextmanager
def in_turn(path: Path, patience_s: float = 2 * TAKEN_TIMEOUT_S) -> Iterator[bool]:
    """One process and thread at a time, with that file as the lock.

    False in it when the others took too long, or when the disk takes no lock.
    """
    fd = None
    with contextlib.suppress(OSError):
        deadline = time.monotonic() + patience_s
        fd = locks.take(path)
        while fd is None and time.monotonic() < deadline:
            time.sleep(_POLL_S)
            fd = locks.take(path)
    try:
        yield fd is not None
    finally:
        if fd is not None:
            os.close(fd)


def newest_seq(project: Project) -> int:
    """The number of the line that was taken last; 0 when none was, or when that can't be read just now."""
    with contextlib.suppress(BridgeheadError, sqlite3.Error):
        reader = LedgerReader(project.ledger)
        with contextlib.closing(reader):
            return max((row.seq for row in reader.commands(limit=1)), default=0)
    return 0


def taken_after(project: Project, seq: int) -> list[tuple[int, str, str]]:
    """(number, line, run id) of each line that was taken after that number, oldest first; none when unreadable."""
    with contextlib.suppress(BridgeheadError, sqlite3.Error):
        reader = LedgerReader(project.ledger)
        with contextlib.closing(reader):
            return [(row.seq, row.text.strip(), row.run_id) for row in reader.commands() if row.seq > seq]
    return []


def submit(project: Project, line: str, *, via: str = "cli") -> Queued:
    """Append the line, and leave word for the audit file who did (`via`: cli or panel).

    With a live bridge wait until it is taken. Raises UsageError when the bridge rejects it.
    """
    if project.ledger.is_file():
        with contextlib.suppress(BridgeheadError, sqlite3.Error), ledger_of(project) as ledger:
            ledger.note_origin(line, me(via))
    if bridge_control.find(project) is None:
        queue_writer.append(project.queue, [line])
        return Queued(line, taken=False)
    # Equal lines at once would all find the first one.
    with in_turn(project.queue_lock, TAKEN_TIMEOUT_S) as alone, ledger_of(project) as ledger:
        if not alone:  # the line counts all the same; only its number can't be told from a twin's
            queue_writer.append(project.queue, [line])
            return Queued(line, taken=False)
        last = max((row.seq for row in ledger.commands(limit=1)), default=0)
        queue_writer.append(project.queue, [line])
        deadline = time.monotonic() + TAKEN_TIMEOUT_S
        while time.monotonic() < deadline:
            for row in ledger.commands(limit=50):
                if row.seq > last and row.text.strip() == line:
                    if row.state == REJECTED:
                        raise UsageError(f"line {line[:60]!r} was rejected: {row.reason}", hint="bridgehead queue")
                    return Queued(line, taken=True, seq=row.seq, run_id=row.run_id)
            time.sleep(_POLL_S)
    return Queued(line, taken=False)
