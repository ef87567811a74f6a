"""Compose a run's Status from the files in its folder; nothing else knows how a run is."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bridgehead import checkpoints, files, hourly, names, processes
from bridgehead.errors import UsageError
from bridgehead.names import CheckpointLevel, RunState
from bridgehead.records import CheckpointInfo, ExitRecord, ProcessRecord, RunRecord, Status, is_number
from vm_daemons import budget, lifetime, run_meter

TAIL_BYTES = 64 * 1024  # of progress.jsonl: some 300 events
METRICS_MAX = 100  # in a status; of more names the newest


def compose(run_dir: Path, levels: Mapping[str, Any], now: float) -> Status:
    """The status as the files tell it. `updated` is `now`; everything else changes only when a file did.

    `levels` is the uploader's checkpoints.json of this attempt, empty when there is none. Raises UsageError
    when the folder holds no readable run.json.
    """
    run = RunRecord.from_json(files.read_json(run_dir / names.RUN_RECORD))
    ended = read_exit(run_dir)
    if ended is not None and ended.attempt != run.attempt:
        ended = None  # of an earlier attempt
    before = _previous(run_dir, run)
    seen = _read_events(run_dir / names.PROGRESS, run.attempt)
    last = seen.progress[-1] if seen.progress else {}
    climbed = _climbed(_local(run_dir, seen, before), levels)
    stopping, stopping_at = _stopping(run_dir, run.attempt) if ended is None else ("", 0.0)
    return Status(
        run_id=run.run_id,
        stage=run.stage,
        state=ended.state if ended else _live_state(run_dir, run, seen),
        vm_id=run.vm_id,
        attempt=run.attempt,
        step=_int(last.get("step")) or (seen.resumed_from or 0),
        total_steps=_int(last.get("total_steps")),
        epoch=_int(last.get("epoch")),
        total_epochs=_int(last.get("total_epochs")),
        metrics=_latest(before, seen.progress),
        eta_s=None if ended else _eta_s(seen.progress),
        message=ended.message if ended and ended.message else _message(seen, last),
        checkpoint=_newest(climbed),
        resumed_from_step=seen.resumed_from if seen.resumed_from is not None else _resumed(before),
        updated=now,
        levels=climbed,
        saved_at=_float(climbed.get(CheckpointLevel.CONFIRMED, {}).get("saved_at")),
        started=(before.started if before is not None else 0.0) or run_meter.started(run_dir),
        ended=ended.ended if ended else 0.0,
        earlier_s=before.earlier_s if before is not None else run_meter.earlier_s(run_dir, run.attempt),
        progress_at=_float(last.get("at")),
        interval_s=run_meter.usual_interval_s(seen.progress),
        stopping=stopping,
        stopping_at=stopping_at,
    )


def read_exit(run_dir: Path) -> ExitRecord | None:
    """exit.json, None while the attempt goes on."""
    try:
        return ExitRecord.from_json(files.read_json(run_dir / names.EXIT))
    except UsageError:
        return None


def last_words(run_dir: Path, attempt: int) -> str:
    """The newest message of this attempt in the tail of progress.jsonl, bounded; "" when there is none."""
    try:
        return _read_events(run_dir / names.PROGRESS, attempt).message
    except OSError:
        return ""


@dataclass
class _Events:
    """What the tail of progress.jsonl says of this attempt."""

    progress: list[dict[str, Any]] = field(default_factory=list)  # since it last resumed
    last: str = ""  # kind of the last event that bears on the state
    saved: dict[str, Any] | None = None
    resumed_from: int | None = None
    message: str = ""


def _read_events(path: Path, attempt: int) -> _Events:
    seen = _Events()
    for event in _tail(path):
        if event.get("attempt", attempt) != attempt:
            continue
        kind = event.get("event", "progress")
        if kind == "message":
            seen.message = str(event.get("text", ""))[:500]
            continue
        seen.last = str(kind)
        if kind == "progress":
            seen.progress.append(event)
        elif kind == "checkpoint":
            seen.saved = event
        elif kind == "resumed":
            seen.resumed_from = _int(event.get("step"))
            seen.progress.clear()
    return seen


def _tail(path: Path) -> list[dict[str, Any]]:
    """The last whole lines that are JSON objects; a line that is just being written is left for the next time."""
    if files.plain_stat(path) is None:
        return []
    try:
        with path.open("rb") as handle:
            size = handle.seek(0, os.SEEK_END)
            start = max(0, size - TAIL_BYTES)
            handle.seek(start)
            lines = handle.read(TAIL_BYTES).split(b"\n")
    except FileNotFoundError:
        return []
    whole = lines[1 if start else 0 : -1]
    return [event for line in whole if isinstance(event := _parse(line), dict)]


def _parse(line: bytes) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None


def _live_state(run_dir: Path, run: RunRecord, seen: _Events) -> RunState:
    # A later attempt of a run that had only waited on its lost VM has nothing to resume from.
    resumes = seen.resumed_from is not None or (run.attempt > 1 and _newest_local(run_dir) is not None)
    if not _is_alive(run_dir):  # not started yet, or died unseen and about to be started again
        return RunState.RESUMING if resumes or seen.last else RunState.STARTING
    if seen.last == "saving":
        return RunState.SAVING
    if seen.progress:
        return RunState.RUNNING
    return RunState.RESUMING if resumes else RunState.RUNNING


def _stopping(run_dir: Path, attempt: int) -> tuple[str, float]:
    """What else than a person has it save and leave just now, and since when; 0: nothing and nobody has."""
    told = lifetime.handover(run_dir, attempt)
    if told.get("handing_since"):
        return "this VM's end is near: it saves for the next one", _float(told["handing_since"])
    asked = files.plain_stat(run_dir / names.STOP_REQUEST)
    if asked is not None:
        return budget.reason(run_dir), round(asked.st_mtime, 3)
    if (run_dir / names.SAVE_REQUEST).exists():
        return "its end is near: a checkpoint is forced", _float(told.get("saving_since"))
    return "", 0.0


def _is_alive(run_dir: Path) -> bool:
    try:
        process = ProcessRecord.from_json(files.read_json(run_dir / names.PROCESS))
    except UsageError:
        return False
    if process.boot_id != processes.boot_id():
        return False
    return processes.is_alive(process.stage_pid, process.stage_start) or processes.is_alive(
        process.runner_pid, process.runner_start
    )


def _eta_s(progress: list[dict[str, Any]]) -> float | None:
    """From the rate between the first and last progress of this attempt that the tail holds."""
    if len(progress) < 2:
        return None
    first, last = progress[0], progress[-1]
    name, total = ("step", "total_steps") if _int(last.get("total_steps")) else ("epoch", "total_epochs")
    done = _int(last.get(name)) - _int(first.get(name))
    took_s = _float(last.get("at")) - _float(first.get("at"))
    left = _int(last.get(total)) - _int(last.get(name))
    if not _int(last.get(total)) or done <= 0 or took_s <= 0 or left / done > hourly.MOST_S / took_s:
        return None  # a total that would take centuries is a word for "no end", and would not fit a float either
    return round(max(0, left) * took_s / done, 1)


def _message(seen: _Events, last: dict[str, Any]) -> str:
    wild = last.get("not_finite")
    if isinstance(wild, list) and wild:
        return f"{', '.join(str(name) for name in wild)} not finite"
    return seen.message


def _local(run_dir: Path, seen: _Events, before: Status | None) -> CheckpointInfo | None:
    """The newest one on this disk."""
    if seen.saved is not None:
        return CheckpointInfo(
            step=_int(seen.saved.get("step")),
            at=_float(seen.saved.get("at")),
            size_bytes=_int(seen.saved.get("size_bytes")),
            epoch=_int(seen.saved.get("epoch")),
        )
    if (newest := _newest_local(run_dir)) is not None:
        return newest
    told = before.levels.get(CheckpointLevel.LOCAL) if before is not None else None
    return _info(told, CheckpointLevel.LOCAL)


def _climbed(local: CheckpointInfo | None, told: Mapping[str, Any]) -> dict[str, Any]:
    """Level → the newest checkpoint that high. What is local we know best, the rest is the uploader's word."""
    found = told.get("levels")
    climbed = {}
    if local is not None:
        climbed[str(CheckpointLevel.LOCAL)] = {**local.to_json(), "saved_at": local.at}
    for level in (CheckpointLevel.MOUNTED, CheckpointLevel.CONFIRMED):
        given = found.get(level) if isinstance(found, dict) else None
        info = _info(given, level)
        if info is not None and isinstance(given, dict):
            climbed[str(level)] = {**info.to_json(), "saved_at": _float(given.get("saved_at"))}
    return climbed


