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
from bridgehead.errors import NotFoundError, UsageError
from bridgehead.queue_lines import Verb, nearest
from run_control import launching, plan, project_file, run_spec, toml_lines
from run_control.plan import Plan
from run_control.project import Project
from run_control.project_file import Whole
from run_control.run_spec import SPEC_VERSION
from run_control.spec_tables import Caps, StageLimits, Tag, places, plain_config
from run_control.views import ledger_of

SUFFIX = ".toml"
OTHER_SUFFIXES = (".yaml", ".yml", ".json")  # of files that people take for spec files
_SIZE_MAX_BYTES = 2**20
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
    return word.endswith((SUFFIX, *OTHER_SUFFIXES)) or "/" in word or "\\" in word


def read(path: Path) -> SpecFile:
    """Raises UsageError with file, line, key and the nearest name."""
    text = _text(path)
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(
            f"{path.name}:{toml_lines.syntax_line(error)}: not TOML: {error}",
            hint='key = value, text in quotes, tables as [config]: stage = "train"',
        ) from None
    except RecursionError:
        raise UsageError(f"{path.name}: nested too deep", hint="fewer brackets within brackets") from None
    _check_version(path.name, text, data.get("version", SPEC_VERSION))
    try:
        return SpecFile.model_validate(data)
    except ValidationError as error:
        raise _mistake(path.name, text, error) from None


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


def _text(path: Path) -> str:
    try:
        if path.is_dir():
            there = [found.name for found in path.glob(f"*{SUFFIX}")]
            raise UsageError(f"{path.name} is a folder", hint=f"name a spec file in it; {nearest(path.name, there)}")
        if path.stat().st_size > _SIZE_MAX_BYTES:
            raise UsageError(
                f"{path.name} is over {_SIZE_MAX_BYTES} bytes", hint="data belongs into a file that the stage reads"
            )
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        there = [found.name for found in path.parent.glob(f"*{SUFFIX}")]
        hint = f"{nearest(path.name, there)} (in {path.parent})" if there else f"no {SUFFIX} file is in {path.parent}"
        raise UsageError(f"no spec file {path}", hint=hint) from None
    except UnicodeDecodeError:
        raise UsageError(f"{path.name} is not UTF-8", hint="save it as UTF-8") from None
    except OSError as error:
        raise UsageError(
            f"{path.name} can't be read: {error.strerror}", hint="see that it is a file and that you may read it"
        ) from None
    if not text.strip():
        raise UsageError(f"{path.name}:1: the file is empty", hint=_EXAMPLES["stage"])
    return text


def _plan_of(project: Project, whole: Whole, path: Path, known: dict[Path, Plan], unpriced: str = "") -> Plan:
    if path in known:
        return known[path]
    found = read(path)
    if found.stage not in whole.view.stages:
        raise UsageError(
            f"{_where(path, 'stage')}: no stage {found.stage!r}", hint=nearest(found.stage, whole.view.stages)
        )
    if found.resume:
        _known_run(project, path, "resume", found.resume)
    parents = [_parent(project, whole, path, parent, known) for parent in found.parents]
    stage = launching.resolved(whole.view.stages[found.stage], dict(found.config))
    stage = dataclasses.replace(stage, resume_from=found.resume)
    inputs = launching.newest_inputs(project, stage)
    request = PinRequest(stage, inputs, unpriced=unpriced or found.resources.unpriced)
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
            f"{_where(path, 'data')}: no [data.{found.data}] in the project", hint=nearest(found.data, whole.data)
        )
    given = {name: value for name in Caps.model_fields if (value := getattr(found.resources, name)) is not None}
    more: dict[str, Any] = {"data": found.data} if found.data else {}
    limits = whole.limits[found.stage]
    tags = sorted({*limits.tags, *found.tags})
    changed = StageLimits(**{**limits.model_dump(), **given, **more, "tags": tags})
    return dataclasses.replace(whole, limits={**whole.limits, found.stage: changed})


def _parent(project: Project, whole: Whole, path: Path, parent: str, known: dict[Path, Plan]) -> str:
    """A run's whole id; of another spec file, its spec's id."""
    if not parent.endswith(SUFFIX):
        return _known_run(project, path, "parents", parent)
    made = _plan_of(project, whole, (path.parent / parent).resolve(), known)
    if made.spec is None:
        raise made.refusal or UsageError(f"{parent} has no spec")
    return f"spec:{made.spec.id[:16]}"


def _known_run(project: Project, path: Path, key: str, run: str) -> str:
    """The id of the run that is called so. Raises UsageError with the nearest one."""
    try:
        if not project.ledger.is_file():
            raise NotFoundError(f"no run {run!r}", hint="this project has had no run yet")
        with ledger_of(project) as ledger:
            return ledger.find_run(run).run_id
    except (NotFoundError, UsageError) as error:
        raise UsageError(f"{_where(path, key)}: {error.message}", hint=error.hint) from None


def _where(path: Path, key: str) -> str:
    return f"{path.name}:{toml_lines.line_of(_text(path), [key])}: {key}"


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
        keys = places(dict(item))
        found.append((toml_lines.line_of(text, keys), keys, item))
    line, keys, item = min(found, key=lambda entry: (entry[2]["type"] == "missing", entry[0]))
    where = f"{file_name}:{line}: {'.'.join(keys)}"
    if item["type"] == "extra_forbidden":
        model = _Resources if keys[0] == "resources" and len(keys) > 1 else SpecFile
        return UsageError(f"{where}: unknown key", hint=nearest(keys[-1], model.model_fields))
    message = str(item["msg"]).removeprefix("Value error, ").replace("Input should be", "should be")
    hint = next((_EXAMPLES[key] for key in reversed(keys[:2]) if key in _EXAMPLES), "")
    return UsageError(f"{where}: {'missing' if item['type'] == 'missing' else message}", hint=hint)
