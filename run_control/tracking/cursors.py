"""How far each sink has been told of each run: .bridgehead/tracking/<sink>/<run>.json, written after the sink said yes.

A follower that dies in between tells the sink the same once more; each sink sees to it that this adds nothing.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from bridgehead import files, names
from run_control.tracking.story import Told


class Cursors:
    """Of one sink, for one thread."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[str, Told] = {}

    def get(self, run_id: str) -> Told:
        """A run of which nothing was told, or whose file can't be read, begins anew."""
        if run_id not in self._known:
            self._known[run_id] = _told(files.read_json(self._path(run_id)))
        return self._known[run_id]

    def save(self, run_id: str, told: Told) -> None:
        """Durable when this returns. Raises OSError."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        files.write_json(self._path(run_id), {"v": names.RECORD_VERSION, **dataclasses.asdict(told)}, mode=0o600)
        self._known[run_id] = told

    def forget(self, run_id: str) -> None:
        """Out of memory: a run that is told to its end is not looked at again."""
        self._known.pop(run_id, None)

    def _path(self, run_id: str) -> Path:
        return self._folder / f"{run_id}.json"


def _told(record: Any) -> Told:
    if not isinstance(record, dict) or record.get("v") != names.RECORD_VERSION:
        return Told()
    try:
        return Told(
            offset=max(0, int(record["offset"])),
            floor=int(record["floor"]),
            last={str(name): int(step) for name, step in record["last"].items()},
            head=str(record["head"]),
            end=str(record["end"]),
            place=dict(record["place"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        return Told()
