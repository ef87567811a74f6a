"""From a line of queue.txt to a command in the ledger, or to a rejected line with its reason."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import sqlite3
import urllib.parse
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field

from bridge import ledger_claims, ledger_keys, ledger_releases
from bridge.ledger_rows import ENDED, REJECTED, VmState, fail_orphans, next_delivery
from bridge.project import PinRequest, ProjectView
from bridgehead import names
from bridgehead.errors import NotFoundError, UsageError
from bridgehead.names import Allow, FailureClass, RunState
from bridgehead.queue_lines import ALLOW_KEY, RESUME_KEY, SPEC_KEY, UNPRICED_KEY, QueueLine, Verb, nearest, parse_line
from bridgehead.records import StageSpec

_NOT_ENDED = f"state NOT IN ({', '.join(repr(state) for state in sorted(ENDED))})"


@dataclass
class _Draft:
    """The columns of a command that depend on its verb."""

    verb: str = ""
    argument: str = ""
    target_vm: str = ""
    state: str = RunState.QUEUED
    stage: str = ""
    spec: StageSpec | None = None
    inputs: dict[str, str] = field(default_factory=dict)
    vm_id: str = ""
    reason: str = ""


def take_line(db: sqlite3.Connection, text: str, project: ProjectView, now: float) -> int:
    """Insert one line inside the caller's transaction and return its seq. Never raises for what a line holds."""
    seq = int(db.execute("SELECT COALESCE(MAX(seq), 0) + 1 AS seq FROM commands").fetchone()["seq"])
    command_id = uuid.uuid4().hex
    try:
        draft = _resolve(db, _read(text), project, seq, now)
    except UsageError as error:
        draft = _Draft(state=REJECTED, reason=": ".join(filter(None, (error.message, error.hint))))
    except (ValueError, RecursionError, TypeError) as error:  # a fault of ours must not hold up the lines after it
        draft = _Draft(state=REJECTED, reason=f"Bridgehead can't read it ({type(error).__name__}): please report it")
    run_id = f"{draft.stage}-{seq:04d}-{command_id[:6]}" if draft.stage else ""
    delivery = next_delivery(db) if draft.vm_id else 0
    db.execute(
        "INSERT INTO commands (seq, id, digest, text, verb, argument, target_vm, state, run_id, stage, spec, inputs,"
        " vm_id, delivery, reason, created, updated) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            seq,
            command_id,
            hashlib.sha256(text.encode()).hexdigest(),
            text,
            draft.verb,
            draft.argument,
            draft.target_vm,
            draft.state,
            run_id,
            draft.stage,
            json.dumps(draft.spec.to_json()) if draft.spec else "",
            json.dumps(draft.inputs),
            draft.vm_id,
            delivery,
            draft.reason,
            now,
            now,
        ),
    )
    return seq


def find_run(db: sqlite3.Connection, text: str, *, not_ended: bool = False, vm_id: str = "") -> sqlite3.Row:
    """The run called `text`: a run id, a stage (its newest run) or the beginning of one run id alone.

    It can be looked for among the runs that have not ended, or on one VM. Raises NotFoundError with the nearest
    names, and UsageError when several run ids begin so.
    """
    among = _NOT_ENDED if not_ended else "1"
    query = f"SELECT * FROM commands WHERE run_id != '' AND {among} AND :vm_id IN ('', vm_id) AND "
    rows: list[sqlite3.Row] = []
    for clause in ("run_id = :text", "stage = :text ORDER BY seq DESC LIMIT 1", "instr(run_id, :text) = 1"):
        rows = db.execute(query + clause, {"vm_id": vm_id, "text": text}).fetchall() if text else []
        if len(rows) == 1:
            return rows[0]
    if rows:
        some = ", ".join(row["run_id"] for row in rows[-5:])
        raise UsageError(f"{len(rows)} runs begin with {text!r}", hint=f"say which: {some}")
    raise NotFoundError(f"no run {text!r}", hint=nearest(text, _known(db)))


def _read(text: str) -> QueueLine:
    if "\0" in text or "\ufffd" in text:
        raise UsageError("the line is not UTF-8 text", hint="save the file as UTF-8")
    line = parse_line(text)
    if line is None:
        raise UsageError("an empty line")
    return line


def _resolve(db: sqlite3.Connection, line: QueueLine, project: ProjectView, seq: int, now: float) -> _Draft:
    if line.verb is Verb.RUN:
        draft = _run(db, line, project)
    elif line.verb is Verb.SH:
        draft = _shell(db, line, project)
    elif line.verb is Verb.STOP:
        draft = _stop(db, line, project, seq, now)
    elif line.verb is Verb.RELEASE:
        ledger_releases.check(db, line.vm)
        draft = _Draft()
    else:
        draft = _Draft()
    draft.verb = line.verb
    if line.vm and line.verb is not Verb.STOP:
        draft.target_vm = line.vm
        vm = db.execute("SELECT state FROM vms WHERE vm_id = ?", (line.vm,)).fetchone()
        if vm is None or vm["state"] != VmState.LIVE:
            why = "has not been seen yet" if vm is None else f"is {vm['state']}"
            draft.reason = f"waits for {line.vm}, which {why}"
    return draft


