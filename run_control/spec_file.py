"""A spec file: one run, written by a person over a stage of the project file.

In TOML, as here, or with the same keys in YAML (arms/one.yaml); one content has one id in both.

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
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from bridge.project import PinRequest
from bridgehead.errors import NotFoundError, UsageError
from bridgehead.queue_lines import Verb, nearest
from run_control import launching, plan, project_file, run_spec, spec_text
from run_control.plan import Plan
from run_control.project import Project
from run_control.project_file import Whole
from run_control.run_spec import SPEC_VERSION
from run_control.spec_tables import Caps, StageLimits, Tag, places, plain_config
from run_control.spec_text import SpecText
from run_control.views import ledger_of

_OTHER_SUFFIXES = (".json",)  # of files that people take for spec files
_EXAMPLES = {
    "version": f"version = {SPEC_VERSION}",
    "stage": 'stage = "NAME", a stage of the project file',
    "config": "[config] with its keys below, such as epochs = 4",
    "resources": '[resources] with its keys below, such as max_total = "3 CU"',
    "gpu": 'gpu = "T4"',
    "max_price_per_hour": 'max_price_per_hour = "1.2 CU"',
    "max_hours": "max_hours = 1.5",
    "max_total": 'max_total = "3 CU"',
    "unpriced": 'unpriced = "the lab pays"',
    "data": 'data = "NAME", of [data.NAME] in the project file',
    "parents": 'parents = ["RUN", "base.toml"]',
    "resume": 'resume = "RUN"',
    "tags": 'tags = ["lp-ft", "t4"]',
}


class _Resources(Caps):
    unpriced: str = ""


class SpecFile(BaseModel):
    """What the file may say."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    version: int = SPEC_VERSION
    stage: str
    config: Annotated[dict[str, Any], AfterValidator(plain_config)] = Field(default_factory=dict)
    resources: _Resources = Field(default_factory=_Resources)
    data: str = ""
    parents: list[str] = Field(default_factory=list)
    resume: str = ""
    tags: list[Tag] = Field(default_factory=list)


def is_meant(word: str) -> bool:
    """Whether the word is a file's and no stage's name, which has neither a slash nor an ending."""
    return spec_text.is_one(word) or word.lower().endswith(_OTHER_SUFFIXES) or "/" in word or "\\" in word


def read(path: Path) -> SpecFile:
    """Raises UsageError with file, line, key and the nearest name."""
    return parsed(path)[0]


def parsed(path: Path) -> tuple[SpecFile, SpecText]:
    """The same, and the text with its lines."""
    text = spec_text.read(path, example=_EXAMPLES["stage"])
    _check_version(text)
    try:
        return SpecFile.model_validate(text.data), text
    except ValidationError as error:
        raise _mistake(text, error) from None


def line_of_file(project: Project, path: Path, *, keep: bool, unpriced: str = "", vm: str = "") -> tuple[str, Plan]:
    """(queue line, plan) of a spec file; with `keep` its spec is stored for the line. Raises UsageError, OSError.

    `unpriced`: why it may start without a known price, in place of what the file says. `vm`: the one to run on.
    """
    whole = project_file.load_whole(project.root)
    made = plan_of(project, whole, path, unpriced=unpriced)
    if made.refusal is not None or made.spec is None:
        return f"{Verb.RUN}:{made.stage.name}", made
    return launching.line_of_spec(project, made, keep=keep, vm=vm), made


def plan_of(project: Project, whole: Whole, path: Path, *, unpriced: str = "") -> Plan:
    """The plan of the run that the file describes. Raises UsageError."""
    run_spec.check_lineage(str(path.resolve()), _spec_file_parents)
    return _plan_of(project, whole, path, {}, unpriced)


