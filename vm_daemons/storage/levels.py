"""checkpoints.json of a run folder: how far its checkpoints have climbed. The uploader alone writes it.

    {"v", "attempt", "levels": {"local"|"mounted"|"confirmed": {step, epoch, at, size_bytes, level, saved_at}},
     "passed_over": […], "confirmed_by", "complete_attempt", "complete_level", "store": {"kind", "where"},
     "trouble", "failing", "settled"}

A level never says more than was seen. `at` is when the checkpoint reached it, `saved_at` when the stage made it, both
in seconds since 1970; `failing` says that the store takes nothing of this run just now; `settled` that nothing in here
will change any more.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bridgehead import checkpoints, files, names
from bridgehead.errors import VerificationError
from bridgehead.names import CheckpointLevel
from vm_daemons.storage.store_progress import Progress, local_folders
from vm_daemons.storage.store_slots import Slot


@dataclass
class Levels:
    """What is told of one run, and written when it changed."""

    run_dir: Path
    attempt: int
    confirmed_by: str = ""  # what can confirm here; empty: nothing can
    kind: str = "none"
    where: str = ""
    trouble: str = ""
    failing: bool = False
    settled: bool = False

    def __post_init__(self) -> None:
        self._told = read(self.run_dir)  # by a process before this one
        self._local: tuple[str, dict[str, Any]] = ("", {})

    def write(self, known: Progress | None) -> None:
        """Raises OSError."""
        told = self._compose(known)
        if told != self._told:
            files.write_json(self.run_dir / names.CHECKPOINT_LEVELS, told)
            self._told = told

    def _compose(self, known: Progress | None) -> dict[str, Any]:
        before = self._told.get("levels")
        levels: dict[str, Any] = dict(before) if isinstance(before, dict) else {}
        complete, complete_level = self.before("complete_attempt", 0), self.before("complete_level", "")
        if known is not None and known.slots:
            for level, slot in (
                (CheckpointLevel.MOUNTED, known.newest_slot),
                (CheckpointLevel.CONFIRMED, known.confirmed),
            ):
                levels.pop(str(level), None)
                if slot is not None:
                    levels[str(level)] = _of_slot(slot, level)
        if known is not None and known.complete_attempt:
            complete = known.complete_attempt
            complete_level = str(CheckpointLevel.CONFIRMED if known.outputs_confirmed else CheckpointLevel.MOUNTED)
        local = self.local()
        levels.pop(str(CheckpointLevel.LOCAL), None)
        if local:
            levels[str(CheckpointLevel.LOCAL)] = local
        return {
            "v": names.RECORD_VERSION,
            "attempt": self.attempt,
            "levels": levels,
            "passed_over": _passed_over(self.run_dir, self.attempt),
            "confirmed_by": self.confirmed_by,
            "complete_attempt": complete,
            "complete_level": complete_level,
            "store": {"kind": self.kind, "where": self.where},
            "trouble": self.trouble,
            "failing": self.failing,
            "settled": self.settled,
        }

    def before(self, key: str, default: Any = None) -> Any:
        """What was last told of this attempt, also by a process before this one."""
        return self._told.get(key, default) if self._told.get("attempt") == self.attempt else default

    def local(self) -> dict[str, Any]:
        """The newest on this VM's disk by its manifest; empty when there is none, or retention removed it just now."""
        for folder in local_folders(self.run_dir):
            if self._local[0] == folder.name:
                return self._local[1]
            try:
                manifest = checkpoints.read_manifest(folder / names.CHECKPOINT_MANIFEST)
            except VerificationError:
                continue
            made = float(manifest.get("created") or 0.0)
            told = {
                "step": int(manifest["step"]),
                "epoch": int(manifest.get("meta", {}).get("epoch") or 0),
                "at": made,
                "size_bytes": sum(int(entry["size"]) for entry in manifest["files"]),
                "level": str(CheckpointLevel.LOCAL),
                "saved_at": made,
            }
            self._local = (folder.name, told)
            return told
        return {}


def read(run_dir: Path) -> dict[str, Any]:
    """checkpoints.json, empty when there is none that can be read."""
    told = files.read_json(run_dir / names.CHECKPOINT_LEVELS)
    return told if isinstance(told, dict) and told.get("v") == names.RECORD_VERSION else {}


def _of_slot(slot: Slot, level: CheckpointLevel) -> dict[str, Any]:
    info = slot.info(level)
    at = slot.created if level is CheckpointLevel.MOUNTED else info.at
    return {
        "step": info.step,
        "epoch": info.epoch,
        "at": at,
        "size_bytes": info.size_bytes,
        "level": str(level),
        "saved_at": slot.saved_at,
    }


def _passed_over(run_dir: Path, attempt: int) -> list[dict[str, Any]]:
    report = files.read_json(run_dir / names.RESTORED)
    if not isinstance(report, dict) or report.get("attempt") != attempt:
        return []
    found = report.get("passed_over")
    return [item for item in found if isinstance(item, dict)] if isinstance(found, list) else []
