"""study.yaml: the question, the arms, what is measured, when to stop. Known by the hash of what it says."""

from __future__ import annotations

import hashlib
import itertools
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from bridgehead import files
from bridgehead.errors import NotFoundError, UsageError
from bridgehead.queue_lines import nearest
from run_control import money, queue_writer
from run_control.project import Project
from run_control.studies import yaml_file

FOLDER = "studies"
STUDY, TRACKER, ANALYSIS, PLOT, DECISION = "study.yaml", "tracker.yaml", "analysis.md", "analysis.svg", "decision.yaml"
VERSION = 1
CELLS_MAX = 500
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,40}\Z")

Config = dict[str, dict[str, Any]]  # stage → config


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
            raise ValueError(f"control {self.control!r} is no arm; {nearest(self.control, self.arms)}")
        if self.metric.min_effect and self.metric.margin:
            raise ValueError("metric: min_effect asks for a gain and margin allows a loss: give one")
        for name, arm in self.arms.items():
            for stage in arm:
                if stage not in self.stages:
                    raise ValueError(f"arm {name} configures {stage!r}; {nearest(stage, self.stages)}")
        for key in self.grid:
            if key.partition(".")[0] not in self.stages or not key.partition(".")[2]:
                raise ValueError(f'grid: {key!r} is no "stage.key" of {", ".join(self.stages)}')
        if len(self.arms) * len(list(itertools.product(*self.grid.values()))) > CELLS_MAX:
            raise ValueError(f"more than {CELLS_MAX} runs of arms: a smaller grid")
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
        raise UsageError(f"{STUDY} is of version {data['v']}; this reads {VERSION}", hint="update Bridgehead")
    try:
        return Study.model_validate(data)
    except ValidationError as error:
        raise _mistake(error, lines) from None


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
        keys = [str(part) for part in item["loc"]]
        found.append((item["type"] == "missing", yaml_file.line_of(lines, keys), keys, item))
    _, line, keys, item = min(found, key=lambda entry: entry[:2])
    key, hint = ".".join(keys), ""
    text = str(item["msg"]).removeprefix("Value error, ").replace("Input should be", "should be")
    if item["type"] == "extra_forbidden":
        models: dict[str, type[BaseModel]] = {"metric": Metric, "budget": Budget, "stop": Stop}
        allowed = list(models.get(keys[0] if len(keys) > 1 else "", Study).model_fields)
        text, hint = "unknown key", nearest(keys[-1], allowed)
    elif item["type"] == "missing":
        text = "missing"
    return UsageError(f"{STUDY}:{line}: {key + ': ' if key else ''}{text}", hint=hint)