def _plan_of(project: Project, whole: Whole, path: Path, known: dict[Path, Plan], unpriced: str = "") -> Plan:
    if path in known:
        return known[path]
    found, text = parsed(path)
    if found.stage not in whole.view.stages:
        raise UsageError(
            f"{text.where(['stage'])}: no stage {found.stage!r}", hint=nearest(found.stage, whole.view.stages)
        )
    if found.resume:
        _known_run(project, text, "resume", found.resume)
    parents = [
        _parent(project, whole, (path.parent / parent).resolve(), known)
        if spec_text.is_one(parent)
        else _known_run(project, text, "parents", parent)
        for parent in found.parents
    ]
    stage = launching.resolved(whole.view.stages[found.stage], dict(found.config))
    stage = dataclasses.replace(stage, resume_from=found.resume)
    inputs = launching.newest_inputs(project, stage)
    request = PinRequest(stage, inputs, unpriced=unpriced or found.resources.unpriced)
    made = plan.make(project.root, _limited(whole, found, text), request)
    if made.spec is not None:
        spec = made.spec.with_more(parents=tuple(sorted({*made.spec.parents, *parents})))
        made = dataclasses.replace(made, spec=spec)
    known[path] = made
    return made


def _limited(whole: Whole, found: SpecFile, text: SpecText) -> Whole:
    """The project with the stage's limits as the file has them."""
    if found.data and found.data not in whole.data:
        raise UsageError(
            f"{text.where(['data'])}: no [data.{found.data}] in the project", hint=nearest(found.data, whole.data)
        )
    given = {name: value for name in Caps.model_fields if (value := getattr(found.resources, name)) is not None}
    more: dict[str, Any] = {"data": found.data} if found.data else {}
    limits = whole.limits[found.stage]
    tags = sorted({*limits.tags, *found.tags})
    changed = StageLimits(**{**limits.model_dump(), **given, **more, "tags": tags})
    return dataclasses.replace(whole, limits={**whole.limits, found.stage: changed})


def _parent(project: Project, whole: Whole, path: Path, known: dict[Path, Plan]) -> str:
    """What stands for another spec file among the parents: its spec's id."""
    made = _plan_of(project, whole, path, known)
    if made.spec is None:
        raise made.refusal or UsageError(f"{path.name} has no spec")
    return f"spec:{made.spec.id[:16]}"


def _known_run(project: Project, text: SpecText, key: str, run: str) -> str:
    """The id of the run that is called so. Raises UsageError with the nearest one."""
    try:
        if not project.ledger.is_file():
            raise NotFoundError(f"no run {run!r}", hint="this project has had no run yet")
        with ledger_of(project) as ledger:
            return ledger.find_run(run).run_id
    except (NotFoundError, UsageError) as error:
        raise UsageError(f"{text.where([key])}: {error.message}", hint=error.hint) from None


def _spec_file_parents(name: str) -> list[str]:
    path = Path(name)
    return [str((path.parent / parent).resolve()) for parent in read(path).parents if spec_text.is_one(parent)]


def _check_version(text: SpecText) -> None:
    version = text.data.get("version", SPEC_VERSION)
    if version == SPEC_VERSION and not isinstance(version, bool):
        return
    newer = isinstance(version, int) and version > SPEC_VERSION
    hint = "it was written for a newer Bridgehead: install that one" if newer else _EXAMPLES["version"]
    raise UsageError(
        f"{text.where(['version'])}: {version!r}; this Bridgehead knows {SPEC_VERSION}", hint=text.as_written(hint)
    )


def _mistake(text: SpecText, error: ValidationError) -> UsageError:
    found = []
    for item in error.errors(include_url=False, include_input=False):
        keys = places(dict(item))
        found.append((text.line_of(keys), keys, item))
    _, keys, item = min(found, key=lambda entry: (entry[2]["type"] == "missing", entry[0]))
    where = text.where(keys)
    if item["type"] == "extra_forbidden":
        model = _Resources if keys[0] == "resources" and len(keys) > 1 else SpecFile
        return UsageError(f"{where}: unknown key", hint=nearest(keys[-1], model.model_fields))
    message = str(item["msg"]).removeprefix("Value error, ").replace("Input should be", "should be")
    hint = next((_EXAMPLES[key] for key in reversed(keys[:2]) if key in _EXAMPLES), "")
    return UsageError(f"{where}: {'missing' if item['type'] == 'missing' else message}", hint=text.as_written(hint))
