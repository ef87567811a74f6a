"""Runs, VMs and commands as plain data: what `--json` prints, what tables and the panel show."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from bridge.ledger_rows import ENDED, REJECTED, CommandRow, VmRow
from bridgehead import files, names
from bridgehead.errors import NotFoundError, UsageError
from bridgehead.names import CheckpointLevel, FailureClass, RunState
from bridgehead.queue_lines import Verb
from bridgehead.records import CheckpointInfo, Status, duration
from run_control import pace, run_cost, state_words, verdicts
from run_control.pace import Pace
from run_control.project import Project

if TYPE_CHECKING:
    from bridge.ledger import Ledger
    from bridge.ledger_room import Shortage

RUN_VERBS = (Verb.RUN, Verb.SH)
RUN_HEADERS = ("RUN", "STATE", "PROGRESS", "METRICS", "ETA", "CHECKPOINT", "AT RISK", "COST", "VM")
VM_HEADERS = ("VM", "STATE", "SEEN", "MEMORY FREE", "DISK FREE", "GPU", "STORE")
COMMAND_HEADERS = ("#", "STATE", "LINE", "RUN", "WHY")


@dataclass(frozen=True)
class RunView:
    """One run: what the ledger decided, and what the VM last said. Times in seconds since 1970, sizes in bytes."""

    run_id: str
    stage: str
    state: str
    seq: int
    attempt: int
    vm_id: str
    created: float
    updated: float
    exit_code: int | None = None
    failure_class: str = ""
    reason: str = ""
    step: int = 0
    total_steps: int = 0
    epoch: int = 0
    total_epochs: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    eta_s: float | None = None
    message: str = ""
    checkpoint: dict[str, Any] | None = None
    levels: dict[str, Any] = field(default_factory=dict)  # local, mounted, confirmed: the newest that high, with age_s
    at_risk: dict[str, Any] | None = (
        None  # what the VM's death right now would cost: seconds, steps, and by which level
    )
    resumed_from_step: int | None = None
    status_age_s: float | None = None
    vm_state: str = ""  # its VM's own word on this attempt
    waits_for: str = ""  # why it stands still, and what to do about it; empty while it works or has ended
    cost: dict[str, Any] | None = None  # see run_cost.of; None where the project says nothing about money
    stalled_s: float | None = None  # so long without progress, many times what is usual; None: it is not stalled
    rate_per_s: float | None = None  # steps a second of this attempt, once it is warm
    eta_range_s: list[float] | None = None  # [least, most], from that rate
    stopping: dict[str, Any] | None = None  # "at": since when it is asked to save and leave; "why": by no person

    @property
    def ended(self) -> bool:
        return self.state in ENDED

    @property
    def stays(self) -> str:
        """What a run that is done left on its VM, and why; "" when all of it is here."""
        return self.reason if self.state == RunState.DONE else ""

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def row(self) -> tuple[str, ...]:
        """Cells under RUN_HEADERS."""
        failed = self.state in (RunState.FAILED, REJECTED) and (self.failure_class or self.reason)
        if self.state == RunState.STOPPED and self.failure_class != FailureClass.STOPPED:
            failed = self.failure_class  # by its cap, not by a person
        return (
            self.run_id,
            f"{self.state} ({failed})" if failed else state_words.shown(self.state, self.vm_state),
            _progress(self),
            " ".join(f"{name} {value:.4g}" for name, value in self.metrics.items()),
            _eta(self),
            _climbed(self.levels) or _checkpoint(self.checkpoint),
            _risk(self),
            run_cost.in_words(self.cost, ended=self.ended),
            self.vm_id,
        )


@contextmanager
def ledger_of(project: Project) -> Iterator[Ledger]:
    """The project's ledger. Raises NotFoundError before the first `bridgehead up` has made it."""
    from bridge.ledger import Ledger

    if not project.ledger.is_file():
        raise NotFoundError("no line of this project was ever taken", hint="bridgehead up")
    ledger = Ledger(project.ledger)
    try:
        yield ledger
    finally:
        ledger.close()