def _run(db: sqlite3.Connection, line: QueueLine, project: ProjectView) -> _Draft:
    stage = line.argument
    if stage not in project.stages:
        raise UsageError(f"unknown stage {stage!r}", hint=nearest(stage, project.stages))
    overrides = dict(line.overrides)
    spec_id, unpriced = _text(overrides, SPEC_KEY), urllib.parse.unquote(_text(overrides, UNPRICED_KEY))
    if spec_id and (overrides or unpriced):
        raise UsageError(
            f"{SPEC_KEY}= says all of the run: nothing may stand beside it", hint=f"run:{stage} {SPEC_KEY}=ID"
        )
    spec = _with_overrides(db, project.stages[stage], overrides)
    inputs = {}
    for earlier in spec.after:
        row = db.execute(
            "SELECT run_id FROM commands WHERE stage = ? AND verb = ? AND state NOT IN (?, ?, ?)"
            " ORDER BY seq DESC LIMIT 1",
            (earlier, Verb.RUN, RunState.FAILED, RunState.STOPPED, REJECTED),
        ).fetchone()
        if row is None:
            raise UsageError(f"{stage} comes after {earlier}, which is not queued", hint=f"add run:{earlier} first")
        inputs[earlier] = row["run_id"]
    if project.pin is not None:
        pinned = project.pin(PinRequest(spec, inputs, spec_id, unpriced))
        spec, inputs = pinned.spec, pinned.inputs
        _check_parents(db, inputs.values())
    elif spec_id:
        raise UsageError(f"{SPEC_KEY}= needs a bridge that knows run specs", hint="bridgehead down, then up")
    return _Draft(argument=stage, stage=stage, spec=spec, inputs=inputs)


def _check_parents(db: sqlite3.Connection, run_ids: Iterable[str]) -> None:
    """A stored spec may name a run that another ledger had. Raises UsageError."""
    for run_id in run_ids:
        if db.execute("SELECT 1 FROM commands WHERE run_id = ?", (run_id,)).fetchone() is None:
            raise UsageError(f"its parent {run_id} is not known here", hint=nearest(run_id, _known(db)))


def _text(overrides: dict[str, object], key: str) -> str:
    """Take it out. 12 and 1e3 read as JSON, and an id may look like that."""
    value = overrides.pop(key, "")
    if not isinstance(value, str):
        raise UsageError(f"{key}= takes text; {value!r} reads as something else", hint=f'{key}="…" with quotes')
    return value


def _shell(db: sqlite3.Connection, line: QueueLine, project: ProjectView) -> _Draft:
    if not project.allow_sh:
        raise UsageError("sh: is switched off for this project", hint=f"[project] allow_sh in {names.PROJECT_FILE}")
    if not project.pairings_allow_sh:
        raise UsageError("no VM is paired with a key that allows sh:", hint="bridgehead keys new")
    if line.vm and not ledger_keys.runs_shell(db, line.vm):
        raise UsageError(f"{line.vm} was paired with a key that does not allow sh:", hint="bridgehead keys list")
    return _Draft(stage=Verb.SH, argument=line.argument, spec=StageSpec(name=Verb.SH, command=line.argument))


def _with_overrides(db: sqlite3.Connection, spec: StageSpec, overrides: dict[str, object]) -> StageSpec:
    """`resume=RUN` and `allow=code,config,pool` are Bridgehead's own; everything else goes into the stage's config."""
    config = {**spec.config, **overrides}
    resume, allow = overrides.get(RESUME_KEY), overrides.get(ALLOW_KEY)
    if resume is not None:
        config.pop(RESUME_KEY)
        try:
            found = find_run(db, str(resume))
        except NotFoundError as error:
            raise UsageError(f"resume: {error.message}", hint=error.hint) from None
        if found["stage"] != spec.name:
            raise UsageError(f"resume: {found['run_id']} is of stage {found['stage']!r}, not {spec.name!r}")
        spec = dataclasses.replace(spec, resume_from=found["run_id"])
    if allow is not None:
        config.pop(ALLOW_KEY)
        given = [word for word in str(allow).split(",") if word]
        for word in given:
            if word not in set(Allow):
                raise UsageError(f"allow: unknown word {word[:40]!r}", hint=nearest(word, Allow))
        spec = dataclasses.replace(spec, allow=given)
    return dataclasses.replace(spec, config=config)


def _stop(db: sqlite3.Connection, line: QueueLine, project: ProjectView, seq: int, now: float) -> _Draft:
    """Stop the newest run of that name that has not ended: at once when no VM has it, else through its VM."""
    try:
        run = find_run(db, line.argument, not_ended=True, vm_id=line.vm)
    except NotFoundError:
        known = {*_known(db), *project.stages}
        where = f" on {line.vm}" if line.vm else ""
        hint = "" if line.argument in known else nearest(line.argument, known)
        raise UsageError(f"nothing to stop: no {line.argument!r} is queued or running{where}", hint=hint) from None
    lent = run["held_by"] not in ("", run["vm_id"])  # the one VM is silent, the other has not begun
    if run["vm_id"] and not lent:
        return _Draft(argument=run["run_id"], target_vm=run["vm_id"], vm_id=run["vm_id"])
    if run["vm_id"]:
        ledger_claims.withdraw(db, run)
    db.execute(
        "UPDATE commands SET state = ?, vm_id = '', held_by = '', failure_class = ?, reason = ?, updated = ?"
        " WHERE seq = ?",
        (RunState.STOPPED, FailureClass.STOPPED, f"stopped by line #{seq} while no VM had it", now, run["seq"]),
    )
    fail_orphans(db, now)
    return _Draft(argument=run["run_id"], state=RunState.DONE, reason="no VM had it yet")


def _known(db: sqlite3.Connection) -> Iterable[str]:
    rows = db.execute("SELECT run_id, stage FROM commands WHERE run_id != '' ORDER BY seq DESC LIMIT 200")
    return {name for row in rows for name in (row["run_id"], row["stage"])}
