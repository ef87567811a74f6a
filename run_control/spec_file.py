"""A spec file: one run, or one arm of a study, written by a person in TOML over a stage of the project file.

version = 1
stage = "finetune"
tags = ["lp-ft"]
parents = ["pretrain-0001-abcdef", "base.toml"]    # runs, and other spec files

[config]
tune_epochs = 4

[resources]
gpu = "T4"
max_total = "3 CU"
"""

from __future__ import annotations

import dataclasses
import tomllib
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from bridge.project import PinRequest
from bridgehead.errors import UsageError
from bridgehead.queue_lines import Verb, nearest
from run_control import launching, plan, project_file, run_spec, toml_lines
from run_control.plan import Plan
from run_control.project import Project
from run_control.project_file import Whole
from run_control.run_spec import SPEC_VERSION
from run_control.spec_tables import Caps, StageLimits

SUFFIX = ".toml"
_SIZE_MAX_BYTES = 2**20


class _Resources(Caps):
    unpriced: str = ""


class SpecFile(BaseModel):
    """What the file may say."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    version: int = SPEC_VERSION
    stage: str
    config: dict[str, Any] = Field(default_factory=dict)
    resources: _Resources = Field(default_factory=_Resources)
    data: str = ""
    parents: list[str] = Field(default_factory=list)
    resume: str = ""
    tags: list[Annotated[str, AfterValidator(str)]] = Field(default_factory=list)


def read(path: Path) -> SpecFile:
    """Raises UsageError with file, line, key and the nearest name."""
    try:
        if path.stat().st_size > _SIZE_MAX_BYTES:
            raise UsageError(f"{path.name} is over {_SIZE_MAX_BYTES} bytes")
        text = path.read_text(encoding="utf-8-sig")
        data = tomllib.loads(text)
    except FileNotFoundError:
        raise UsageError(f"no spec file {path}", hint="--spec FILE.toml") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path.name} is not UTF-8", hint="save it as UTF-8") from None
    except OSError as error:
        raise UsageError(f"{path.name} can't be read: {error.strerror}") from None
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path.name}:{toml_lines.syntax_line(error)}: not TOML: {error}") from None
    _check_version(path.name, text, data.get("version", SPEC_VERSION))
    try:
        return SpecFile.model_validate(data)
    except ValidationError as error:
        raise _mistake(path.name, text, error) from None


def line_of_file(project: Project, path: Path, *, keep: bool) -> tuple[str, Plan]:
    """(queue line, plan) of a spec file; with `keep` its spec is stored for the line. Raises UsageError, OSError."""
    whole = project_file.load_whole(project.root)
    made = plan_of(project, whole, path)
    if made.refusal is not None or made.spec is None:
        return f"{Verb.RUN}:{made.stage.name}", made
    return launching.line_of_spec(project, made, keep=keep), made


def plan_of(project: Project, whole: Whole, path: Path) -> Plan:
    """The plan of the run that the file describes. Raises UsageError."""
    run_spec.check_lineage(str(path.resolve()), _spec_file_parents)
    return _plan_of(project, whole, path, {})


def _plan_of(project: Project, whole: Whole, path: Path, known: dict[Path, Plan]) -> Plan:
    if path in known:
        return known[path]
    found = read(path)
    if found.stage not in whole.view.stages:
        line = toml_lines.line_of(path.read_text(encoding="utf-8-sig"), ["stage"])
        raise UsageError(
            f"{path.name}:{line}: stage: no stage {found.stage!r}", hint=nearest(found.stage, whole.view.stages)
        )
    parents = [_parent(project, whole, path, parent, known) for parent in found.parents]
    stage = launching.resolved(whole.view.stages[found.stage], dict(found.config))
    stage = dataclasses.replace(stage, resume_from=found.resume)
    inputs = launching.newest_inputs(project, stage)
    request = PinRequest(stage, inputs, unpriced=found.resources.unpriced)
    made = plan.make(project.root, _limited(whole, found, path), request)
    if made.spec is not None:
        spec = made.spec.with_more(parents=tuple(sorted({*made.spec.parents, *parents})))
        made = dataclasses.replace(made, spec=spec)
    known[path] = made
    return made


def _limited(whole: Whole, found: SpecFile, path: Path) -> Whole:
    """The project with the stage's limits as the file has them."""
    if found.data and found.data not in whole.data:
        raise UsageError(
            f"{path.name}: data: no [data.{found.data}] in the project", hint=nearest(found.data, whole.data)
        )
    given = {name: value for name in Caps.model_fields if (value := getattr(found.resources, name)) is not None}
    more: dict[str, Any] = {"data": found.data} if found.data else {}
    limits = whole.limits[found.stage]
    tags = sorted({*limits.tags, *found.tags})
    changed = StageLimits(**{**limits.model_dump(), **given, **more, "tags": tags})
    return dataclasses.replace(whole, limits={**whole.limits, found.stage: changed})


def _parent(project: Project, whole: Whole, path: Path, parent: str, known: dict[Path, Plan]) -> str:
    """A run as it is; of another spec file, its spec's id."""
    if not parent.endswith(SUFFIX):
        return parent
    made = _plan_of(project, whole, (path.parent / parent).resolve(), known)
    if made.spec is None:
        raise made.refusal or UsageError(f"{parent} has no spec")
    return f"spec:{made.spec.id[:16]}"


def _spec_file_parents(name: str) -> list[str]:
    path = Path(name)
    return [str((path.parent / parent).resolve()) for parent in read(path).parents if parent.endswith(SUFFIX)]


def _check_version(file_name: str, text: str, version: object) -> None:
    if version == SPEC_VERSION and not isinstance(version, bool):
        return
    newer, line = isinstance(version, int) and version > SPEC_VERSION, toml_lines.line_of(text, ["version"])
    raise UsageError(
        f"{file_name}:{line}: version: {version!r}; this Bridgehead knows {SPEC_VERSION}",
        hint="it was written for a newer Bridgehead: install that one" if newer else f"version = {SPEC_VERSION}",
    )


def _mistake(file_name: str, text: str, error: ValidationError) -> UsageError:
    found = []
    for item in error.errors(include_url=False, include_input=False):
        keys = [str(part) for part in item["loc"] if not str(part).startswith("function-")]
        found.append((toml_lines.line_of(text, keys), keys, item))
    line, keys, item = min(found, key=lambda entry: (entry[2]["type"] == "missing", entry[0]))
    where = f"{file_name}:{line}: {'.'.join(keys)}"
    if item["type"] == "extra_forbidden":
        model = _Resources if keys[0] == "resources" and len(keys) > 1 else SpecFile
        return UsageError(f"{where}: unknown key", hint=nearest(keys[-1], model.model_fields))
    message = str(item["msg"]).removeprefix("Value error, ").replace("Input should be", "should be")
    return UsageError(f"{where}: {'missing' if item['type'] == 'missing' else message}")
