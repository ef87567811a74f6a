"""study.yaml: the question, the arms, what is measured, when to stop. Known by the hash of what it says.

That of the spec files that its arms name included.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from bridgehead import files
from bridgehead.errors import NotFoundError, UsageError
from bridgehead.queue_lines import nearest
from run_control import money, queue_writer, run_spec, yaml_file
from run_control.project import Project
from run_control.studies import arm_files

FOLDER = "studies"
STUDY, TRACKER, ANALYSIS, PLOT, DECISION = "study.yaml", "tracker.yaml", "analysis.md", "analysis.svg", "decision.yaml"
VERSION = 1
CELLS_MAX = 500
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,40}\Z")

_EXAMPLES = {
    "v": f"v: {VERSION}",
    "question": "question: Does it help?",
    "hypothesis": "hypothesis: It does, by two points.",
    "before": "before: {pretrain: {}}",
    "stages": "stages: [finetune, gate]",
    "arms": "arms: {plain: {finetune: {method: plain}}, other: {finetune: {method: lp-ft}}}",
    "control": "control: the name of an arm",
    "grid": "grid: {finetune.seed: [0, 1]}",
    "metric": "metric: {name: accuracy, direction: higher, min_effect: 0.01}",
    "confidence": "confidence: 0.95",
    "budget": "budget: {runs: 20, hours: 2.0, cost: 5 USD}",
    "stop": "stop: {failures: 2}",
    "parallel": "parallel: 2",
}

Config = dict[str, dict[str, Any]]  # stage → config


class MisfitError(ValueError):
    """Parts of a study that do not fit together; `keys` lead to the one to change."""

    def __init__(self, message: str, keys: list[str], hint: str) -> None:
        super().__init__(message)
        self.keys, self.hint = keys, hint


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)


def _arm_name(value: str) -> str:
    if not _NAME.match(value):
        raise ValueError("a name of lower-case letters, digits, - and _, up to 41")
    return value


def _amount(value: str) -> str:
    if value:
        try:
            money.parse(value)
        except UsageError as error:
            raise ValueError(f"{error.message}; {error.hint}") from None
    return value


class Metric(_Table):
    """What decides, as the last stage's results name it; effects in its own unit."""

    name: str = "accuracy"
    direction: Literal["higher", "lower"] = "higher"
    min_effect: Annotated[float, Field(ge=0)] = 0.0  # the gain over the control that would matter
    margin: Annotated[float, Field(ge=0)] = 0.0  # or the loss that is put up with


class Budget(_Table):
    """No run is queued past it; the ones under way end."""

    runs: Annotated[int, Field(ge=1, le=100_000)] = 100
    hours: Annotated[float, Field(gt=0, le=100_000)] = 24.0  # of all runs together, without their time in the queue
    cost: Annotated[str, AfterValidator(_amount)] = ""  # "5 USD"; "": what the project's own caps say


class Stop(_Table):
    failures: Annotated[int, Field(ge=1)] = 2  # so many arms' runs that failed end it: something is wrong


class Study(_Table):
    """A checked study.yaml."""

    v: Literal[1]
    question: Annotated[str, Field(min_length=1, max_length=2000)]
    hypothesis: Annotated[str, Field(min_length=1, max_length=2000)]
    before: Config = Field(default_factory=dict)  # stages that run once, for all arms
    stages: Annotated[list[str], Field(min_length=1, max_length=10)]  # of each arm, in this order
    arms: Annotated[dict[Annotated[str, AfterValidator(_arm_name)], Config], Field(min_length=2)]
    control: str  # the arm that the others are compared with
    grid: dict[str, Annotated[list[Any], Field(min_length=1)]] = Field(default_factory=dict)  # "stage.key" → values
    metric: Metric = Field(default_factory=Metric)
    confidence: Annotated[float, Field(gt=0.5, lt=1)] = 0.95
    budget: Budget = Field(default_factory=Budget)
    stop: Stop = Field(default_factory=Stop)
    parallel: Annotated[int, Field(ge=1, le=64)] = 1  # arms that are under way at once

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.control not in self.arms:
            raise MisfitError(f"{self.control!r} is no arm", ["control"], nearest(self.control, self.arms))
        if self.metric.min_effect and self.metric.margin:
            why = "min_effect asks for a gain and margin allows a loss: give one"
            raise MisfitError(why, ["metric", "margin"], "take one of them out")
        for name, arm in self.arms.items():
            for stage in arm:
                if stage not in self.stages:
                    why = f"{stage!r} is none of this study's stages"
                    raise MisfitError(why, ["arms", name, stage], nearest(stage, self.stages))
        for key in self.grid:
            stage, _, inner = key.partition(".")
            if stage not in self.stages or not inner:
                why = f'no "stage.key" of {", ".join(self.stages)}'
                raise MisfitError(why, ["grid", key], nearest(key, [f"{stage}.{inner}" for stage in self.stages]))
        if len(self.arms) * math.prod(len(values) for values in self.grid.values()) > CELLS_MAX:
            raise MisfitError(f"more than {CELLS_MAX} runs of arms", ["grid"], "fewer values in the grid")
        _check_twins(self)
        return self

    @property
    def sha256(self) -> str:
        """Of what it says, not of how it is written: a comment may change."""
        return hashlib.sha256(files.canonical_json(self.model_dump())).hexdigest()


@dataclass(frozen=True)
class Cell:
    """One arm at one point of the grid."""

    id: str
    arm: str
    point: dict[str, Any]
    config: Config

    @property
    def sha256(self) -> str:
        return hashlib.sha256(files.canonical_json(self.config)).hexdigest()


