"""What there is to tell of a run, read from what has arrived of it: who it is, its points, how it ended.

The same step may be told more than once: a run that resumes does again what came after its last checkpoint. A sink is
told each step of a metric once, in the order of the steps, so that no series doubles or runs backwards; the file in
in/ keeps every telling.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from bridge.ledger_rows import REJECTED, CommandRow
from bridgehead import files
from bridgehead.errors import UsageError
from bridgehead.queue_lines import Verb
from bridgehead.records import StageSpec, is_number
from run_control import pace, query, views
from run_control.project import Project

READ_MAX_BYTES: Final = 256 * 1024  # of progress.jsonl for one message: some thousand events
LINE_MAX_BYTES: Final = 1024 * 1024  # a longer one is nobody's event
NAME_MAX: Final = 200  # characters of a metric's name
_SAID = frozenset({"results.v", "results.run_id", "results.stage"})  # as the head does


@dataclass(frozen=True)
class Point:
    """One word of progress. `step` is the epoch for a run that counts no steps; `at` in seconds since 1970."""

    step: int
    epoch: int
    at: float
    metrics: dict[str, float]

    def to_json(self) -> list[Any]:
        return [self.step, self.epoch, self.at, self.metrics]


@dataclass
class Told:
    """How far a sink has been told of a run."""

    offset: int = 0  # bytes of progress.jsonl
    floor: int = -1  # the highest step that the sink had before this was known
    last: dict[str, int] = field(default_factory=dict)  # metric → the highest step
    head: str = ""  # digests of what was said at the beginning and at the end
    end: str = ""
    place: dict[str, Any] = field(default_factory=dict)  # the sink's own: where its copy is

    def is_new(self, metric: str, step: int) -> bool:
        return step > max(self.last.get(metric, -1), self.floor)


def is_told(project: Project, row: CommandRow) -> bool:
    """Whether a line of the queue is a run that sinks hear of: one of a stage, of which something has arrived."""
    return row.verb == Verb.RUN and row.state != REJECTED and bool(row.run_id) and project.run(row.run_id).is_dir()


def head(project_name: str, row: CommandRow) -> dict[str, Any]:
    """{"run_id", "stage", "project", "created", "spec_id", "code", "data", "tags": [...], "config": {...}}."""
    try:
        spec = StageSpec.from_json(json.loads(row.spec))
    except (UsageError, ValueError):
        spec = StageSpec(row.stage, "")
    pinned = spec.pins.spec
    tags = pinned.get("tags")
    return {
        "run_id": row.run_id,
        "stage": row.stage,
        "project": project_name,
        "created": row.created,
        "spec_id": spec.pins.spec_id,
        "code": _part(pinned, "code", "sha256"),
        "data": _part(pinned, "data", "fingerprint"),
        "tags": [str(tag) for tag in tags] if isinstance(tags, list) else [],
        "config": {str(key): value for key, value in spec.config.items()},
    }


def end(project: Project, row: CommandRow) -> dict[str, Any]:
    """What `bridgehead query` says of a run that has ended, without what is not there.

    {"state", "exit_code", "failure_class", "reason", "attempt", "hours", "cost", "cost_unit", "summary": {...}}; the
    summary holds its last metrics under their names, and `results.NAME`.
    """
    told = query.row(project, views.run_view(project, row))
    wanted = ("state", "exit_code", "failure_class", "reason", "attempt", "hours", "cost", "cost_unit")
    found = {name: told[name] for name in wanted if told.get(name) not in (None, "")}
    summary = {
        name.removeprefix("metrics."): value
        for name, value in told.items()
        if name.startswith(("metrics.", "results.")) and name not in _SAID and _usable(value)
    }
    return {**found, "summary": summary}


def digest(value: object) -> str:
    return hashlib.sha256(files.canonical_json(value)).hexdigest()


def read_on(path: Path, told: Told) -> tuple[list[Point], Told, bool]:
    """(what is new, the place after it, whether there is more); whole lines alone, READ_MAX_BYTES of them at most.

    A file that was replaced by a shorter one is read from its beginning: what it repeats is not new. Raises OSError.
    """
    try:
        with path.open("rb") as stream:
            size = stream.seek(0, 2)
            start = told.offset if told.offset <= size else 0
            stream.seek(start)
            data = stream.read(READ_MAX_BYTES)
            if b"\n" not in data and len(data) == READ_MAX_BYTES:
                data += stream.read(LINE_MAX_BYTES - READ_MAX_BYTES)
    except FileNotFoundError:
        return [], told, False
    whole = data[: data.rfind(b"\n") + 1]
    if not whole and len(data) == LINE_MAX_BYTES:
        whole = data  # no event: left out
    after = Told(start + len(whole), told.floor, dict(told.last), told.head, told.end, told.place)
    points = [point for event in pace.parse(whole.split(b"\n")) if (point := _point(event, after)) is not None]
    return _in_order(points), after, bool(whole) and after.offset < size


def is_read(path: Path, told: Told) -> bool:
    """Whether nothing came since."""
    try:
        return path.stat().st_size == told.offset
    except FileNotFoundError:
        return told.offset == 0


def _point(event: Mapping[str, Any], told: Told) -> Point | None:
    """None for an event without a metric that is new at its step; notes in `told` what it has."""
    metrics, at = event.get("metrics"), event.get("at")
    epoch = _whole(event.get("epoch"))
    step = _whole(event.get("step")) or epoch
    if event.get("event") != "progress" or not isinstance(metrics, dict):
        return None
    new = {
        str(name)[:NAME_MAX]: float(value)
        for name, value in metrics.items()
        if is_number(value) and str(name).strip() and told.is_new(str(name)[:NAME_MAX], step)
    }
    told.last.update(dict.fromkeys(new, step))
    when = float(at) if is_number(at) else 0.0
    return Point(step, epoch, when, new) if new else None


def _in_order(points: list[Point]) -> list[Point]:
    """By step, one for each: what was told of a step in two words is one row."""
    rows: dict[int, Point] = {}
    for point in points:
        known = rows.get(point.step)
        if known is not None:
            point = Point(point.step, max(known.epoch, point.epoch), known.at, {**known.metrics, **point.metrics})
        rows[point.step] = point
    return [rows[step] for step in sorted(rows)]


def _part(spec: Mapping[str, Any], table: str, key: str) -> str:
    found = spec.get(table)
    return str(found.get(key) or "") if isinstance(found, dict) else ""


def _usable(value: object) -> bool:
    return isinstance(value, str | bool) or is_number(value)


def _whole(value: object) -> int:
    """A count; 0 for what is none."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53 else 0
