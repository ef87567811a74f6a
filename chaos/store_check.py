"""Reads checkpoints of a durable store by its own means, so that a fault in the product's reader can't hide itself."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from bridgehead import names

_PREFIX = "slot-"


def readable_steps(run_folder: Path) -> set[int]:
    """The steps of all checkpoints of a run below <store>/<project>/runs/<run> of which every byte is right."""
    found = set()
    for slot in _slots(run_folder):
        commit = _commit(slot)
        if commit is not None and all(_is_right(slot, entry) for entry in commit["files"]):
            found.add(int(commit["step"]))
    return found


def newest_slot(run_folder: Path) -> tuple[Path, dict[str, Any]] | None:
    """The slot of the highest committed step, and its commit."""
    commits = [(slot, commit) for slot in _slots(run_folder) if (commit := _commit(slot)) is not None]
    return max(commits, key=lambda pair: int(pair[1]["step"]), default=None)


def in_the_making(run_folder: Path) -> bool:
    """Whether a slot holds files and no commit: an upload is under way, or was cut short."""
    for slot in _slots(run_folder):
        try:
            present = {entry.name for entry in slot.iterdir()}
        except OSError:
            continue
        if present and names.SLOT_COMMIT not in present:
            return True
    return False


def _slots(run_folder: Path) -> list[Path]:
    root = run_folder / names.CHECKPOINTS
    try:
        return sorted(entry for entry in root.iterdir() if entry.name.startswith(_PREFIX))
    except OSError:
        return []


def _commit(slot: Path) -> dict[str, Any] | None:
    try:
        commit = json.loads((slot / names.SLOT_COMMIT).read_bytes())
        int(commit["step"]), list(commit["files"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return dict(commit)


def _is_right(slot: Path, entry: dict[str, Any]) -> bool:
    try:
        data = (slot / entry["stored"]).read_bytes()
    except (OSError, KeyError):
        return False
    return bool(len(data) == entry["size"] and hashlib.sha256(data).hexdigest() == entry["sha256"])
