"""What happens on the VMs, seen from outside by their files: how far a run is, and when it saves, uploads, resumes."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bridgehead import files, names
from chaos import store_check
from chaos.world import Pid, World


@dataclass
class RunSeen:
    """One run on one VM."""

    vm: str
    folder: Path
    offset: int = 0
    step: int = 0
    total: int = 0
    saving: int = 0  # how many saves have begun
    in_save: bool = False
    starts: int = 0  # processes of the stage
    last_pid: int = 0
    resumed: int = 0  # how often it said that it goes on from a checkpoint
    progressed_at: float = 0.0  # monotonic, when a new highest step was seen


@dataclass
class Watch:
    """`look` reads what is new; it costs a few stat calls for each run."""

    world: World
    stage: str
    seen: dict[tuple[str, str], RunSeen] = field(default_factory=dict)
    _homes_at: float = 0.0
    _slots: dict[str, store_check.Content] = field(default_factory=dict)

    def look(self) -> None:
        if time.monotonic() - self._homes_at > 0.05:
            self._homes_at = time.monotonic()
            self._find()
        for run in self.seen.values():
            self._read(run)

    def runs(self) -> list[RunSeen]:
        """Of the watched stage, on VMs that have their disk."""
        return [run for run in self.seen.values() if run.vm not in self.world.wiped]

    def current(self) -> RunSeen | None:
        """The one that moved last."""
        return max(self.runs(), key=lambda run: (run.progressed_at, run.starts), default=None)

    @property
    def fraction(self) -> float:
        return max((run.step / run.total for run in self.seen.values() if run.total), default=0.0)

    @property
    def saves(self) -> int:
        return sum(run.saving for run in self.seen.values())

    @property
    def saving_now(self) -> bool:
        return any(run.in_save for run in self.runs())

    @property
    def starts(self) -> int:
        return sum(run.starts for run in self.seen.values())

    @property
    def resumes(self) -> int:
        return sum(run.resumed for run in self.seen.values())

    def uploading_now(self) -> bool:
        """Whether a slot is being filled, or was this moment: the time between file and commit is a few ms."""
        now = {run.folder.name: store_check.content(self.world.stored_run(run.folder.name)) for run in self.runs()}
        changed = now != self._slots
        self._slots = now
        return self.world.store.uploading() or changed or any(map(store_check.is_in_the_making, now.values()))

    # --- inside ------------------------------------------------------------------------------------

    def _find(self) -> None:
        for runs in self.world.project.vms.glob(f"*/content/bridgehead/{names.VM_RUNS}"):
            name = runs.parents[2].name
            self.world.share_pool(name)
            for folder in runs.glob(f"{self.stage}-*"):
                self.seen.setdefault((name, folder.name), RunSeen(name, folder))

    def _read(self, run: RunSeen) -> None:
        process = stage_process(run.folder)
        if process is not None and process.pid != run.last_pid:
            run.last_pid, run.starts = process.pid, run.starts + 1
        try:
            with (run.folder / names.PROGRESS).open("rb") as handle:
                handle.seek(run.offset)
                data = handle.read()
        except OSError:
            return
        whole = data.rfind(b"\n") + 1
        run.offset += whole
        for line in data[:whole].splitlines():
            try:
                self._apply(run, json.loads(line))
            except (ValueError, AttributeError):
                continue

    def _apply(self, run: RunSeen, event: dict[str, Any]) -> None:
        kind = event.get("event")
        if kind == "progress":
            run.in_save = False
            run.total = int(event.get("total_steps") or run.total)
            run.step, run.progressed_at = int(event["step"]), time.monotonic()
        elif kind == "saving":
            run.saving, run.in_save = run.saving + 1, True
        elif kind == "checkpoint":
            run.in_save = False
        elif kind == "resumed":
            run.resumed += 1


def stage_process(run_dir: Path) -> Pid | None:
    """The stage's own process as its runner wrote it down."""
    return _process(run_dir, "stage")


def runner_process(run_dir: Path) -> Pid | None:
    return _process(run_dir, "runner")


def daemon_process(world: World, vm: str, daemon: str) -> Pid | None:
    """By its pid file."""
    record = _read(world.home(vm) / names.VM_STATE / f"{daemon}.pid.json")
    return Pid(int(record["pid"]), int(record["start_ticks"])) if record.get("pid") else None


def _process(run_dir: Path, which: str) -> Pid | None:
    record = _read(run_dir / names.PROCESS)
    pid = int(record.get(f"{which}_pid") or 0)
    return Pid(pid, int(record[f"{which}_start"])) if pid else None


def _read(path: Path) -> dict[str, Any]:
    try:
        found = files.read_json(path)
    except OSError:
        return {}
    return found if isinstance(found, dict) else {}
