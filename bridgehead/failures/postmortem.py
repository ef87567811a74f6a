"""postmortem.json and postmortem.md of a run folder: what ended it, on what evidence, what is left, what to do.

Total by construction: each section stands alone, and one that fails says so in its place.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

from bridgehead import files, names
from bridgehead.failures import exit_codes, log_lines
from bridgehead.failures.classes import facts
from bridgehead.failures.classify import Known, classify
from bridgehead.failures.page import page
from bridgehead.names import FailureClass, RunState

SHM_LEAST_BYTES: Final = 2**20
_EVENTS_TAIL_BYTES: Final = 64 * 2**10
_CENT: Final = Decimal("0.0001")
_LEVELS: Final = ("confirmed", "mounted", "local")


@dataclass(frozen=True)
class Measured:
    """What is known beside the folder. `ending` stands for exit.json where the run's VM left none."""

    oom_killed: bool | None = None
    disk_full: bool | None = None
    ending: Mapping[str, Any] = field(default_factory=dict)  # the fields of ExitRecord that are known
    resources: Callable[[], dict[str, Any]] = dict
    cost: Callable[[float | None], dict[str, Any]] | None = None  # gets the seconds that the attempt took


def write(run_dir: Path, measured: Measured, *, written_by: str, limit_s: float = 10.0) -> dict[str, Any]:
    """Compose and write both files; returns the record. Raises OSError when they can't be written."""
    record = compose(run_dir, measured, written_by=written_by, limit_s=limit_s)
    files.write_json(run_dir / names.POSTMORTEM, record)
    files.write_atomic(run_dir / names.POSTMORTEM_PAGE, page(record).encode(errors="replace"))
    return record


def compose(run_dir: Path, measured: Measured, *, written_by: str, limit_s: float = 10.0) -> dict[str, Any]:
    """The record. Never raises: a section that fails is {"error": why}."""
    record: dict[str, Any] = {"v": names.RECORD_VERSION, "written_by": written_by, "at": round(time.time(), 3)}
    record["run"] = _section(lambda: _run(run_dir))
    record["end"] = _section(lambda: _end(run_dir, measured))
    record["resources"] = _section(measured.resources)
    record["log"], record["verdict"] = {}, {}
    found = _section(lambda: _log_and_verdict(run_dir, record, measured, limit_s))
    record |= found if "error" not in found else {"log": found, "verdict": _verdict_of_record(record["end"])}
    record["metrics"] = _section(lambda: _metrics(run_dir))
    record["checkpoint"] = _section(lambda: _checkpoint(run_dir))
    record["cost"] = _section(lambda: _cost(run_dir, record["end"], measured))
    record["retry"] = _section(lambda: _retry(record))
    return record


