"""Whether a study fits the project that it is in: its stages, their configs' keys, and what its budget leaves out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bridgehead import names
from bridgehead.errors import UsageError
from bridgehead.queue_lines import ALLOW_KEY, RESUME_KEY, UNPRICED_KEY, nearest
from run_control import config_keys, project_file, yaml_file
from run_control.project import Project
from run_control.studies.study_file import STUDY, Config, Study
from run_control.studies.tracker import PLANNED, Tracker

_OF_A_LINE = {RESUME_KEY, ALLOW_KEY, UNPRICED_KEY}  # keys of a queue line that belong to no stage's config


def check(project: Project, folder: Path, study: Study) -> None:
    """Raises UsageError with line and nearest name for a stage, key or kind of value that does not fit the project.

    Where a stage's config in the project file names no key at all, its keys are its program's own affair.
    """
    known = project_file.load(project.root).stages
    _, lines = yaml_file.load(folder / STUDY)
    for keys, stage in _stages(study):
        if stage not in known:
            where = f"{STUDY}:{yaml_file.line_of(lines, keys)}: {keys[0]}"
            raise UsageError(f"{where}: no stage {stage!r} in this project", hint=nearest(stage, known))
    for keys, stage, key, values in _keys(study):
        where = f"{STUDY}:{yaml_file.line_of(lines, keys)}: {'.'.join(keys)}"
        allowed = config_keys.known(known[stage])
        if allowed and key not in allowed | _OF_A_LINE:
            raise UsageError(
                f"{where}: the config of stage {stage} has no key {key!r}",
                hint=f"{nearest(key, allowed)} Or name it in [stages.{stage}.config] of {names.PROJECT_FILE}",
            )
        wrong = [found for value in values if (found := config_keys.mistyped(known[stage].command, {key: value}))]
        if wrong:
            raise UsageError(f"{where}: {wrong[0][1]}", hint=config_keys.OF_THAT_KIND)


def beyond_budget(study: Study, tracker: Tracker) -> list[str]:
    """The arms that will not be queued, since the runs of those before them use the budget up."""
    used, left_out = tracker.spent["runs"], []
    for cell in tracker.cells:
        if cell.state != PLANNED:
            continue
        used += len(cell.runs)
        if used > study.budget.runs:
            left_out.append(cell.id)
    return left_out


def _stages(study: Study) -> list[tuple[list[str], str]]:
    """(keys that lead to it, stage) of each stage that the file names."""
    listed = [(["stages", str(place)], stage) for place, stage in enumerate(study.stages)]
    return [*((["before", stage], stage) for stage in study.before), *listed]


def _keys(study: Study) -> list[tuple[list[str], str, str, list[Any]]]:
    """(keys that lead to it, stage, key of its config, the values that it takes)."""
    tables: dict[tuple[str, ...], Config] = {("before",): study.before}
    tables.update({("arms", arm): config for arm, config in study.arms.items()})
    found = [
        ([*at, stage, key], stage, key, [value])
        for at, config in tables.items()
        for stage in config
        for key, value in config[stage].items()
    ]
    return [*found, *((["grid", name], *_split(name), values) for name, values in study.grid.items())]


def _split(name: str) -> tuple[str, str]:
    stage, _, key = name.partition(".")
    return stage, key
