"""How long a run has been running, over all its attempts. Time in the queue, or between two VMs, is no run time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bridgehead import files, names
from bridgehead.errors import UsageError
from bridgehead.records import ProcessRecord, Status

_INTERVALS = 32  # of the newest progress; their median is what is usual


def earlier_s(run_dir: Path, attempt: int) -> float:
    """Seconds between the first and the last word of each attempt before this one, as its progress.jsonl has them.

    Reads the whole file; ask once an attempt. An attempt that said nothing counts for nothing.
    """
    spans: dict[int, tuple[float, float]] = {}
    path = run_dir / names.PROGRESS
    if files.plain_stat(path) is None:
        return 0.0
    with path.open("rb") as handle:
        for line in handle:
            told, at = _told(line)
            if 0 < told < attempt and at > 0:
                first, last = spans.get(told, (at, at))
                spans[told] = (min(first, at), max(last, at))
    return sum(last - first for first, last in spans.values())


def started(run_dir: Path) -> float:
    """When this attempt's newest process began, in seconds since 1970; 0 while there is none."""
    try:
        return ProcessRecord.from_json(files.read_json(run_dir / names.PROCESS)).started
    except UsageError:
        return 0.0


def running_s(status: Status, now: float) -> float:
    """Whole seconds that a run on this VM has been running, over all its attempts."""
    here_s = max(0.0, (status.ended or now) - status.started) if status.started > 0 else 0.0
    return round(status.earlier_s + here_s)


def usual_interval_s(progress: list[dict[str, Any]]) -> float:
    """The median of the times between two words of progress; 0 for fewer than three."""
    moments = [float(event["at"]) for event in progress[-_INTERVALS:] if _is_time(event.get("at"))]
    gaps = sorted(later - earlier for earlier, later in zip(moments, moments[1:], strict=False))
    return round(gaps[len(gaps) // 2], 3) if len(gaps) > 1 else 0.0


def _told(line: bytes) -> tuple[int, float]:
    """(attempt, time) of a line; zeros for one that is no event."""
    try:
        event = json.loads(line)
    except ValueError:
        return 0, 0.0
    if not isinstance(event, dict):
        return 0, 0.0
    attempt, at = event.get("attempt", 1), event.get("at")
    plain = isinstance(attempt, int) and not isinstance(attempt, bool)
    return (attempt, float(at)) if plain and isinstance(at, int | float) and _is_time(at) else (0, 0.0)


def _is_time(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e11
