"""All that the panel shows, with no widget in it: what was heard goes in, snapshots and numbered deltas come out.

A view that has the snapshot of some number and adds the deltas after it has what a snapshot taken then would hold
(`fold` is that sum, and the rule for a view in another language). The one exception: of a flood of log lines a delta
brings the newest and says how many it left out.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from control_panel.log_ring import LogRing
from control_panel.series import Point, SeriesStore, fold_points
from control_panel.shapes import Alert, Artifact, Cost, LogLine, QueueLine, Run, Shape, Vm

SNAPSHOT_LINES: Final = 2000
SNAPSHOT_TEXT_BYTES: Final = 180_000  # of its log; with the curves a snapshot stays under some 500 KB
DELTA_LINES: Final = 200
DELTA_TEXT_BYTES: Final = 32_000
_WHOLE: Final = ("queue", "artifacts", "cost", "alerts", "bridge", "next", "stages", "can", "project")
_KEYED: Final = ("vms", "runs")


@dataclass(frozen=True)
class Update:
    """What was heard; None: nothing new about that. `vms` and `runs` are all there are, or those of `some_…` alone."""

    vms: Sequence[Vm] | None = None
    runs: Sequence[Run] | None = None
    points: Mapping[str, Mapping[str, Sequence[Point]]] = field(default_factory=dict)  # run -> metric -> (step, y)
    lines: Sequence[LogLine] = ()
    queue: Sequence[QueueLine] | None = None
    artifacts: Sequence[Artifact] | None = None
    alerts: Sequence[Alert] | None = None
    cost: Cost | None = None
    bridge: Mapping[str, str] | None = None  # state, url, tunnel, trouble
    stages: Sequence[Mapping[str, Any]] | None = None  # name, after, command
    next: Mapping[str, str] | None = None  # text, action
    can: Mapping[str, Any] | None = None  # sh, and why not
    project: str | None = None


class PanelModel:
    """Safe from several threads; one lock, and no input or output under it."""

    def __init__(self, *, gen: str = "", clock: Callable[[], float] = time.time, log_lines: int = 20_000) -> None:
        """`gen` names this life of the model: a view that knows another one throws away what it has."""
        self.gen = gen or uuid.uuid4().hex[:12]
        self._clock = clock
        self._lock = threading.Lock()
        self._seq = 0
        self._keyed: dict[str, _Keyed] = {name: _Keyed() for name in _KEYED}
        self._whole: dict[str, Any] = {
            "queue": [],
            "artifacts": [],
            "cost": None,
            "alerts": [],
            "bridge": {"state": "unknown", "url": "", "tunnel": "", "trouble": ""},
            "next": {"text": "", "action": ""},
            "stages": [],
            "can": {"sh": False},
            "project": "",
        }
        self._changed_at: dict[str, int] = dict.fromkeys(_WHOLE, 0)
        self._series = SeriesStore()
        self._log = LogRing(log_lines)

    @property
    def seq(self) -> int:
        """Grows with each ingest that changed something."""
        return self._seq

    def ingest(self, update: Update) -> bool:
        """Take in what was heard. Returns whether anything is new to a view."""
        wholes = _wholes(update)  # made into JSON before the lock is taken
        keyed = {name: _by_id(getattr(update, name)) for name in _KEYED if getattr(update, name) is not None}
        with self._lock:
            seq = self._seq + 1
            changed = [self._keyed[name].replace(items, seq) for name, items in keyed.items()]
            for name, value in wholes.items():
                if value != self._whole[name]:
                    self._whole[name], self._changed_at[name] = value, seq
                    changed.append(True)
            known = self._keyed["runs"].items
            for run, metrics in update.points.items():
                for metric, points in metrics.items() if run in known else ():
                    changed.append(self._series.add(seq, run, metric, points))
            self._series.drop(self._keyed["runs"].gone_at(seq))
            changed.append(self._log.extend(seq, update.lines))
            if any(changed):
                self._seq = seq
            return any(changed)

    def snapshot(self, log_n: int = SNAPSHOT_LINES) -> dict[str, Any]:
        """All of it, with the newest `log_n` lines. `log_first` is the number of the first of them."""
        with self._lock:
            lines = self._log.newest(log_n, SNAPSHOT_TEXT_BYTES)
            return {
                "gen": self.gen,
                "seq": self._seq,
                "t": self._clock(),
                **{name: list(self._keyed[name].items.values()) for name in _KEYED},
                "series": self._series.snapshot(),
                "log": [line.to_json() for line in lines],
                "log_first": lines[0].n if lines else self._log.next_n,
                **self._whole,
            }

    def delta(
        self, since: int, *, lines_max: int = DELTA_LINES, text_max_bytes: int = DELTA_TEXT_BYTES
    ) -> dict[str, Any] | None:
        """What changed after number `since`; None when nothing did.

        Members are there only when they have something to say. Of VMs and runs that were known by then come those of
        their fields that changed. `drop`: so many new lines came before `lines` and are left out. `series`: whole
        curves in place of those known (they were thinned); `points` go onto curves.
        """
        with self._lock:
            if since >= self._seq:
                return None
            told: dict[str, Any] = {"gen": self.gen, "seq": self._seq, "t": self._clock()}
            gone = {name: self._keyed[name].gone_since(since) for name in _KEYED}
            for name in _KEYED:
                told[name] = self._keyed[name].since(since)
            points, series = self._series.since(since)
            lines, drop = self._log.since(since, lines_max, text_max_bytes)
            told |= {"gone": gone if any(gone.values()) else {}, "points": points, "series": series}
            told |= {"lines": [line.to_json() for line in lines], "drop": drop}
            told = {name: value for name, value in told.items() if value or name in ("gen", "seq", "t")}
            told |= {name: self._whole[name] for name in _WHOLE if self._changed_at[name] > since}
            return told

    def log_lines(self, count: int) -> list[LogLine]:
        """The newest lines, for a view that is drawn anew each time."""
        with self._lock:
            return self._log.newest(count, SNAPSHOT_TEXT_BYTES)


def fold(state: Mapping[str, Any], delta: Mapping[str, Any]) -> dict[str, Any]:
    """A snapshot with a delta added: what a view does with a patch. The log keeps all lines that it was given."""
    made = {**state, **{name: delta[name] for name in ("gen", "seq", "t", *_WHOLE) if name in delta}}
    gone: Mapping[str, list[str]] = delta.get("gone", {})
    for name in _KEYED:
        items = {item["id"]: item for item in state[name] if item["id"] not in gone.get(name, [])}
        items |= {item["id"]: {**items.get(item["id"], {}), **item} for item in delta.get(name, [])}
        made[name] = sorted(items.values(), key=lambda item: item["order"])
    curves = {run: {**metrics} for run, metrics in state["series"].items() if run not in gone.get("runs", [])}
    for run, metrics in delta.get("series", {}).items():
        curves[run] = {**curves.get(run, {}), **metrics}
    curves = {run: {name: list(curve) for name, curve in metrics.items()} for run, metrics in curves.items()}
    fold_points(curves, delta.get("points", {}))
    made["series"] = curves
    made["log"] = [*state["log"], *delta.get("lines", [])]
    return made


class _Keyed:
    """Entries by id, in the order of their first appearance, with the number at which each field changed or it went."""

    def __init__(self) -> None:
        self.items: dict[str, dict[str, Any]] = {}
        self._changed: dict[str, dict[str, int]] = {}  # id -> field -> number
        self._gone: dict[str, int] = {}
        self._next_order = 0

    def replace(self, items: dict[str, dict[str, Any]], seq: int) -> bool:
        """These are all there are now. Returns whether that changes anything."""
        changed = False
        for key in [key for key in self.items if key not in items]:
            del self.items[key], self._changed[key]
            self._gone[key] = seq
            changed = True
        for key, item in items.items():
            before = self.items.get(key)
            if before is None:
                self._next_order += 1
            made = {**item, "order": before["order"] if before else self._next_order}
            if made != before:
                fields = [name for name, value in made.items() if before is None or before[name] != value]
                self._changed.setdefault(key, {}).update(dict.fromkeys(fields, seq))
                self.items[key] = made
                changed = True
        return changed

    def since(self, seq: int) -> list[dict[str, Any]]:
        told = []
        for key, fields in self._changed.items():
            new = {name: self.items[key][name] for name, at in fields.items() if at > seq}
            if new:
                told.append({**new, "id": key})
        return told

    def gone_since(self, seq: int) -> list[str]:
        """Ids that went, perhaps to come back: whoever folds takes them out first."""
        return [key for key, at in self._gone.items() if at > seq]

    def gone_at(self, seq: int) -> list[str]:
        return [key for key, at in self._gone.items() if at == seq]


def _by_id(items: Sequence[Vm] | Sequence[Run]) -> dict[str, dict[str, Any]]:
    return {item.id: item.to_json() for item in items}


def _wholes(update: Update) -> dict[str, Any]:
    """The members that are told whole, as JSON."""
    told = {name: getattr(update, name) for name in _WHOLE if getattr(update, name) is not None}
    return {name: _plain(value) for name, value in told.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, Shape):
        return value.to_json()
    if isinstance(value, Mapping):
        return dict(value)
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