def _section(make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    try:
        return make()
    except Exception as error:  # noqa: BLE001 - one section that can't be made must not take the others with it
        return {"error": f"{type(error).__name__}: {error}"[:300]}


def _read(path: Path) -> dict[str, Any]:
    found = files.read_json(path)
    return found if isinstance(found, dict) else {}


def _run(run_dir: Path) -> dict[str, Any]:
    record = _read(run_dir / names.RUN_RECORD)
    told = record.get("spec")
    spec: dict[str, Any] = told if isinstance(told, dict) else {}
    shown = {key: record.get(key) for key in ("run_id", "stage", "project", "attempt", "vm_id", "ship_sha256")}
    shown["payload_sha256"] = record.get("payload_sha256")
    return {
        **shown,
        "run_id": record.get("run_id") or run_dir.name,
        "config": spec.get("config"),
        "inputs": record.get("inputs"),
    }


def _end(run_dir: Path, measured: Measured) -> dict[str, Any]:
    record = dict(measured.ending) or _read(run_dir / names.EXIT)
    code = record.get("exit_code")
    told = {key: record.get(key) for key in ("attempt", "state", "exit_code", "signal", "failure_class", "message")}
    told |= {key: record.get(key) for key in ("started", "ended", "retries", "leftovers")}
    if isinstance(code, int):
        told["exit_means"] = exit_codes.said(code).text
    started, ended = record.get("started"), record.get("ended")
    if isinstance(started, int | float) and isinstance(ended, int | float) and 0 < started <= ended:
        told["duration_s"] = round(ended - started, 3)
    return told


def _log_and_verdict(
    run_dir: Path, record: dict[str, Any], measured: Measured, limit_s: float
) -> dict[str, dict[str, Any]]:
    path = run_dir / names.LOG
    there = files.plain_stat(path) is not None
    text = log_lines.read(path, limit_s=limit_s) if there else log_lines.LogText([])
    end = record["end"]
    recorded = str(end.get("failure_class") or "")
    known = Known(
        exit_code=end["exit_code"] if isinstance(end.get("exit_code"), int) else None,
        succeeded=end.get("state") == RunState.DONE,
        recorded=recorded if recorded in set(FailureClass) else "",
        recorded_why=str(end.get("message") or ""),
        not_finite=_not_finite(run_dir, end.get("attempt")),
        oom_killed=measured.oom_killed,
        disk_full=measured.disk_full,
        shm_full=_shm_full(record["resources"]),
    )
    log = {"size_bytes": text.size_bytes, "unread_bytes": text.unread_bytes, "head": text.head, "tail": text.tail}
    return {"log": log, "verdict": classify(text, known, limit_s=limit_s).to_json()}


def _verdict_of_record(end: dict[str, Any]) -> dict[str, Any]:
    """Where the log can't be read: what the exit record says, and no more."""
    failure = str(end.get("failure_class") or ("done" if end.get("state") == RunState.DONE else "unknown"))
    known = facts(failure)
    told = {"class": failure, "meaning": known.meaning, "confidence": "low", "detail": "", "hint": ""}
    return {**told, "next_step": known.next_step, "retry": known.retry_json(), "evidence": []}


def _shm_full(resources: dict[str, Any]) -> bool | None:
    try:
        return bool(resources["disks"]["shm"]["free_bytes"] < SHM_LEAST_BYTES)
    except (KeyError, TypeError):
        return None


def _metrics(run_dir: Path) -> dict[str, Any]:
    """How far it was; `not_finite`: the metrics that were no number then."""
    event = _last_progress(run_dir)
    keys = ("step", "total_steps", "epoch", "total_epochs", "metrics", "not_finite", "at")
    return {key: event.get(key) for key in keys if key in event or key != "not_finite"} if event else {}


def _not_finite(run_dir: Path, attempt: object) -> tuple[str, ...]:
    """Of this attempt; none where that is not told."""
    try:
        event = _last_progress(run_dir)
    except OSError:
        return ()
    told = event.get("not_finite")
    mine = event.get("attempt") in (attempt, None)
    return tuple(str(name)[:64] for name in told[:8]) if mine and isinstance(told, list) else ()


def _last_progress(run_dir: Path) -> dict[str, Any]:
    """The last event of progress.jsonl that says how far it was; empty: there is none. Raises OSError."""
    with (run_dir / names.PROGRESS).open("rb") as handle:
        handle.seek(max(0, handle.seek(0, os.SEEK_END) - _EVENTS_TAIL_BYTES))
        lines = handle.read(_EVENTS_TAIL_BYTES).splitlines()
    for line in reversed(lines):
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):  # a torn line, or one that began before the tail
            continue
        if isinstance(event, dict) and event.get("event", "progress") == "progress":
            return event
    return {}


def _checkpoint(run_dir: Path) -> dict[str, Any]:
    """The newest that is kept, at the highest level it has reached."""
    levels = _read(run_dir / names.STATUS).get("levels")
    kept = {
        level: levels[level] for level in _LEVELS if isinstance(levels, dict) and isinstance(levels.get(level), dict)
    }
    if kept:
        return {
            "levels": {
                level: {key: item.get(key) for key in ("step", "at", "saved_at")} for level, item in kept.items()
            }
        }
    folders = sorted(path.name for path in (run_dir / names.CHECKPOINTS).glob("*") if path.is_dir())
    return {"levels": {}, "on_disk": folders[-3:]}


def _cost(run_dir: Path, end: dict[str, Any], measured: Measured) -> dict[str, Any]:
    """What this attempt cost, by the rate that the run was pinned to; `money` is text such as `1.07 CU`, or null."""
    duration_s = end.get("duration_s")
    if measured.cost is not None:
        return measured.cost(duration_s)
    record = files.read_json(run_dir / names.RUN_RECORD)
    spec = record.get("spec") if isinstance(record, dict) else None
    pins = (spec.get("pins") if isinstance(spec, dict) else None) or {}
    amount, _, unit = str(pins.get("rate") or "").partition(" ")
    if not unit or duration_s is None:
        return {"duration_s": duration_s, "money": None, "why": str(pins.get("unpriced") or "no rate is known")}
    money = Decimal(amount) * Decimal(str(duration_s)) / 3600
    return {"duration_s": duration_s, "money": f"{money.quantize(_CENT)} {unit}", "rate": f"{amount} {unit} an hour"}


def _retry(record: dict[str, Any]) -> dict[str, Any]:
    """By the class's budget, less what was used up."""
    allowed = dict(record["verdict"]["retry"])
    used = int(record["end"].get("retries") or 0)
    allowed |= {"used": used, "allowed": bool(allowed["allowed"]) and used < int(allowed["budget"])}
    return allowed
