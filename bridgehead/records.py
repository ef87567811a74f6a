"""The records that cross the wire or lie on a disk, each with `"v"`.

Writers are strict, readers are tolerant: unknown keys are ignored, missing ones take their default, so a record
of the same version with one field more can still be read. Golden samples are in tests/golden/.
Times are seconds since 1970 (UTC), sizes are bytes.
"""

from __future__ import annotations

import dataclasses
import sys
import types
import typing
from dataclasses import dataclass, field
from typing import Any, Self, TypeGuard

from bridgehead import names
from bridgehead.errors import UsageError
from bridgehead.names import CheckpointLevel, RunState


@dataclass(frozen=True)
class Record:
    """Base of all records: plain JSON out, and back in with the types of the fields checked."""

    def to_json(self) -> dict[str, Any]:
        return {"v": names.RECORD_VERSION, **dataclasses.asdict(self)}

    @classmethod
    def from_json(cls, data: object) -> Self:
        """Raises UsageError when `data` is not such a record or is of a newer version."""
        if not isinstance(data, dict):
            raise UsageError(f"not a {cls.__name__} record: {type(data).__name__}")
        if data.get("v", names.RECORD_VERSION) != names.RECORD_VERSION:
            raise UsageError(
                f"a {cls.__name__} record of version {data.get('v')!r}; this is {names.RECORD_VERSION}",
                hint="both machines must run the same Bridgehead: run the bootstrap cell again",
            )
        values = {}
        for name, hint in _hints(cls).items():
            if name in data:
                values[name] = _read(hint, data[name], f"{cls.__name__}.{name}")
        try:
            return cls(**values)
        except TypeError as error:
            raise UsageError(f"{cls.__name__} record: {error}") from None


@dataclass(frozen=True)
class Needs(Record):
    """What a stage declares; stages run side by side while the sum fits the VM."""

    gpu_memory_gb: float = 0.0
    cpus: float = 1.0
    memory_gb: float = 0.0


@dataclass(frozen=True)
class Pins(Record):
    """What a run was pinned to when its line was taken; all empty: nothing was. Prices are text: `1.07 CU`."""

    spec_id: str = ""  # hex SHA-256 of `spec` in its canonical form
    spec: dict[str, Any] = field(default_factory=dict)  # run_control/run_spec.py: RunSpec
    exact: bool = False  # it does not start with other code than `spec` names
    rate: str = ""  # of an hour; "" when it is not known
    unpriced: str = ""  # why it is not
    price_from: str = ""  # source and age of the rate
    estimate: str = ""  # of the whole run, as it was queued
    budget_s: float = 0.0  # of running, over all attempts: what its caps allow; 0: no cap
    image: dict[str, Any] = field(default_factory=dict)  # where its like ran before; another one is told
    stored_gb: float = 0.0  # of all checkpoints that are kept, in 10^9 bytes; 0: not known
    exports: bool = False  # a stage that exports comes after it: what that takes is looked for now


@dataclass(frozen=True)
class StageSpec(Record):
    """One stage of bridgehead.toml, resolved: what a VM needs to know to run it."""

    name: str
    command: str  # a shell-split command line, or "bridgehead:<shipped stage>"
    after: list[str] = field(default_factory=list)
    needs: Needs = field(default_factory=Needs)
    config: dict[str, Any] = field(default_factory=dict)
    checkpoint_every_epochs: int = 5
    checkpoint_every_s: float = 0.0  # 0: not by the clock
    keep_checkpoints: int = 3
    stop_grace_s: float = 60.0  # SIGTERM → this long to save → SIGKILL
    checkpoint_every_steps: int = 0  # 0: not by steps
    retries: int = 2  # of one attempt, after a death that nobody here caused
    resume_from: str = ""  # a run of the same stage: begin at its newest checkpoint
    allow: list[str] = field(default_factory=list)  # names.Allow: what may differ from the checkpoint's own
    pins: Pins = field(default_factory=Pins)


@dataclass(frozen=True)
class StoreSpec(Record):
    """[store] of bridgehead.toml: where checkpoints climb to. Secrets are never in it."""

    kind: str = "mount"  # names.StoreKind
    path: str = ""  # mount, folder: empty means what the notebook offers; drive: a folder's name
    bucket: str = ""  # s3
    prefix: str = ""  # s3
    endpoint: str = ""  # s3, and another address for the Drive API
    region: str = ""
    confirm: bool = True  # ask the Drive API whether what is on the mount has arrived, when credentials allow it
    quota_gb: float = 0.0  # 0: ask the store
    upload_mb_s: float = 0.0  # 0: no limit

    @property
    def folder(self) -> str:
        """The folder on the VM that the project names; "" when it is what the notebook offers, or no folder at all."""
        on_the_vm = self.kind in (names.StoreKind.MOUNT, names.StoreKind.FOLDER) and self.path.startswith("/")
        return self.path if on_the_vm else ""


