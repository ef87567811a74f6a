"""What a study's records say: each arm's metric with its interval, and each arm against the control, pair by pair.

All of it is computed from the results that the arms' last stages left (their cells), so it can be computed again.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from bridgehead import files, names
from bridgehead.errors import UsageError, VerificationError
from run_control.project import Project
from run_control.studies.study_file import Study
from run_control.studies.tracker import DONE, TrackedCell, Tracker

RESAMPLES = 4000
Parts = dict[str, dict[str, float]]  # group → part → mean


@dataclass(frozen=True)
class ArmFigures:
    """One arm over all points of the grid at which it ended."""

    arm: str
    runs: int
    value: float | None  # mean over groups
    interval: list[float | None]  # by groups and parts
    by_run: list[float | None]  # of each point, in the order of the grid: how much the seed matters
    verdicts: dict[str, int]  # of the gate, when the last stage is one
    hours: float


@dataclass(frozen=True)
class Against:
    """One arm against the control, at the points where both ended. Gains: positive is better."""

    arm: str
    control: str
    points: int
    gain: float | None
    interval: list[float | None]
    verdict: str  # pass: the gain lies above what the study asks for; fail: it does not; undecided
    why: list[str]


@dataclass(frozen=True)
class Figures:
    metric: str
    unit_of_draws: str
    arms: list[ArmFigures]
    against: list[Against]
    missing: list[str] = field(default_factory=list)  # arms' runs that have not ended well

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def compute(project: Project, study: Study, tracker: Tracker) -> Figures:
    """Raises VerificationError when arms were judged on different items, or their records lack the metric."""
    found = {cell.id: _read(project, cell, study.metric.name) for cell in tracker.arms if cell.state == DONE}
    evaluated = {record["evaluated"] for record in found.values()}
    if len(evaluated) > 1:
        raise VerificationError(
            "the arms were judged on different items: they can't be compared",
            hint="the grid and the arms must not change what the last stage evaluates",
        )
    arms = [
        _arm(study, name, [cell for cell in tracker.arms if cell.arm == name and cell.id in found], found)
        for name in study.arms
    ]
    against = [_against(study, name, tracker, found) for name in study.arms if name != study.control]
    missing = [f"{cell.id}: {cell.state}" for cell in tracker.arms if cell.state != DONE]
    return Figures(study.metric.name, "groups, then parts of each", arms, [item for item in against if item], missing)


def lacks(results: Any, metric: str) -> str:
    """Why an arm with these results can't be compared with another; "" when it can."""
    from stages import cells

    if not isinstance(results, dict):
        return f"it left no {names.RESULTS} here"
    try:
        made = results["cells"]["candidate"]
    except (KeyError, TypeError):
        cell = f'{{"group": "A", "part": "1", "values": {{"{metric}": 0.9}}}}'
        return (
            f"its {names.RESULTS} holds no cells; a gate writes them, and a script of yours may:"
            f' run.results({{"cells": {{"candidate": [{cell}, ...]}}}})'
        )
    try:
        cells.by_group(made, metric)
    except UsageError as error:
        return error.message
    return ""


def _read(project: Project, cell: TrackedCell, metric: str) -> dict[str, Any]:
    from stages import cells

    run_id = cell.runs[-1].run_id
    results = files.read_json(project.run(run_id) / names.RESULTS)
    why = lacks(results, metric)
    if why or not isinstance(results, dict):
        raise VerificationError(
            f"{cell.id} ({run_id}) can't be compared: {why}", hint="mend that stage, then run it again"
        )
    return {
        "parts": cells.by_group(results["cells"]["candidate"], metric),
        "evaluated": str(results.get("evaluated_sha256", "")),
        "verdict": str(results.get("verdict", "")),
    }


def _arm(study: Study, name: str, mine: list[TrackedCell], found: dict[str, dict[str, Any]]) -> ArmFigures:
    from stages import judging

    verdicts: dict[str, int] = {}
    for cell in mine:
        verdict = found[cell.id]["verdict"]
        verdicts[verdict] = verdicts.get(verdict, 0) + 1
    hours = round(sum(run.seconds for cell in mine for run in cell.runs) / 3600, 4)
    if not mine:
        return ArmFigures(name, 0, None, [None, None], [], verdicts, hours)
    means = _mean_of([found[cell.id]["parts"] for cell in mine])
    zero: Parts = {group: dict.fromkeys(parts, 0.0) for group, parts in means.items()}
    asked = judging.Criterion(study.metric.name)
    alone = judging.compare_parts(means, zero, asked, _how(study)).to_json()
    by_run = [_overall(found[cell.id]["parts"]) for cell in mine]
    return ArmFigures(name, len(mine), alone["candidate"], alone["interval"], by_run, verdicts, hours)


def _against(study: Study, name: str, tracker: Tracker, found: dict[str, dict[str, Any]]) -> Against | None:
    from stages import judging

    points = [cell for cell in tracker.arms if cell.arm == name and cell.id in found]
    pairs = [
        (found[mine.id]["parts"], found[other.id]["parts"])
        for mine in points
        for other in tracker.arms
        if other.arm == study.control and other.point == mine.point and other.id in found
    ]
    if not pairs:
        return None
    metric = study.metric
    asked = judging.Criterion(metric.name, judging.Direction(metric.direction), metric.min_effect, metric.margin)
    mine, theirs = _mean_of([pair[0] for pair in pairs]), _mean_of([pair[1] for pair in pairs])
    told = judging.compare_parts(mine, theirs, asked, _how(study)).to_json()
    return Against(
        name, study.control, len(pairs), told["effect"], told["interval"], told["verdict"], list(told["why"])
    )


def _how(study: Study) -> Any:
    from stages.judging import Bootstrap

    return Bootstrap(study.confidence, RESAMPLES, seed=0)


def _mean_of(several: list[Parts]) -> Parts:
    """Over the points of the grid. Raises VerificationError when they do not hold the same parts."""
    shapes = {tuple((group, *sorted(parts)) for group, parts in sorted(item.items())) for item in several}
    if len(shapes) != 1:
        raise VerificationError("the arms' records do not hold the same groups and parts")
    return {
        group: {part: sum(item[group][part] for item in several) / len(several) for part in parts}
        for group, parts in several[0].items()
    }


def _overall(parts: Parts) -> float | None:
    means = [sum(values.values()) / len(values) for values in parts.values()]
    value = sum(means) / len(means)
    return value if value == value and abs(value) != float("inf") else None
