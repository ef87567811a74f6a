"""How fast a run is and how long it will take, from what it says of its progress in this attempt alone.

After a resume the steps before it say nothing: they took their time on another VM, in another hour. So everything
begins anew with each attempt, and the first steps (compiling, filling caches) do not count.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bridgehead import names
from bridgehead.records import is_number

WARM_UP_STEPS: Final = 20  # fewer when there are few: a twentieth of them, at least 1
SMOOTHING_S: Final = 120.0  # the newest two minutes weigh most
SPREAD_MIN: Final = 0.03  # nobody's estimate is better than that
TAIL_BYTES: Final = 64 * 1024  # some 300 events
_INTERVALS_MIN: Final = 2


class Pace:
    """Fed with the events of progress.jsonl in their order."""

    def __init__(self, attempt: int = 1) -> None:
        self.attempt = attempt
        self._steps, self._epochs = _Track(), _Track()

    def add(self, event: Mapping[str, Any]) -> None:
        """Take in one event; anything that is none counts for nothing."""
        attempt, kind = event.get("attempt", self.attempt), event.get("event", "progress")
        if type(attempt) is int and attempt != self.attempt:
            self.attempt = attempt
            self._begin()
        if kind == "resumed":
            self._begin()
        elif kind == "progress":
            at = _number(event.get("at"))
            self._steps.add(at, _number(event.get("step")), _number(event.get("total_steps")))
            self._epochs.add(at, _number(event.get("epoch")), _number(event.get("total_epochs")))

    @property
    def rate_per_s(self) -> float | None:
        """Steps a second, smoothed; None until the warm-up is over, and for who counts no steps."""
        return self._steps.rate

    @property
    def eta_s(self) -> list[float] | None:
        """[least, most] seconds to the end, as of the newest progress; None while that would be a guess.

        Between the smoothed rate and that of the whole attempt, and wider while little has been seen: by
        1 / (2 sqrt(n)) after n intervals, at least by SPREAD_MIN. A rule of thumb of this project, no interval of
        confidence.
        """
        return self._steps.eta_s if self._steps.total else self._epochs.eta_s

    def _begin(self) -> None:
        self._steps, self._epochs = _Track(), _Track()


@dataclass
class _Track:
    """One counter that grows towards `total`."""

    total: float = 0.0
    rate: float | None = None
    _first: float | None = None  # where this attempt began
    _start: tuple[float, float] | None = None  # (at, done) once warm
    _last: tuple[float, float] = (0.0, 0.0)
    _intervals: int = 0

    def add(self, at: float, done: float, total: float) -> None:
        self.total = total
        if self._first is None or done < self._last[1]:  # the first, or it went back without a word
            self._first, self._start, self.rate, self._intervals = done, None, None, 0
        elif self._start is None:
            if done - self._first >= self._warm_up():
                self._start = (at, done)
        elif at > self._last[0] and done > self._last[1]:
            took_s = at - self._last[0]
            rate, weight = (done - self._last[1]) / took_s, 1 - math.exp(-took_s / SMOOTHING_S)
            self.rate = rate if self.rate is None else self.rate + weight * (rate - self.rate)
            self._intervals += 1
        else:
            return  # no step further: its time counts with the next one
        self._last = (at, done)

    @property
    def eta_s(self) -> list[float] | None:
        if self.rate is None or self._start is None or not self.total or self._intervals < _INTERVALS_MIN:
            return None
        overall = (self._last[1] - self._start[1]) / (self._last[0] - self._start[0])
        left, spread = max(0.0, self.total - self._last[1]), 1 + max(SPREAD_MIN, 0.5 / math.sqrt(self._intervals))
        fast, slow = max(self.rate, overall) * spread, min(self.rate, overall) / spread
        return [round(left / fast, 1), round(left / slow, 1)]

    def _warm_up(self) -> float:
        return min(WARM_UP_STEPS, max(1, self.total // 20)) if self.total else WARM_UP_STEPS


def of_run(run_dir: Path, attempt: int) -> Pace:
    """From the end of the run's progress.jsonl, for who looks once. Of what it holds, this attempt alone counts."""
    pace = Pace(attempt)
    for event in parse(_tail(run_dir / names.PROGRESS)):
        if event.get("attempt", attempt) == attempt:
            pace.add(event)
    return pace


def parse(lines: list[bytes]) -> list[dict[str, Any]]:
    """The lines that are JSON objects."""
    found = []
    for line in lines:
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(event, dict):
            found.append(event)
    return found


def _tail(path: Path) -> list[bytes]:
    try:
        with path.open("rb") as handle:
            start = max(0, handle.seek(0, os.SEEK_END) - TAIL_BYTES)
            handle.seek(start)
            return handle.read(TAIL_BYTES).split(b"\n")[1 if start else 0 : -1]
    except OSError:
        return []


def _number(value: object) -> float:
    return float(value) if is_number(value) else 0.0