@dataclass(frozen=True)
class VmRules(Record):
    """[vm] of bridgehead.toml, as far as a VM has to know it."""

    lost_after_s: float = 60.0
    cap_h: float = 0.0  # how long this kind of VM lives; 0: not known
    save_before_cap_s: float = 1200.0
    release_after_s: float = 0.0  # idle and everything confirmed for so long: the VM gives itself back; 0: never
    upload_mb_s: float = 0.0  # of artefacts to the laptop, in 10^6 bytes; 0: no limit
    log_max_mb: int = 1024  # of a run's log, on either machine, in 2^20 bytes


@dataclass(frozen=True)
class Command(Record):
    """One taken line of queue.txt, as the bridge delivers it (inside a signed document, kind "command")."""

    id: str  # uuid4 hex; identity for at-most-once
    seq: int  # place in the queue, from 1
    delivery: int  # grows with each delivery to any VM; the poll's `after` counts these
    vm_id: str  # the VM it was given to; a VM refuses what was given to another
    verb: str
    argument: str  # run: stage; sh: shell text; stop: run id; sync: ""
    created: float
    attempt: int = 1  # grows when a lost VM's run is given to the next one; fences the old one
    run_id: str = ""  # run and sh
    inputs: dict[str, str] = field(default_factory=dict)  # stage it comes after -> run id
    spec: StageSpec | None = None  # run and sh
    former_vm: str = ""  # attempt > 1: the VM that had it before
    former_gone: bool = False  # that VM is known to have ended, not only silent


@dataclass(frozen=True)
class RunRecord(Record):
    """run.json: what a run is. Written once an attempt starts."""

    run_id: str
    stage: str
    project: str
    command_id: str
    attempt: int
    vm_id: str
    created: float
    spec: StageSpec
    inputs: dict[str, str] = field(default_factory=dict)
    ship_sha256: str = ""
    payload_sha256: str = ""
    fingerprint: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ProcessRecord(Record):
    """process.json: who runs it. Pids get reused, so each comes with its start time and the boot id."""

    boot_id: str
    runner_pid: int
    runner_start: int  # clock ticks since boot, field 22 of /proc/<pid>/stat
    stage_pid: int = 0
    stage_start: int = 0
    session: int = 0
    started: float = 0.0
    oom_kills: int = -1  # the kernel's count of out-of-memory kills when the stage started; -1: it does not tell


@dataclass(frozen=True)
class CheckpointInfo(Record):
    """Where the newest checkpoint of a run stands."""

    step: int
    level: CheckpointLevel = CheckpointLevel.LOCAL
    at: float = 0.0  # when it reached this level
    size_bytes: int = 0
    epoch: int = 0


@dataclass(frozen=True)
class Status(Record):
    """status.json; written by the status daemon alone."""

    run_id: str
    stage: str
    state: RunState
    vm_id: str = ""
    attempt: int = 1
    step: int = 0
    total_steps: int = 0
    epoch: int = 0
    total_epochs: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    eta_s: float | None = None
    message: str = ""
    checkpoint: CheckpointInfo | None = None  # the newest one, at the level that it has
    resumed_from_step: int | None = None
    updated: float = 0.0
    levels: dict[str, Any] = field(default_factory=dict)  # CheckpointLevel -> CheckpointInfo of the newest that high
    saved_at: float = 0.0  # what was done since then would be lost with the VM right now; 0: all of it
    started: float = 0.0  # when this attempt's first process began; 0: it has not
    ended: float = 0.0  # when this attempt ended
    earlier_s: float = 0.0  # of running, in the attempts before this one
    progress_at: float = 0.0  # the newest word of progress
    interval_s: float = 0.0  # what is usual between two of them; 0: not known yet
    stopping: str = ""  # what else than a person already has it save or stop; "" for nothing, and for a person
    stopping_at: float = 0.0  # since when it is being stopped; 0: it is not

    def line(self) -> str:
        """status.txt: the same in one line for `cat` and `watch`; ages are as of `updated`."""
        parts = [self.run_id, str(self.state)]
        if self.total_epochs:
            parts.append(f"epoch {self.epoch}/{self.total_epochs}")
        if self.total_steps:
            parts.append(f"step {self.step}/{self.total_steps}")
        parts += [f"{name} {value:.4g}" for name, value in self.metrics.items()]
        if self.eta_s is not None and self.state not in names.ENDED:
            parts.append(f"ETA {duration(self.eta_s)}")
        if self.checkpoint is not None:
            parts.append(f"checkpoint {self._levels() or f'{self.checkpoint.step} {self.checkpoint.level}'}")
        if self.message:
            parts.append(self.message)
        return " · ".join(parts)

    def _levels(self) -> str:
        """`1200 local 3s, 1100 confirmed 2m04s`: of each step the highest level that it has, and since when."""
        told: dict[int, str] = {}
        for level in CheckpointLevel:
            item = self.levels.get(level)
            if isinstance(item, dict) and isinstance(item.get("step"), int) and isinstance(item.get("at"), int | float):
                told[item["step"]] = f"{item['step']} {level} {duration(self.updated - item['at'])}"
        return ", ".join(told[step] for step in sorted(told, reverse=True))


