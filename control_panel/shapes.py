"""What the panel shows, as plain data: one frozen record for each VM, run, log line, queue line, artifact and alert.

`to_json()` gives the keys that views read; keys are only ever added. Times are seconds since 1970, sizes are bytes,
names that end in `_s` are seconds of time that passes, fractions are 0 to 1. Ages are rounded (see `age`), so that a
record does not change at each look: what stands still is not sent again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

LINE_MAX: Final = 2000  # characters of one log line
SERIES_MAX: Final = 1000  # points of one curve; more are thinned to half
POINTS_MAX: Final = 16_000  # of all curves together: some 250 KB of a snapshot
METRICS_MAX: Final = 8  # of one run


class VmState(StrEnum):
    LIVE = "live"
    SILENT = "silent"  # not heard of for too long, or its requests are refused
    LOST = "lost"
    ENDED = "ended"
    RELEASED = "released"


class Level(StrEnum):
    """Of a log line."""

    INFO = "info"
    WARN = "warn"
    ERROR = "error"
    STDERR = "stderr"  # where it can be known: a run's two streams arrive as one, so only by a mark of its own
    NOTE = "note"  # the panel's own word, not the run's


class HashState(StrEnum):
    VERIFIED = "verified"  # the bridge compared its digest on arrival; a bundle: all of `bundle verify` held
    ARRIVING = "arriving"
    UNCHECKED = "unchecked"
    BAD = "bad"


@dataclass(frozen=True)
class Shape:
    """Base of all: fields out as JSON."""

    def to_json(self) -> dict[str, Any]:
        return {**vars(self)}  # not asdict: it copies deep, and nothing in here is ever changed


@dataclass(frozen=True)
class Vm(Shape):
    """One VM. `gauges`: gpu {"use": 0 to 1 or None}; gpu_memory, ram, disk, store {"used", "total"} in bytes."""

    id: str
    state: VmState
    accelerator: str = ""
    up_s: float = 0.0
    cap_s: float | None = None  # None: not known
    seen_s: float = 0.0  # age of its last sign of life
    gauges: dict[str, dict[str, float | None]] = field(default_factory=dict)
    kept_alive_by: str = ""  # "cell", or why it stays
    tunnel: str = ""  # what is wrong with its way to the bridge; "" for nothing
    image_drift: str = ""
    note: str = ""
    seen_at: float = 0.0
    local: bool = False  # a notebook VM on this machine


@dataclass(frozen=True)
class Run(Shape):
    """One run. `checkpoint`: {"local", "mounted", "confirmed"}, each {"step", "age_s", "at"} or None.

    `at_risk`: {"seconds", "steps", "level"}: what the VM's death right now would cost; seconds None: all of it.
    `eta_s`: [least, most] or None. `resumed`: [[attempt, step]], where the later attempts began.
    """

    id: str
    stage: str
    vm: str = ""
    state: str = "queued"
    waits_for: str = ""
    attempt: int = 1
    step: int = 0
    total_steps: int = 0
    epoch: int = 0
    total_epochs: int = 0
    rate_per_s: float | None = None
    eta_s: list[float] | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    checkpoint: dict[str, Any] = field(default_factory=lambda: {"local": None, "mounted": None, "confirmed": None})
    at_risk: dict[str, Any] | None = None
    verdict: str = ""
    failure: str = ""
    reason: str = ""
    next: str = ""
    created: float = 0.0
    updated: float = 0.0
    exit_code: int | None = None
    log_bytes: int = 0
    resumed: list[list[int]] = field(default_factory=list)
    bar: str = ""  # the unfinished last line of its log: a progress bar as it stands
    message: str = ""  # what the run itself said last
    cost: dict[str, Any] | None = None  # see run_control/run_cost.py; None where the project says nothing about money
    stalled_s: float | None = None  # so long without progress, many times what is usual
    verdict_why: str = ""  # what the gate found wanting
    stopped_by: int | None = None  # number of the line that asked it to stop; None while none did
    stopping: dict[str, Any] | None = None  # since when its VM has it save and leave, and why if no person asked


@dataclass(frozen=True)
class LogLine(Shape):
    """One line as it may be shown. `n` counts the lines of the whole panel from 1; 0 until the model has it."""

    run: str
    text: str
    level: Level = Level.INFO
    vm: str = ""
    t: float = 0.0
    n: int = 0

    def to_json(self) -> dict[str, Any]:
        return {"n": self.n, "t": self.t, "vm": self.vm, "run": self.run, "level": str(self.level), "text": self.text}


@dataclass(frozen=True)
class QueueLine(Shape):
    """One line of queue.txt and its fate. `n`: its number in the ledger, 0 while no bridge has taken it."""

    n: int
    id: str  # of the press that sent it, else the ledger's
    line: str  # an sh: line decoded
    state: str  # sent, taken, started, done, failed, rejected, stopped, waiting
    run: str = ""
    why: str = ""
    exit_code: int | None = None
    t: float = 0.0
    began: bool = True  # of a run that has ended: whether an attempt of it ever started


@dataclass(frozen=True)
class Artifact(Shape):
    """A file that a run made, or a whole bundle. `path` is below in/<run>/."""

    run: str
    path: str
    size: int
    hash_state: HashState
    kind: str  # bundle, encoder, results, other
    t: float = 0.0
    note: str = ""  # what a check found
    checked_at: float = 0.0  # when that was, seconds since 1970; 0: never, or not since it changed


@dataclass(frozen=True)
class Alert(Shape):
    """What needs a person. `key` stays the same as long as it is the same trouble; `t` is when it was first seen."""

    key: str
    level: str  # warn, bad
    text: str
    next: str
    t: float = 0.0


@dataclass(frozen=True)
class Cost(Shape):
    """What the runs cost, in the provider's `unit`. `finish`: [least, most] to the end of what is queued."""

    balance: float | None
    unit: str
    burn_per_h: float | None
    spent: float | None
    finish: list[float] | None
    dry_at: float | None  # when the balance is used up
    as_of: float


def age(seconds: float) -> float:
    """Rounded down to what is worth a repaint: 5 s within two minutes, 30 s within an hour, then a minute."""
    grain_s = 5 if seconds < 120 else 30 if seconds < 3600 else 60
    return float(max(0, seconds) // grain_s * grain_s)