def runs(project: Project, *, now: float | None = None) -> list[RunView]:
    """All runs, oldest first; none before the first `up`."""
    if not project.ledger.is_file():
        return []
    with ledger_of(project) as ledger:
        short = ledger.no_room()
        views = [run_view(project, row, now=now, short=short) for row in ledger.commands() if row.run_id]
    return [_paced(project, view) for view in views]


def run(project: Project, text: str) -> RunView:
    """The run that `text` names: a run id, the start of one, or a stage (its newest run). Raises NotFoundError."""
    with ledger_of(project) as ledger:
        return _paced(project, run_view(project, ledger.find_run(text), short=ledger.no_room()))


def with_pace(view: RunView, found: Pace) -> RunView:
    """The view with how fast the run is; as it was when the pace is another attempt's, or the run has ended."""
    if view.ended or found.attempt != view.attempt or not view.vm_state or view.vm_state in names.ENDED:
        return view
    return dataclasses.replace(view, rate_per_s=found.rate_per_s, eta_range_s=found.eta_s)


def _paced(project: Project, view: RunView) -> RunView:
    return view if view.ended else with_pace(view, pace.of_run(project.run(view.run_id), view.attempt))


def run_view(project: Project, row: CommandRow, *, now: float | None = None, short: Sequence[Shortage] = ()) -> RunView:
    """The ledger says whose the run is and how it ended; the status file says how far it is.

    `short`: what this laptop has no room for, of any run.
    """
    moment = time.time() if now is None else now
    return view_of(project, row, read_status(project, row.run_id), moment, short=short)


def view_of(
    project: Project,
    row: CommandRow,
    status: Status | None,
    now: float,
    *,
    short: Sequence[Shortage] = (),
    levels: Mapping[str, dict[str, Any]] | None = None,
) -> RunView:
    """`run_view` for who has read the status file already; None: there is none. `levels`: its `levels_of`, if known."""
    view = RunView(
        run_id=row.run_id,
        stage=row.stage,
        state=row.state,
        seq=row.seq,
        attempt=row.attempt,
        vm_id=row.vm_id,
        created=row.created,
        updated=row.updated,
        exit_code=row.exit_code,
        failure_class=verdicts.failure_class(project.run(row.run_id), row),
        reason=row.reason,
    )
    if status is not None:
        view = _with_status(view, row, status, now, levels_of(status) if levels is None else levels)
    newest = state_words.checkpoints(view.levels, view.checkpoint)
    family = "" if row.vm_id else row.family
    waits = state_words.waits_for(project, view.state, view.vm_state, newest, family=family)
    stalled_s = run_cost.stalled_s(view.state, status, now) if view.vm_state else None
    if stalled_s is not None and status is not None:
        waits = run_cost.stalled_words(view.run_id, status.interval_s)
    mine = [item for item in short if item.run_id == row.run_id and not view.ended]
    waits = "; ".join(filter(None, (waits, state_words.no_room(mine))))
    cost = run_cost.of(row.spec, view.state, status, view.eta_s, now)
    return dataclasses.replace(view, waits_for=waits, cost=cost, stalled_s=stalled_s)


def _with_status(
    view: RunView, row: CommandRow, status: Status, moment: float, levels: Mapping[str, dict[str, Any]]
) -> RunView:
    checkpoint = None
    if status.checkpoint is not None:
        age_s = max(0.0, moment - status.checkpoint.at)
        checkpoint = {**status.checkpoint.to_json(), "age_s": round(age_s, 1)}
    mine = status.attempt == row.attempt and status.vm_id == row.vm_id
    return dataclasses.replace(
        view,
        state=_state(row, status) if mine else str(row.state),
        vm_state=str(status.state) if mine else "",
        step=status.step,
        total_steps=status.total_steps,
        epoch=status.epoch,
        total_epochs=status.total_epochs,
        metrics=status.metrics,
        eta_s=status.eta_s if mine else None,  # of an attempt that is over: how far it came, not how long it takes
        message=status.message if mine else "",
        checkpoint=checkpoint,
        levels={name: {**item, "age_s": round(max(0.0, moment - item["at"]), 1)} for name, item in levels.items()},
        at_risk=None if view.ended or status.state in names.ENDED else _at_risk(status, levels, moment),
        resumed_from_step=status.resumed_from_step if mine else None,
        status_age_s=round(max(0.0, moment - status.updated), 1),
        stopping={"why": status.stopping, "at": status.stopping_at} if mine and status.stopping_at else None,
    )


