"""Curves with bounds: points of (step, value), thinned so that peaks stay, and what changed since a moment."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Final

from control_panel.shapes import METRICS_MAX, POINTS_MAX, SERIES_MAX

Point = tuple[int, float]
Curves = dict[str, dict[str, list[list[float]]]]  # run -> metric -> [[step, y], ...]
JOURNAL_MAX: Final = 4000  # points that can be told one by one; whoever is further behind gets whole curves


def append(points: list[Point], step: int, value: float) -> None:
    """Add a point. What lies at its step or after it goes: the run went back there and does that part anew."""
    while points and points[-1][0] >= step:
        points.pop()
    points.append((step, value))


def thin(points: list[Point]) -> list[Point]:
    """About half of the points: of each four neighbours the lowest and the highest stay, and both ends do."""
    kept: list[Point] = []
    last = len(points) - 1
    for start in range(0, len(points), 4):
        group = range(start, min(start + 4, len(points)))
        chosen = {min(group, key=lambda at: points[at][1]), max(group, key=lambda at: points[at][1])}
        kept += [points[at] for at in group if at in chosen or at in (0, last)]
    return kept


class SeriesStore:
    """All curves. Not safe from several threads: its model holds a lock."""

    def __init__(self) -> None:
        self._curves: dict[str, dict[str, list[Point]]] = {}
        self._replaced: dict[tuple[str, str], int] = {}  # seq at which a curve changed otherwise than by new points
        self._journal: deque[tuple[int, str, str, Point]] = deque()
        self._forgotten = 0  # the highest seq that the journal no longer has whole
        self._total = 0

    def add(self, seq: int, run: str, metric: str, points: Iterable[Point]) -> bool:
        """Whether anything was added. Not finite numbers and metrics beyond METRICS_MAX are left out."""
        metrics = self._curves.setdefault(run, {})
        fresh = [(step, float(f"{value:.6g}")) for step, value in points if math.isfinite(value)]
        if not fresh or (metric not in metrics and len(metrics) >= METRICS_MAX):
            return False
        if metric not in metrics:
            metrics[metric] = []
            self._replaced[run, metric] = seq  # told whole: whoever knew an older curve of this name drops that
        curve = metrics[metric]
        for step, value in fresh:
            before = len(curve)
            append(curve, step, value)
            self._total += len(curve) - before
            self._note(seq, run, metric, (step, value))
            if len(curve) > SERIES_MAX:
                self._thin(seq, run, metric)
        while self._total > POINTS_MAX and self._thin(seq, *self._longest()):
            pass
        return True

    def drop(self, runs: Iterable[str]) -> None:
        """Forget these runs' curves."""
        for run in runs:
            gone = self._curves.pop(run, {})
            self._total -= sum(map(len, gone.values()))
            for metric in gone:
                self._replaced.pop((run, metric), None)
            self._journal = deque(item for item in self._journal if item[1] != run)

    def snapshot(self) -> Curves:
        return {
            run: {metric: [list(point) for point in curve] for metric, curve in metrics.items()}
            for run, metrics in self._curves.items()
            if metrics
        }

    def since(self, seq: int) -> tuple[Curves, Curves]:
        """(new points, whole curves that replace what was there) of after `seq`."""
        points: Curves = {}
        whole: Curves = {}
        if seq < self._forgotten:
            return {}, self.snapshot()
        for (run, metric), at in self._replaced.items():
            if at > seq:
                whole.setdefault(run, {})[metric] = [list(point) for point in self._curves[run][metric]]
        for at, run, metric, point in reversed(self._journal):
            if at <= seq:
                break
            if metric not in whole.get(run, {}):
                points.setdefault(run, {}).setdefault(metric, []).append(list(point))
        for metrics in points.values():
            for told in metrics.values():
                told.reverse()
        return points, whole

    def _note(self, seq: int, run: str, metric: str, point: Point) -> None:
        self._journal.append((seq, run, metric, point))
        while len(self._journal) > JOURNAL_MAX:
            self._forgotten = self._journal.popleft()[0]

    def _longest(self) -> tuple[str, str]:
        return max(
            ((run, metric) for run, metrics in self._curves.items() for metric in metrics),
            key=lambda key: len(self._curves[key[0]][key[1]]),
        )

    def _thin(self, seq: int, run: str, metric: str) -> bool:
        """Whether there was anything to leave out."""
        curve = self._curves[run][metric]
        fewer = thin(curve)
        self._total -= len(curve) - len(fewer)
        shorter = len(fewer) < len(curve)
        curve[:] = fewer
        self._replaced[run, metric] = seq
        return shorter


def fold_points(curves: Curves, points: Mapping[str, Mapping[str, list[list[float]]]]) -> None:
    """Add a delta's `points` to a snapshot's `series`, as a view does it."""
    for run, metrics in points.items():
        for metric, told in metrics.items():
            curve = curves.setdefault(run, {}).setdefault(metric, [])
            for step, value in told:
                while curve and curve[-1][0] >= step:
                    curve.pop()
                curve.append([step, value])