def folder_of(project: Project, name: str) -> Path:
    if not _NAME.match(name):
        raise UsageError(f"not a study's name: {name[:60]!r}", hint="lower-case letters, digits, - and _")
    return project.root / FOLDER / name


def load(folder: Path) -> Study:
    """Raises NotFoundError, UsageError with file, line, key and the nearest name."""
    path = folder / STUDY
    try:
        data, lines = yaml_file.load(path)
    except NotFoundError:
        raise NotFoundError(
            f"no study {folder.name!r}: there is no {FOLDER}/{folder.name}/{STUDY}",
            hint=_known(folder) or f"bridgehead study new {folder.name}",
        ) from None
    if isinstance(data, dict) and isinstance(data.get("v"), int) and data["v"] > VERSION:
        raise UsageError(
            f"{STUDY}:{yaml_file.line_of(lines, ['v'])}: v: it is of version {data['v']}; this reads {VERSION}",
            hint="update Bridgehead",
        )
    if not isinstance(data, dict):
        what = "the file is empty" if data is None else "not a table of keys"
        hint = f"{_EXAMPLES['question']}; bridgehead study new NAME writes a whole one to begin with"
        raise UsageError(f"{STUDY}:1: {what}", hint=hint)
    _read_arms(folder, data.get("arms"), lines)
    try:
        return Study.model_validate(data)
    except ValidationError as error:
        raise _mistake(error, lines) from None


def _read_arms(folder: Path, arms: object, lines: yaml_file.Lines) -> None:
    """Put what their spec files say in the place of the files' names."""
    if not isinstance(arms, dict):
        return
    for name, arm in arms.items():
        try:
            arms[name] = arm_files.expanded(folder, arm)
        except UsageError as error:
            where = f"{STUDY}:{yaml_file.line_of(lines, ['arms', str(name)])}: arms.{name}"
            raise UsageError(f"{where}: {error.message}", hint=error.hint) from None


def cells(study: Study) -> list[Cell]:
    """Point after point of the grid, and at each all arms: a study that is cut short has compared like with like."""
    found: list[Cell] = []
    for values in itertools.product(*study.grid.values()):
        point = dict(zip(study.grid, values, strict=True))
        for arm, given in study.arms.items():
            config: Config = {stage: dict(given.get(stage, {})) for stage in study.stages}
            for key, value in point.items():
                stage, _, name = key.partition(".")
                config[stage][name] = value
            number = len(found) // len(study.arms) + 1
            found.append(Cell(f"{arm}-{number}", arm, point, config))
    return found


def lines_of(config: Config) -> list[str]:
    """The queue's lines for these stages. Raises UsageError for a value that no line can hold."""
    return [
        queue_writer.run_line(stage, [_word(key, value) for key, value in given.items()])
        for stage, given in config.items()
    ]


def _check_twins(study: Study) -> None:
    """Two runs of one config answer nothing that one does not. Raises MisfitError."""
    for key, values in study.grid.items():
        words = [_word(key, run_spec.freeze(value)) for value in values]
        twice = next((word for word in words if words.count(word) > 1), "")
        if twice:
            why = f"{twice.partition('=')[2]} is given {words.count(twice)} times: the same run over again"
            raise MisfitError(why, ["grid", key], "each value once; for repeats, a grid over the seed")
    seen: dict[tuple[str, ...], Cell] = {}
    for cell in cells(study):
        config = run_spec.freeze(cell.config)
        words = [f"{stage}:{_word(key, value)}" for stage in config for key, value in config[stage].items()]
        other = seen.setdefault(tuple(sorted(words)), cell)
        if other is not cell:
            why = f"the same runs as arm {other.arm}" + (" once the grid has set its keys" if study.grid else "")
            raise MisfitError(why, ["arms", cell.arm], "let them differ in a key that the grid does not set")


def _word(key: str, value: Any) -> str:
    text = value if isinstance(value, str) else files.canonical_json(value).decode()
    return f"{key}={text}"


def _known(folder: Path) -> str:
    there = [path.parent.name for path in folder.parent.glob(f"*/{STUDY}")]
    return nearest(folder.name, there) if there else ""


def _mistake(error: ValidationError, lines: yaml_file.Lines) -> UsageError:
    """The first mistake in the order of the file; a misspelt key comes before the missing one that it should be."""
    found = []
    for item in error.errors(include_url=False, include_input=False):
        misfit = item.get("ctx", {}).get("error")
        keys = misfit.keys if isinstance(misfit, MisfitError) else [str(part) for part in item["loc"]]
        found.append((item["type"] == "missing", yaml_file.line_of(lines, keys), keys, item, misfit))
    _, line, keys, item, misfit = min(found, key=lambda entry: entry[:2])
    key, hint = ".".join(keys), _EXAMPLES.get(keys[0] if keys else "", "")
    text = str(item["msg"]).removeprefix("Value error, ").replace("Input should be", "should be")
    if item["type"] == "extra_forbidden":
        models: dict[str, type[BaseModel]] = {"metric": Metric, "budget": Budget, "stop": Stop}
        allowed = list(models.get(keys[0] if len(keys) > 1 else "", Study).model_fields)
        text, hint = "unknown key", nearest(keys[-1], allowed)
    elif isinstance(misfit, MisfitError):
        hint = misfit.hint
    elif item["type"] == "missing":
        text = "missing"
    return UsageError(f"{STUDY}:{line}: {key + ': ' if key else ''}{text}", hint=hint)
