"""What two runs differ in, and queueing one of them once more."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from bridge.project import PinRequest
from bridgehead import files, names
from bridgehead.errors import NotFoundError, UsageError
from bridgehead.records import RunRecord, StageSpec
from run_control import launching, pinning, plan, project_file, run_spec
from run_control.plan import Plan
from run_control.project import Project
from run_control.run_spec import RunSpec
from run_control.views import ledger_of


@dataclass(frozen=True)
class Difference:
    key: str
    first: str
    second: str

    def to_json(self) -> dict[str, str]:
        return {"key": self.key, "first": self.first, "second": self.second}


@dataclass(frozen=True)
class Weights:
    """Whether two runs ended with the same bits: `state` is same, different or unknown."""

    state: str
    words: str


def spec_of(project: Project, run_id: str) -> tuple[StageSpec, RunSpec]:
    """What a run was queued as. Raises NotFoundError, and UsageError for one that was never pinned (an sh: line)."""
    with ledger_of(project) as ledger:
        stage = ledger.spec_of(run_id)
    if stage is None:
        raise NotFoundError(f"no spec of {run_id} is in the ledger")
    if not stage.pins.spec:
        raise UsageError(
            f"{run_id} was queued without a run spec", hint="it is an sh: line, or of an older Bridgehead: run it anew"
        )
    return stage, run_spec.read(stage.pins.spec, f"the spec of {run_id}")


def diff(project: Project, first: str, second: str) -> list[Difference]:
    """Every leaf of spec, code, machine and data in which two runs differ. Raises as spec_of."""
    specs = [spec_of(project, run_id)[1] for run_id in (first, second)]
    found = [Difference(*item) for item in run_spec.differences(*specs)]
    facts = [_facts(project, run_id) for run_id in (first, second)]
    for key in sorted({*facts[0], *facts[1]}):
        one, other = facts[0].get(key, ""), facts[1].get(key, "")
        if one != other:
            found.append(Difference(key, one, other))
    return found


def weights(project: Project, first: str, second: str) -> Weights:
    """By the hash that each run's results name as weights_sha256: of every tensor's name, shape, type and bytes."""
    known = {run_id: _weights_of(project, run_id) for run_id in (first, second)}
    silent = [run_id for run_id, found in known.items() if not found]
    if silent:
        return Weights("unknown", f"not known: the results of {' and '.join(silent)} name no weights_sha256")
    one, other = known[first], known[second]
    if one == other:
        return Weights("same", f"the same, bit for bit ({one[:16]})")
    return Weights("different", f"they differ: {one[:16]} and {other[:16]}")


def line_again(project: Project, run_id: str, made: Plan, *, keep: bool = True) -> str:
    """The line that runs what `again` has planned. Raises UsageError when something stands against it.

    `keep`: store the spec that the line names.
    """
    if made.refusal is not None:
        hint = "give back what it was, or bridgehead rerun --anyway" if made.exact else made.refusal.hint
        raise UsageError(f"{run_id}: {made.refusal.message}", hint=hint)
    return launching.line_of_spec(project, made, image_of(project, run_id), keep=keep)


def again(project: Project, run_id: str, *, anyway: bool = False) -> Plan:
    """The plan of the same run once more. When something has changed it has a refusal that says what.

    `anyway`: a new spec of the same config on what is here now, with `run_id` as its parent.
    """
    whole = project_file.load_whole(project.root)
    queued, wanted = spec_of(project, run_id)
    now = whole.view.stages.get(queued.name)
    if now is None:
        raise UsageError(f"the project has no stage {queued.name!r} any more", hint="give it back, and rerun")
    request = PinRequest(plan.stage_of(wanted, now), pinning.inputs_of(wanted), unpriced=wanted.resources.unpriced)
    if not anyway:
        return plan.make(project.root, whole, request, wanted=wanted)
    made = plan.make(project.root, whole, request)
    if made.spec is None:
        return made
    parents = tuple(sorted({*made.spec.parents, run_id}))
    return dataclasses.replace(made, spec=made.spec.with_more(parents=parents))


def image_of(project: Project, run_id: str) -> dict[str, Any]:
    """The fingerprint of the machine on which it ran; empty when its run.json has not arrived."""
    record = _record(project, run_id)
    return record.fingerprint if record is not None else {}


def _facts(project: Project, run_id: str) -> dict[str, str]:
    """What only the run itself could tell: the machine, the data it found, what it made."""
    found: dict[str, str] = {}
    record = _record(project, run_id)
    if record is not None:
        found |= {"ran.payload_sha256": record.payload_sha256, "ran.ship_sha256": record.ship_sha256}
        found |= {f"image.{key}": _text(value) for key, value in record.fingerprint.items()}
    results = files.read_json(project.run(run_id) / names.RESULTS)
    if isinstance(results, dict):
        pool = results.get("pool")
        found["results.pool"] = _text(pool.get("fingerprint")) if isinstance(pool, dict) else ""
    found["results.weights_sha256"] = _weights_of(project, run_id)
    return {key: value for key, value in found.items() if value}


def _weights_of(project: Project, run_id: str) -> str:
    results = files.read_json(project.run(run_id) / names.RESULTS)
    return _text(results.get("weights_sha256", "")) if isinstance(results, dict) else ""


def _record(project: Project, run_id: str) -> RunRecord | None:
    try:
        return RunRecord.from_json(files.read_json(project.run(run_id) / names.RUN_RECORD))
    except UsageError:
        return None


def _text(value: object) -> str:
    return value if isinstance(value, str) else files.canonical_json(value).decode()
