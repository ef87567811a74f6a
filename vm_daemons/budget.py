"""A run that has a cap of hours or money: near it a checkpoint is forced, seen to be safe, and then the run is stopped.

In that order, and early enough: at the cap less the time that a checkpoint takes to be safe. When it is not safe
shortly before the cap the run is stopped all the same; a stage that is asked to stop saves once more.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bridgehead import files, names
from bridgehead.errors import UsageError
from bridgehead.names import CheckpointLevel
from bridgehead.records import Command, Status, VmRules, duration
from vm_daemons import launch, lifetime, run_meter

LOOK_EVERY_S = 1.0
SAVE_UNKNOWN_S = 300.0  # how long a checkpoint takes to be safe, before one has been
SAVE_AT_LEAST_S = 20.0
STOP_S = 10.0  # to stop takes its time too: a stage saves once more
_MARGIN = 2.0
_JOINED = "a person asked too"  # the second line of the request


class Budgets:
    """What is left of each run's budget; `mind` is asked at each turn of the daemon's loop."""

    def __init__(self) -> None:
        self._next_look: dict[str, float] = {}
        self._earlier_s: dict[tuple[str, int], float] = {}
        self._began: dict[tuple[str, int], float] = {}
        self._saving: set[tuple[str, int]] = set()
        self._joined: set[tuple[str, int]] = set()

    def mind(self, run_dir: Path, command: Command, rules: Callable[[], VmRules]) -> None:
        """Save, wait until that is safe, stop. Does nothing for a run without a budget. Raises OSError."""
        budget_s = command.spec.pins.budget_s if command.spec is not None else 0.0
        now = time.monotonic()
        if budget_s <= 0 or now < self._next_look.get(command.run_id, 0.0):
            return
        self._next_look[command.run_id] = now + LOOK_EVERY_S
        if (run_dir / names.STOP_REQUEST).exists():
            return
        left_s, key = budget_s - self.used_s(run_dir, command), (command.run_id, command.attempt)
        if key not in self._saving and left_s > time_to_save_s(run_dir, rules(), budget_s):
            return
        if key not in self._saving:  # the forced save itself may show that less time would have done
            self._saving.add(key)
            line = f"--- its cap of {duration(budget_s)} of running is near: it saves, and then stops"
            files.append_line(run_dir / names.LOG, line, durable=False)
        lifetime.ask_to_save(run_dir, command.attempt)
        safe = not (run_dir / names.SAVE_REQUEST).exists() and _is_safe(run_dir, command.attempt)
        if safe or left_s <= min(STOP_S, budget_s / 10):
            why = "its checkpoint is safe" if safe else "its last checkpoint was not yet safe"
            launch.request_stop(run_dir, f"its cap of {duration(budget_s)} of running is reached; {why}")

    def join(self, run_dir: Path, command: Command) -> bool:
        """A person asks it to stop while its cap does already: that is one stop, and only the next one kills.

        True the first time, also to a daemon that was started anew meanwhile.
        """
        key = (command.run_id, command.attempt)
        if key in self._joined or not reason(run_dir) or _is_joined(run_dir):
            return False
        self._joined.add(key)
        with contextlib.suppress(OSError), (run_dir / names.STOP_REQUEST).open("a", encoding="utf-8") as stream:
            stream.write(_JOINED + "\n")
        return True

    def used_s(self, run_dir: Path, command: Command) -> float:
        """Of running, up to now, over all attempts."""
        key = (command.run_id, command.attempt)
        if key not in self._earlier_s:
            self._earlier_s[key] = run_meter.earlier_s(run_dir, command.attempt)
        began = run_meter.started(run_dir)
        if began > 0:
            self._began[key] = min(
                began, self._began.get(key, math.inf), _first_seen(run_dir, command.attempt) or math.inf
            )
        return self._earlier_s[key] + max(0.0, time.time() - self._began.get(key, time.time()))


def time_to_save_s(run_dir: Path, rules: VmRules, budget_s: float) -> float:
    """Twice what the newest checkpoint took to its highest level, within the project's own limit for saving."""
    took_s = _took_s(run_dir)
    wanted_s = SAVE_UNKNOWN_S if took_s is None else max(SAVE_AT_LEAST_S, took_s * _MARGIN)
    return min(wanted_s, rules.save_before_cap_s, budget_s / 2)


def reason(run_dir: Path) -> str:
    """The cap by which it was asked to stop; "" when that was a person."""
    return next(iter(_words(run_dir)), "")[:300]


def _is_joined(run_dir: Path) -> bool:
    return _JOINED in _words(run_dir)[1:]


def _words(run_dir: Path) -> list[str]:
    """The lines of the request to stop; none when a person asked first, or nobody."""
    try:
        return (run_dir / names.STOP_REQUEST).read_text(encoding="utf-8", errors="replace").strip().splitlines()
    except OSError:
        return []


def _is_safe(run_dir: Path, attempt: int) -> bool:
    """Whether the store has a checkpoint that was made since it was asked for one, or whatever is newest.

    A run that saves every second always has a newer one on its way.
    """
    if lifetime.in_store(run_dir):
        return True
    asked_at = lifetime.handover(run_dir, attempt).get("saving_since")
    item = lifetime.highest(run_dir)
    saved_at = item.get("saved_at") if item is not None else None
    return isinstance(asked_at, int | float) and isinstance(saved_at, int | float) and saved_at >= asked_at > 0


def _took_s(run_dir: Path) -> float | None:
    record = files.read_json(run_dir / names.CHECKPOINT_LEVELS)
    levels = record.get("levels") if isinstance(record, dict) else None
    for level in (CheckpointLevel.CONFIRMED, CheckpointLevel.MOUNTED):
        item = levels.get(level) if isinstance(levels, dict) else None
        if isinstance(item, dict) and (took := _between(item)) is not None:
            return took
    return None


def _between(item: dict[str, Any]) -> float | None:
    at, saved = item.get("at"), item.get("saved_at")
    if isinstance(at, int | float) and isinstance(saved, int | float) and at >= saved > 0:
        return float(at - saved)
    return None


def _first_seen(run_dir: Path, attempt: int) -> float:
    """When the status daemon first saw this attempt's process: a restart of the stage begins no new count."""
    with contextlib.suppress(UsageError):
        status = Status.from_json(files.read_json(run_dir / names.STATUS))
        return status.started if status.attempt == attempt else 0.0
    return 0.0