def _info(told: object, level: CheckpointLevel) -> CheckpointInfo | None:
    try:
        info = CheckpointInfo.from_json(told)
    except UsageError:
        return None
    return info if info.level is level else None


def _newest(climbed: Mapping[str, Any]) -> CheckpointInfo | None:
    """By its step; of one step, the highest level that it has."""
    found = [info for level in CheckpointLevel if (info := _info(climbed.get(level), level)) is not None]
    ranks = list(CheckpointLevel)
    return max(found, key=lambda info: (info.step, ranks.index(info.level)), default=None)


def _newest_local(run_dir: Path) -> CheckpointInfo | None:
    """By name alone: whoever loads it checks it."""
    try:
        folders = list((run_dir / names.CHECKPOINTS).iterdir())
        found = [(step, entry) for entry in folders if (step := checkpoints.step_of(entry)) is not None]
        step, folder = max(found)
        return CheckpointInfo(step=step, level=CheckpointLevel.LOCAL, at=round(folder.stat().st_mtime, 3))
    except (OSError, ValueError):  # none there, or retired this moment
        return None


def _previous(run_dir: Path, run: RunRecord) -> Status | None:
    """The last status of this attempt: it knows what has left the tail of progress.jsonl since."""
    try:
        status = Status.from_json(files.read_json(run_dir / names.STATUS))
    except UsageError:
        return None
    return status if status.attempt == run.attempt else None


def _resumed(before: Status | None) -> int | None:
    return before.resumed_from_step if before is not None else None


def _latest(before: Status | None, progress: list[dict[str, Any]]) -> dict[str, float]:
    """Each metric as it was last told in this attempt, whether or not the newest word has it; the newest ones last."""
    found = dict(before.metrics) if before is not None else {}
    for event in progress:
        for name, value in _metrics(event.get("metrics")).items():
            found.pop(name, None)
            found[name] = value
    return dict(list(found.items())[-METRICS_MAX:])


def _metrics(value: object) -> dict[str, float]:
    if not isinstance(value, dict):
        return {}
    return {str(name): float(number) for name, number in value.items() if is_number(number)}


def _int(value: object) -> int:
    return int(value) if is_number(value) else 0


def _float(value: object) -> float:
    return float(value) if is_number(value) else 0.0