def vms(project: Project, *, now: float | None = None) -> list[dict[str, Any]]:
    """All VMs that ever reported, oldest first."""
    if not project.ledger.is_file():
        return []
    moment = time.time() if now is None else now
    with ledger_of(project) as ledger:
        return [vm_view(row, moment) for row in ledger.vms()]


def vm_row(vm: dict[str, Any]) -> tuple[str, ...]:
    """Cells under VM_HEADERS."""
    beat = vm["heartbeat"]
    gpus = beat.get("gpus") or []
    store = beat.get("store") or {}
    released = vm.get("released")
    return (
        vm["vm_id"],
        f"{vm['state']} ({released['because']})" if released else vm["state"],
        f"{duration(vm['seen_age_s'])} ago",
        _gib(beat.get("memory_free_bytes")),
        _gib(beat.get("disk_free_bytes")),
        ", ".join(str(gpu.get("name", "?")) for gpu in gpus) or "none",
        state_words.store(store) if beat and not released else "",
    )


def commands(project: Project, newest: int | None = None) -> list[dict[str, Any]]:
    """Every taken line of the queue, or the `newest` of them, oldest first."""
    if not project.ledger.is_file():
        return []
    with ledger_of(project) as ledger:
        return commands_of(project, ledger.commands(limit=newest), ledger.no_room())


def commands_of(
    project: Project, rows: Sequence[CommandRow], short: Sequence[Shortage], known: Mapping[str, RunView] | None = None
) -> list[dict[str, Any]]:
    """The same for rows and shortages that were read already. `known`: views of runs by id, of this very moment."""
    return [_command(row, _waits_for(project, row, short, known or {})) for row in rows]


def notes(project: Project) -> list[dict[str, Any]]:
    """What the bridge has to say about the queue file: edited lines, a mistake in the project file."""
    if not project.ledger.is_file():
        return []
    with ledger_of(project) as ledger:
        return [dataclasses.asdict(item) for item in ledger.notes()]


def command_row(command: dict[str, Any]) -> tuple[str, ...]:
    """Cells under COMMAND_HEADERS."""
    line = command["line"]
    if command["verb"] == Verb.SH:  # as text and not as base64; whom it is for stays
        pin = f"{line.split()[0]} " if line.startswith("@") else ""
        line = f"{pin}{Verb.SH}: {command['argument']}"
    shown = line if len(line) <= 60 else line[:59] + "…"
    why = "; ".join(filter(None, (command["waits_for"], command["reason"])))
    return (str(command["seq"]), state_words.shown(command["state"], ""), shown, command["run_id"], why)


def _state(row: CommandRow, status: Status) -> str:
    """The ledger's word stands when a run has ended or is lost; in between its VM knows better."""
    if row.ended or row.state == RunState.LOST:
        return str(row.state)
    if status.state in names.ENDED:
        return str(RunState.RUNNING)  # it has ended over there; what it made is still on its way
    return str(status.state)


def read_status(project: Project, run_id: str) -> Status | None:
    """What its VM last said of the run; None when it has said nothing that can be read."""
    record = files.read_json(project.run(run_id) / names.STATUS)
    if record is None:
        return None
    try:
        return Status.from_json(record)
    except UsageError:
        return None  # written by a newer Bridgehead; the ledger's part is still right


def _waits_for(project: Project, row: CommandRow, short: Sequence[Shortage], known: Mapping[str, RunView]) -> str:
    if not row.run_id or row.ended:
        return ""
    return (known.get(row.run_id) or run_view(project, row, short=short)).waits_for


