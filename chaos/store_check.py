"""Reads checkpoints of a durable store by its own means, so that a fault in the product's reader can't hide itself."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from bridgehead import names

_PREFIX = "slot-"
Content = dict[str, list[str]]  # slot -> names of what lies in it


class StoredRun(Protocol):
    """What the store really holds of one run, whatever a mount of it shows. Paths are relative to the run."""

    def names(self, folder: str) -> list[str]:
        """Sorted names in a folder, none when there is no such folder."""
        ...

    def versions(self, path: str) -> list[bytes]:
        """What lies under this name: one, none, or several on a drive that allows equal names."""
        ...

    def written_at(self, path: str) -> int | None:
        """When it was last written, where that order means something; None elsewhere."""
        ...

    def change(self, path: str, alter: Callable[[bytes], bytes]) -> None:
        """Damage it in place. Raises OSError when it is not there."""
        ...


@dataclass(frozen=True)
class FolderRun:
    """A StoredRun that is a folder."""

    folder: Path

    def names(self, folder: str) -> list[str]:
        try:
            return sorted(entry.name for entry in (self.folder / folder).iterdir())
        except OSError:
            return []

    def versions(self, path: str) -> list[bytes]:
        try:
            return [(self.folder / path).read_bytes()]
        except OSError:
            return []

    def written_at(self, path: str) -> int | None:
        try:
            return (self.folder / path).stat().st_mtime_ns
        except OSError:
            return None

    def change(self, path: str, alter: Callable[[bytes], bytes]) -> None:
        data = alter((self.folder / path).read_bytes())
        with (self.folder / path).open("r+b") as handle:
            handle.write(data)


def readable_steps(run: StoredRun) -> set[int]:
    """The steps of all its checkpoints of which every byte is right."""
    found = set()
    for slot in _slots(run):
        for commit in _commits(run, slot):
            if all(_is_right(run, slot, entry) for entry in commit["files"]):
                found.add(int(commit["step"]))
    return found


def newest_slot(run: StoredRun) -> tuple[str, dict[str, Any]] | None:
    """The slot of the highest committed step, and its commit."""
    commits = [(slot, commit) for slot in _slots(run) for commit in _commits(run, slot)]
    return max(commits, key=lambda pair: int(pair[1]["step"]), default=None)


def early_commits(run: StoredRun) -> list[str]:
    """Slots whose commit was written before something that it vouches for: dead in between, it would have lied."""
    found = []
    for slot in _slots(run):
        path = f"{slot}/{names.SLOT_COMMIT}"
        at = run.written_at(path)
        before = _commits(run, slot)
        stored = [run.written_at(f"{slot}/{entry.get('stored')}") for commit in before for entry in commit["files"]]
        if at is None or run.written_at(path) != at:
            continue  # it was being replaced while we looked
        if any(written is None or written > at for written in stored):
            found.append(slot)
    return found


def content(run: StoredRun) -> Content:
    """The names in each slot."""
    return {slot: run.names(slot) for slot in _slots(run)}


def is_in_the_making(slots: Content) -> bool:
    """Whether a slot holds files and no commit: an upload is under way, or was cut short."""
    return any(present and names.SLOT_COMMIT not in present for present in slots.values())


def _slots(run: StoredRun) -> list[str]:
    return [f"{names.CHECKPOINTS}/{name}" for name in run.names(names.CHECKPOINTS) if name.startswith(_PREFIX)]


def _commits(run: StoredRun, slot: str) -> list[dict[str, Any]]:
    found = []
    for data in run.versions(f"{slot}/{names.SLOT_COMMIT}"):
        try:
            commit = json.loads(data)
            int(commit["step"]), list(commit["files"])
        except (ValueError, KeyError, TypeError):
            continue
        found.append(dict(commit))
    return found


def _is_right(run: StoredRun, slot: str, entry: dict[str, Any]) -> bool:
    for data in run.versions(f"{slot}/{entry.get('stored')}"):
        if len(data) == entry.get("size") and hashlib.sha256(data).hexdigest() == entry.get("sha256"):
            return True
    return False
