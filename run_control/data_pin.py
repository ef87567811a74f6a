"""Which data a run is of, as far as this laptop can say; what lies on a VM is compared there, at the run's start."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bridgehead import data_folder, files, names
from bridgehead.errors import NotFoundError, UsageError
from bridgehead.queue_lines import nearest
from bridgehead.records import StageSpec
from run_control.project_file import Whole
from run_control.run_spec import Data
from run_control.spec_tables import DataTable, overlapping, told

_LABEL_SUBJECTS = "label_subjects"


def pin(root: Path, whole: Whole, stage: StageSpec, name: str) -> Data:
    """`name`: of its [data.NAME], or "". Raises UsageError: missing, another, or what trains is what evaluates."""
    config = stage.config
    if not name:
        _refuse_overlap(_shipped_training(stage.command, config), list(names.HELD_OUT_SUBJECTS), "the gate's subjects")
        return Data(why_unpinned=f"[stages.{stage.name}] names no data")
    if name not in whole.data:
        raise UsageError(f"no [data.{name}] in {names.PROJECT_FILE}", hint=nearest(name, whole.data))
    table = whole.data[name]
    train = _training(name, table, config)
    _refuse_overlap(train, table.evaluation, f"the evaluation set of [data.{name}]")
    found = _fingerprint(root, name, table)
    sets = {"train": sorted(map(str, train)), "evaluation": sorted(map(str, table.evaluation))}
    return Data(
        name=name,
        fingerprint=found,
        path=table.path,
        vm_path=table.vm_path,
        sets_sha256=hashlib.sha256(files.canonical_json(sets)).hexdigest() if any(sets.values()) else "",
        why_unpinned="" if found else f"[data.{name}] has neither a fingerprint nor a path",
    )


def _fingerprint(root: Path, name: str, table: DataTable) -> str:
    if not table.path:
        return table.fingerprint
    folder = root / table.path
    if not folder.is_dir():
        raise UsageError(f"the data of [data.{name}] is missing: no folder {table.path}", hint="bring it, or mend path")
    try:
        found = data_folder.fingerprint(folder)
    except NotFoundError:
        raise UsageError(f"the data of [data.{name}] is missing: {table.path} holds no file") from None
    except OSError as error:
        raise UsageError(f"the data of [data.{name}] can't be read: {error.strerror}") from None
    if table.fingerprint and table.fingerprint != found:
        raise UsageError(
            f"the data of [data.{name}] is another: {found[:16]}… and not {table.fingerprint[:16]}…",
            hint="give back what it was, or write the new fingerprint into the project file",
        )
    return found


def _training(name: str, table: DataTable, config: Mapping[str, Any]) -> list[Any]:
    if not table.train_key:
        return list(table.train)
    value = config.get(table.train_key)
    if value is None:
        return list(table.train)
    if not isinstance(value, list | tuple):
        raise UsageError(f"[data.{name}] train_key: the config's {table.train_key} is no list of ids or groups")
    return list(value)


def _shipped_training(command: str, config: Mapping[str, Any]) -> list[Any]:
    if command != f"{names.SHIPPED_COMMAND_PREFIX}{names.FINETUNE}":
        return []
    value = config.get(_LABEL_SUBJECTS, [])
    return list(value) if isinstance(value, list | tuple) else []


def _refuse_overlap(train: list[Any], evaluation: list[Any], whose: str) -> None:
    both = overlapping(train, evaluation)
    if both:
        raise UsageError(
            f"what it trains on is also what it is judged by: {told(both)} of {whose}", hint="take them out of training"
        )
