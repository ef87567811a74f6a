"""From a VM's death to the next training step, against a bare script that loads the same checkpoint."""

from __future__ import annotations

import functools
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.project import BUILD, BenchProject, quantile, until
from bridgehead import checkpoints, names, torch_state
from bridgehead.names import CheckpointLevel

_DEATHS = 3
_STEPS_BEFORE = 60  # of a process before it is killed, so that its start is over
_BOOT_S = 120.0
_BARE = """\
import sys, time
state = torch.load(sys.argv[1], map_location="cpu", weights_only=True)
model.load_state_dict(state["parts"]["model"])
optimizer.load_state_dict(state["parts"]["optimizer"])
print(time.time())
"""


@dataclass(frozen=True)
class _Death:
    """Times in seconds since 1970."""

    last_step: int
    last_at: float
    asked_at: float  # for the next VM
    first_step: int
    first_at: float

    @property
    def seconds(self) -> float:
        return self.first_at - self.last_at


def after_a_vms_death(project: BenchProject) -> Iterator[dict[str, Any]]:
    """The VM and its disk are killed and `up` starts the next one at once, which tells the ledger of the death.

    Counted from the last step before, so the command that wipes the disk and the one that starts the VM are in it.
    """
    run_id = str(project.command("run", "steps")["run_id"])
    marks = until(functools.partial(_newest, project.marks, set()), _BOOT_S, "the first step")
    copy = project.root / "bare.pt"
    deaths = []
    for _ in range(_DEATHS):
        _until_it_may_die(project, run_id, marks)
        death, marks = _die(project, marks)
        deaths.append(death)
    _keep(project, run_id, copy)
    project.command("stop", run_id)
    until(lambda: _run(project, run_id)["state"] in names.ENDED, 60, "the run's end")
    taken, bare = [death.seconds for death in deaths], [_bare(project.root, copy) for _ in range(_DEATHS)]
    median, bare_median = quantile(taken, 0.5), quantile(bare, 0.5)
    yield {
        "bench": "a VM's known death (no wait of lost_after_s) -> first step on the next local VM",
        "deaths": len(deaths),
        "median_s": round(median, 3),
        "worst_s": round(max(taken), 3),
        "of_it_before_up_was_asked_s": round(quantile([death.asked_at - death.last_at for death in deaths], 0.5), 3),
        "bare_import_and_load_s": round(bare_median, 3),
        "difference_s": round(median - bare_median, 3),
        "ratio": round(median / bare_median, 2),
        "checkpoint_mib": round(copy.stat().st_size / 2**20, 1),
        "steps_done_again": [death.last_step + 1 - death.first_step for death in deaths],
        "holds": all(1 < death.first_step <= death.last_step + 1 for death in deaths),
    }


def _until_it_may_die(project: BenchProject, run_id: str, marks: Path) -> None:
    """This process has trained for a while and the store holds a checkpoint of it."""
    until(lambda: len(_lines(marks)) >= _STEPS_BEFORE, 60, "steps")
    first = int(_lines(marks)[0][0])

    def stored() -> bool:
        found = _run(project, run_id)["levels"].get(CheckpointLevel.MOUNTED)  # of what is in the store the newest
        return found is not None and int(found["step"]) > first

    until(stored, 60, "a checkpoint in the store")


def _die(project: BenchProject, marks: Path) -> tuple[_Death, Path]:
    before = set(project.marks.iterdir())
    project.command("vm", "kill")
    last_step, last_at = _lines(marks)[-1]
    asked_at = time.time()
    project.command("up", "--runtime", "local", "--tunnel", "none")
    find: Callable[[], Path | None] = functools.partial(_newest, project.marks, before)
    marks = until(find, _BOOT_S, "a step on the next VM")
    first_step, first_at = _lines(marks)[0]
    return _Death(int(last_step), float(last_at), asked_at, int(first_step), float(first_at)), marks


def _keep(project: BenchProject, run_id: str, target: Path) -> None:
    """The newest checkpoint's file, for the bare script: the VM's own goes with the VM."""
    newest, _ = checkpoints.newest(project.vm_home() / names.VM_RUNS / run_id / names.CHECKPOINTS)
    assert newest is not None
    shutil.copyfile(newest.path(torch_state.STATE_FILE), target)


def _run(project: BenchProject, run_id: str) -> dict[str, Any]:
    run: dict[str, Any] = project.command("status", run_id)["run"]
    return run


def _newest(folder: Path, before: set[Path]) -> Path | None:
    """The marks of a process that has taken a step and was not there before."""
    return next((path for path in folder.iterdir() if path not in before and _lines(path)), None)


def _lines(marks: Path) -> list[list[str]]:
    """Step and time of each whole line."""
    return [line.split() for line in marks.read_text().split("\n")[:-1]]


def _bare(root: Path, checkpoint: Path) -> float:
    """From the start of Python to the loaded state, in seconds."""
    before = time.time()
    argv = [sys.executable, "-c", BUILD + _BARE, str(checkpoint)]
    result = subprocess.run(argv, cwd=root, capture_output=True, text=True, check=True, timeout=120)
    return float(result.stdout) - before
