"""tracker.yaml: every arm's runs as they move, and what was spent; written around each step, so anybody can go on.

It notes the hash of the study that it was planned from, and refuses to serve another one.
"""

from __future__ import annotations

import hashlib
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bridgehead import files
from bridgehead.errors import NotFoundError, UsageError
from run_control import yaml_file
from run_control.studies import study_file
from run_control.studies.study_file import ANALYSIS, DECISION, STUDY, TRACKER, Cell, Config, Study

PLANNED, QUEUED, RUNNING, DONE, FAILED = "planned", "queued", "running", "done", "failed"
ENDED = (DONE, FAILED)
BEFORE = "before"  # the id of what runs once for all arms
_HEAD = "# Written by bridgehead study; study.yaml is the file to edit.\n"


@dataclass
class TrackedRun:
    """One line of the queue; `after_seq` is noted before it is queued, so that it is found again and not repeated."""

    stage: str
    line: str
    after_seq: int = -1  # the queue's newest number when it was queued; -1: not yet
    run_id: str = ""
    state: str = PLANNED
    seconds: float = 0.0
    cost: str = ""  # such as "0.31 CU"; "" while no price is known


@dataclass
class TrackedCell:
    """One arm at one point of the grid."""

    id: str
    arm: str
    point: dict[str, Any]
    config_sha256: str
    state: str = PLANNED
    why: str = ""
    runs: list[TrackedRun] = field(default_factory=list)
    outcome: dict[str, Any] = field(default_factory=dict)

    @property
    def ended(self) -> bool:
        return self.state in ENDED


@dataclass
class Tracker:
    """The whole file."""

    study: str
    study_sha256: str
    cells: list[TrackedCell]
    state: str = PLANNED
    why: str = ""
    dropped: list[TrackedCell] = field(default_factory=list)  # of an earlier plan, with what had been run
    planned: str = ""
    v: int = study_file.VERSION

    @property
    def spent(self) -> dict[str, float]:
        runs = [run for cell in [*self.cells, *self.dropped] for run in cell.runs]
        return {
            "runs": sum(run.after_seq >= 0 for run in runs),
            "hours": round(sum(run.seconds for run in runs) / 3600, 4),
        }

    @property
    def arms(self) -> list[TrackedCell]:
        return [cell for cell in self.cells if cell.id != BEFORE]

    @property
    def sha256(self) -> str:
        """Of what was run and what came of it."""
        return hashlib.sha256(files.canonical_json(self.to_json())).hexdigest()

    def to_json(self) -> dict[str, Any]:
        return {
            "v": self.v,
            "study": self.study,
            "study_sha256": self.study_sha256,
            "planned": self.planned,
            "state": self.state,
            "why": self.why,
            "spent": self.spent,
            "cells": [asdict(cell) for cell in self.cells],
            "dropped": [asdict(cell) for cell in self.dropped],
        }


def plan(folder: Path, study: Study, *, again: bool = False) -> Tracker:
    """Make the tracker. With `again` an edited study keeps the runs of arms whose config is what it was.

    Raises UsageError when there is one already, and what came of it would be given up.
    """
    fresh = [_tracked(cell.id, cell.arm, cell.point, cell.config, cell.sha256) for cell in study_file.cells(study)]
    if study.before:
        sha256 = Cell(BEFORE, "", {}, study.before).sha256
        fresh.insert(0, _tracked(BEFORE, "", {}, study.before, sha256))
    made = Tracker(folder.name, study.sha256, fresh, planned=time.strftime("%Y-%m-%d %H:%M:%S"))
    if (folder / TRACKER).exists():
        _take_over(folder, made, again=again)
    save(folder, made)
    return made


def load(folder: Path, study: Study) -> Tracker:
    """Raises NotFoundError before `plan`, UsageError when the study was edited since, or the file can't be read."""
    found = read(folder)
    if found.study_sha256 != study.sha256:
        raise UsageError(
            f"{STUDY} is not the one that {TRACKER} was planned from: it was edited since",
            hint=f"bridgehead study plan {folder.name} --again keeps the runs of arms that did not change",
        )
    return found


def read(folder: Path) -> Tracker:
    """The file as it is, whichever study it is of."""
    try:
        data, _ = yaml_file.load(folder / TRACKER)
    except NotFoundError:
        raise NotFoundError(
            f"study {folder.name} has no {TRACKER} yet", hint=f"bridgehead study plan {folder.name}"
        ) from None
    except UsageError as error:
        raise UsageError(f"{error.message}: it was cut or edited", hint=_lost(folder)) from None
    if not isinstance(data, dict):
        raise UsageError(f"{TRACKER} can't be read: it is empty or was cut", hint=_lost(folder))
    try:
        if data["v"] > study_file.VERSION:
            raise UsageError(
                f"{TRACKER} is of version {data['v']}; this reads {study_file.VERSION}", hint="update Bridgehead"
            )
        cells, dropped = ([_cell(item) for item in data[key]] for key in ("cells", "dropped"))
        return Tracker(
            data["study"], data["study_sha256"], cells, data["state"], data["why"], dropped, str(data["planned"])
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{TRACKER} can't be read, it was cut or edited: {error}", hint=_lost(folder)) from None


def _lost(folder: Path) -> str:
    """Without it nobody knows which runs were an arm's, so that `plan --again` can't keep them either."""
    return f"restore it (git checkout), or rename it and begin anew: bridgehead study plan {folder.name}"


def save(folder: Path, tracker: Tracker) -> None:
    yaml_file.save(folder / TRACKER, tracker.to_json(), head=_HEAD)


def _tracked(id: str, arm: str, point: dict[str, Any], config: Config, sha256: str) -> TrackedCell:
    lines = study_file.lines_of(config)
    runs = [TrackedRun(stage, line) for stage, line in zip(config, lines, strict=True)]
    return TrackedCell(id, arm, point, sha256, runs=runs)


def _take_over(folder: Path, made: Tracker, *, again: bool) -> None:
    before = read(folder)
    if before.study_sha256 == made.study_sha256 and not again:
        raise UsageError(f"{TRACKER} is planned already", hint=f"bridgehead study start {folder.name}")
    if not again:
        raise UsageError(
            f"{STUDY} was edited since it was planned", hint=f"bridgehead study plan {folder.name} --again"
        )
    old = {cell.config_sha256: cell for cell in [*before.dropped, *before.cells]}
    for place, cell in enumerate(made.cells):
        same = old.get(cell.config_sha256)
        if same is not None and same.runs[0].after_seq >= 0 and same.state != FAILED:
            made.cells[place] = TrackedCell(
                cell.id, cell.arm, cell.point, cell.config_sha256, same.state, same.why, same.runs, same.outcome
            )
    kept = {cell.config_sha256 for cell in made.cells if cell.runs[0].after_seq >= 0}
    made.dropped = [cell for sha256, cell in old.items() if sha256 not in kept and cell.runs[0].after_seq >= 0]
    for name in (ANALYSIS, DECISION):
        if (folder / name).exists() and name == DECISION:
            (folder / name).rename(folder / f"{name}.before")


def _cell(data: dict[str, Any]) -> TrackedCell:
    return TrackedCell(**{**data, "runs": [TrackedRun(**item) for item in data["runs"]]})