def vm_view(row: VmRow, now: float) -> dict[str, Any]:
    """One VM as `vms` lists it."""
    release = {} if row.unpaired else state_words.release_of(row.heartbeat)
    reason = state_words.release_text(release, now) if release else row.reason
    return {
        "vm_id": row.vm_id,
        "state": "unpaired" if row.unpaired else state_words.RELEASED if release else row.state,
        "first_seen": row.first_seen,
        "last_seen": row.last_seen,
        "seen_age_s": round(max(0.0, now - row.last_seen), 1),
        "reason": "its requests are refused: run the bootstrap cell again" if row.unpaired else reason,
        "released": release or None,
        "heartbeat": row.heartbeat,
    }


def _command(row: CommandRow, waits_for: str) -> dict[str, Any]:
    return {
        "seq": row.seq,
        "line": row.text.strip(),
        "verb": row.verb,
        "argument": row.argument,
        "state": str(row.state),
        "run_id": row.run_id,
        "vm_id": row.vm_id,
        "attempt": row.attempt,
        "exit_code": row.exit_code,
        "reason": row.reason,
        "waits_for": waits_for,
        "created": row.created,
        "updated": row.updated,
    }


def _progress(view: RunView) -> str:
    if view.total_epochs:
        return f"epoch {view.epoch}/{view.total_epochs}"
    if view.total_steps:
        return f"step {view.step}/{view.total_steps}"
    return f"step {view.step}" if view.step else ""


def _eta(view: RunView) -> str:
    if view.ended:
        return ""
    if view.eta_range_s is not None:
        return "-".join(dict.fromkeys(duration(seconds) for seconds in view.eta_range_s))
    return duration(view.eta_s) if view.eta_s is not None else ""


def _checkpoint(checkpoint: dict[str, Any] | None) -> str:
    if checkpoint is None:
        return ""
    return f"{checkpoint['step']} {checkpoint['level']}, {duration(checkpoint['age_s'])} ago"


def levels_of(status: Status) -> dict[str, dict[str, Any]]:
    """Each level that it tells of in words that can be read: its newest checkpoint that high."""
    return {str(level): item for level in CheckpointLevel if (item := _level(status, level))}


def _level(status: Status, level: CheckpointLevel) -> dict[str, Any]:
    """Empty for what is not there or can't be read."""
    item = status.levels.get(level)
    try:
        info = CheckpointInfo.from_json(item)
        saved_at = float(item.get("saved_at") or 0.0) if isinstance(item, dict) else 0.0
    except (UsageError, TypeError, ValueError):
        return {}
    return {"v": names.RECORD_VERSION, **vars(info), "saved_at": saved_at}  # flat: to_json copies deep


def _at_risk(status: Status, levels: Mapping[str, dict[str, Any]], moment: float) -> dict[str, Any]:
    """By what was confirmed; by what is mounted where nothing was, which may not have arrived. Level "": all of it."""
    for level in (CheckpointLevel.CONFIRMED, CheckpointLevel.MOUNTED):
        item = levels.get(level)
        if item and item["saved_at"]:
            seconds = round(max(0.0, moment - item["saved_at"]), 1)
            return {"level": str(level), "seconds": seconds, "steps": max(0, status.step - item["step"])}
    return {"level": "", "seconds": None, "steps": status.step}


def _climbed(levels: dict[str, Any]) -> str:
    """`1200 local 3s, 1100 confirmed 2m04s`: of each step the highest level that it has."""
    by_step = {item["step"]: f"{item['step']} {level} {duration(item['age_s'])}" for level, item in levels.items()}
    return ", ".join(by_step[step] for step in sorted(by_step, reverse=True))


def _risk(view: RunView) -> str:
    if view.at_risk is None or view.ended:
        return ""
    if not view.at_risk["level"]:
        return "all of it"
    return f"{duration(view.at_risk['seconds'])} ({view.at_risk['level']})"


def _gib(size_bytes: object) -> str:
    return f"{size_bytes / 2**30:.1f} GiB" if isinstance(size_bytes, (int, float)) and size_bytes else ""