@dataclass(frozen=True)
class ExitRecord(Record):
    """exit.json: how an attempt ended. Its presence means that the run has ended."""

    run_id: str
    attempt: int
    state: RunState
    exit_code: int | None = None  # None: never started, or nobody was there to see it
    signal: str = ""  # e.g. SIGKILL
    failure_class: str = ""
    message: str = ""
    started: float = 0.0
    ended: float = 0.0
    leftovers: list[str] = field(default_factory=list)  # processes that outlived it and were ended
    retries: int = 0  # how often this attempt was started again after a death


@dataclass(frozen=True)
class AckRecord(Record):
    """Body of POST /queue/<id>/ack."""

    vm_id: str
    ack: names.Ack
    attempt: int
    reason: str = ""
    exit_code: int | None = None
    state: str = ""  # of the run, with `finished`
    failure_class: str = ""
    at: float = 0.0


@dataclass(frozen=True)
class Heartbeat(Record):
    """Body of POST /vms/<id>/heartbeat. Fractions are 0 to 1."""

    vm_id: str
    boot_id: str
    at: float
    ship_sha256: str = ""
    started: float = 0.0  # when this VM was first booted by us
    hostname: str = ""
    python: str = ""
    cpu_count: int = 0
    load: float = 0.0
    memory_total_bytes: int = 0
    memory_free_bytes: int = 0
    disk_total_bytes: int = 0
    disk_free_bytes: int = 0
    gpus: list[dict[str, Any]] = field(default_factory=list)  # name, memory_total_mb, memory_used_mb, use
    store: dict[str, Any] = field(default_factory=dict)  # path, ok, free_bytes, error
    cell_age_s: float | None = None  # since the cell's own heartbeat; None: never
    runs: list[dict[str, Any]] = field(default_factory=list)  # run_id, state, attempt, running_s, cost
    lifetime: dict[str, Any] = field(default_factory=dict)  # age_s, cap_s, stays_because, releases_at
    uploads: dict[str, Any] = field(default_factory=dict)  # paused, rate_bytes_s, eta_s, runs: what is on its way here
    address_seq: int = 0  # the number of the bridge's address that it follows; a newer one comes with the hints
    address_note: str = ""  # of an announcement that it refused, and why
    export_trial: dict[str, Any] = field(default_factory=dict)  # of one that failed here: what, hint, at


def is_number(value: object) -> TypeGuard[int | float]:
    """A finite one that fits a float: whoever writes JSON by hand may write four hundred digits, or NaN."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def duration(seconds: float) -> str:
    """`5h12m`, `3m04s`, `12s`."""
    whole = max(0, round(seconds))
    hours, rest = divmod(whole, 3600)
    minutes, secs = divmod(rest, 60)
    if hours:
        return f"{hours}h{minutes:02d}m"
    return f"{minutes}m{secs:02d}s" if minutes else f"{secs}s"


_HINTS: dict[type, dict[str, Any]] = {}


def _hints(cls: type) -> dict[str, Any]:
    """Types of a record's fields. Working them out costs more than all the rest of reading one, so it is done once."""
    known = _HINTS.get(cls)
    if known is None:
        hints = typing.get_type_hints(cls)
        known = _HINTS[cls] = {item.name: hints[item.name] for item in dataclasses.fields(cls)}
    return known


def _read(hint: Any, value: Any, where: str) -> Any:
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        options = [option for option in typing.get_args(hint) if option is not type(None)]
        return None if value is None else _read(options[0], value, where)
    if dataclasses.is_dataclass(hint):
        return typing.cast(Any, hint).from_json(value)
    plain = origin or hint
    if plain is Any:
        return value
    if plain is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(plain, type) and issubclass(plain, (RunState, CheckpointLevel, names.Ack)):
        try:
            return plain(value)
        except ValueError:
            raise UsageError(f"{where}: unknown value {value!r}") from None
    if not isinstance(value, plain) or (plain is int and isinstance(value, bool)):
        raise UsageError(f"{where}: expected {plain.__name__}, got {type(value).__name__}")
    if plain is list and typing.get_origin(typing.get_args(hint)[0]) is dict:
        for item in value:
            if not isinstance(item, dict):
                raise UsageError(f"{where}: expected a list of objects, got a {type(item).__name__} in it")
    return value
