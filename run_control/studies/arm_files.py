"""Arms that are spec files: `lp-ft: lp-ft.toml`, or a list with one for each stage, beside study.yaml.

A study takes from a spec file what tells arms apart: its config, the run to begin at, and why it may have no price. It
becomes part of what the study says, so that a spec file which changes is an edited study. What its runs are of and may
cost belongs to the stage, since arms that differ there can't be compared; tags are the file's own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bridgehead import names
from bridgehead.errors import UsageError
from bridgehead.queue_lines import RESUME_KEY, UNPRICED_KEY
from run_control import launching, spec_file, spec_text
from run_control.spec_tables import Caps

_EXAMPLE = "arms: {plain: plain.toml, lp-ft: lp-ft.toml}"


def expanded(folder: Path, arm: object) -> object:
    """stage → config of an arm that names spec files; any other arm as it is. Raises UsageError that names the file."""
    files = [arm] if isinstance(arm, str) else arm
    if not isinstance(files, list) or not files or not all(isinstance(name, str) for name in files):
        return arm
    found: dict[str, Any] = {}
    for name in files:
        stage, config = _stage_of(folder, name)
        if stage in found:
            raise UsageError(f"{name}: the arm has two spec files of stage {stage}", hint="one for each stage")
        found[stage] = config
    return found


def _stage_of(folder: Path, name: str) -> tuple[str, dict[str, Any]]:
    if not spec_text.is_one(name):
        hint = f"{_EXAMPLE}, or a config for each of its stages"
        raise UsageError(f"{name[:60]!r} is no spec file's name, which ends in .toml, .yaml or .yml", hint=hint)
    spec, text = spec_file.parsed(folder / name)
    caps = [["resources", key] for key in Caps.model_fields if getattr(spec.resources, key) is not None]
    others = [[key] for key in ("data", "parents") if getattr(spec, key)]
    for keys in [*caps, *others]:
        raise UsageError(
            f"{text.where(keys)}: all arms of a study have it alike",
            hint=f"take it out; {_where_else(spec.stage, keys[-1])}",
        )
    config = dict(spec.config)
    if spec.resume:
        config[RESUME_KEY] = spec.resume
    if spec.resources.unpriced:
        config[UNPRICED_KEY] = launching.unpriced_word(spec.resources.unpriced).partition("=")[2]
    return spec.stage, config


def _where_else(stage: str, key: str) -> str:
    if key == "parents":
        return "a stage comes after those that the project file names"
    return f"set it in [stages.{stage}] of {names.PROJECT_FILE}"
