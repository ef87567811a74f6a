"""Registering, promoting, demoting: each step gathers its evidence, keeps it in the store, and then writes one entry.

A promotion that was interrupted is simply asked for again: what is in the store is not sent twice, and the entries that
were written are not written again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bridgehead import names
from bridgehead.errors import NotFoundError, UsageError, VerificationError
from bridgehead.paths import check_relative
from run_control.project import Project
from run_control.registry import catalog, evidence
from run_control.registry.catalog import ORDER, SHORT, Catalog, Model, State
from run_control.registry.entries import Kind
from run_control.registry.journal import Draft, Journal

_REASON_MAX = 500


@dataclass(frozen=True)
class Wish:
    """How far to go and what is given for it. A step whose evidence is missing ends the climb with its error."""

    to: State | None = None  # None: one step
    public_key: Path | None = None
    target: str = ""
    without_champion: str = ""  # why no table against the champion is asked for
    allow_regression: str = ""  # why it may be worse than the champion


@dataclass
class Done:
    """What was written, oldest first."""

    model: Model
    steps: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return {**self.model.to_json(), "steps": self.steps}


def promote(project: Project, journal: Journal, text: str, wish: Wish, *, name: str = "") -> Done:
    """Register the run `text` if it names one, and climb. Raises VerificationError where the evidence does not hold."""
    done = Done(_model(project, journal, text, name))
    goal = wish.to or _next(done.model.state)
    if ORDER.index(goal) < ORDER.index(done.model.state):
        raise UsageError(f"it is {done.model.state} already", hint=f"bridgehead demote {text} --to {goal}")
    while done.model.state != goal:
        step = _next(done.model.state)
        given = _evidence(project, journal, done.model, step, wish)
        body = {"from": str(done.model.state), "to": str(step), "evidence": given}
        if step is State.DEPLOYED:
            body["target"] = wish.target
        done.model = _write(journal, Kind.ADVANCE, done.model.digest, body, done_when=_is(step))
        done.steps.append(str(step))
    return done


def demote(journal: Journal, text: str, to: State, reason: str) -> Done:
    """Down to `to`; the evidence of what lies above it is void from now on, and so are aliases that need more."""
    model = catalog.replay(journal.entries()).find(text)
    body = {"from": str(model.state), "to": str(to), "reason": _checked_reason(reason)}
    model = _write(journal, Kind.DEMOTE, model.digest, body, done_when=None)
    return Done(model, [f"{body['from']} → {to}"])


def set_alias(journal: Journal, text: str, alias: str, *, remove: bool = False) -> Done:
    """Give `alias` to the model, or take it away. Raises UsageError when somebody else moved it meanwhile."""
    if not alias or check_relative(alias) != alias or "/" in alias or len(alias) > SHORT * 4:
        raise UsageError(f"not an alias: {alias[:40]!r}", hint="letters, digits, - and _")
    known = catalog.replay(journal.entries())
    model = known.find(text)
    body = {"alias": alias, "expected": known.aliases.get(alias, ""), **({"remove": True} if remove else {})}
    if not remove and body["expected"] == model.digest:
        return Done(model)
    model = _write(journal, Kind.ALIAS, model.digest, body, done_when=None)
    return Done(model, [f"{'not ' if remove else ''}{alias}"])


# --- inside ---------------------------------------------------------------------------------------------------


def _is(state: State) -> Callable[[Model], bool]:
    return lambda model: model.state == state


def _next(state: State) -> State:
    place = ORDER.index(state) + 1
    if place == len(ORDER):
        raise UsageError(f"it is {state} already: there is no further step", hint="bridgehead models show MODEL")
    return ORDER[place]


def _model(project: Project, journal: Journal, text: str, name: str) -> Model:
    """The model that `text` names; a finished run that is not registered yet is registered, if the gate lets it."""
    known = catalog.replay(journal.entries())
    try:
        return known.find(text)
    except NotFoundError:
        run_id, results = evidence.made_by(project, text)
    return _register(project, journal, run_id, results, name)


def _register(project: Project, journal: Journal, run_id: str, results: dict[str, Any], name: str) -> Model:
    weights = str(results.get("weights_sha256", ""))
    artifacts = evidence.artifacts_of(project.run(run_id))
    if not weights or not artifacts:
        raise VerificationError(
            f"{run_id} left no model: {names.RESULTS} with weights_sha256, and files in {names.ARTIFACTS}/",
            hint="promote the run that trained it",
        )
    named = results.get("artifact_sha256")
    if named and named not in {item["sha256"] for item in artifacts}:
        raise VerificationError(f"no file in {names.ARTIFACTS}/ of {run_id} is the one that its {names.RESULTS} names")
    evidence.passed(evidence.gate_of(project, run_id, weights), run_id)  # the only door; kept with the first step
    for item in artifacts:
        journal.put_file(project.run(run_id) / names.ARTIFACTS / item["path"])
    origin = evidence.origin_of(project, run_id, results)
    body = {"name": name or origin["stage"], "run_id": run_id, "artifacts": artifacts, "origin": origin}
    digest = evidence.digest_of(artifacts)
    return _write(journal, Kind.REGISTER, digest, body, done_when=lambda model: True)


def _evidence(project: Project, journal: Journal, model: Model, step: State, wish: Wish) -> dict[str, Any]:
    gather: dict[State, Callable[[], dict[str, Any]]] = {
        State.CANDIDATE: lambda: _gate_evidence(project, journal, model),
        State.BENCHMARKED: lambda: _benchmark_evidence(journal, model, wish),
        State.DEPLOYABLE: lambda: _bundle_evidence(project, journal, model, wish),
        State.DEPLOYED: lambda: _target_evidence(wish),
    }
    return gather[step]()


def _gate_evidence(project: Project, journal: Journal, model: Model) -> dict[str, Any]:
    gate = evidence.gate_of(project, model.run_id, model.origin["weights_sha256"])
    kept = evidence.passed(gate, model.run_id)
    return {**kept, "record": journal.put_record(gate[1] if gate else {})}


def _benchmark_evidence(journal: Journal, model: Model, wish: Wish) -> dict[str, Any]:
    champion = catalog.replay(journal.entries()).champion()
    mine = journal.record(model.evidence[State.CANDIDATE]["record"])
    if champion is None or champion.digest == model.digest or wish.without_champion:
        found = evidence.benchmark(mine, None, "")
        if wish.without_champion and champion is not None:
            found["without_champion"] = _checked_reason(wish.without_champion)
        return found
    try:
        theirs = journal.record(champion.evidence[State.CANDIDATE]["record"])
    except (NotFoundError, KeyError):
        raise NotFoundError(
            f"the gate's record of the champion {champion.digest[:SHORT]} is gone from the store",
            hint='--without-champion "why" goes on without the table',
        ) from None
    found = evidence.benchmark(mine, theirs, champion.digest)
    if found["overall"] == "worse" and not wish.allow_regression:
        row = found["rows"][0]
        raise VerificationError(
            f"it is worse than the champion {champion.digest[:SHORT]}: {found['metric']} {row['candidate']:.4g}"
            f" against {row['champion']:.4g}, change {_interval(row)}",
            hint='--allow-regression "why" lets it pass all the same, and keeps the reason',
        )
    if found["overall"] == "worse":
        found["allow_regression"] = _checked_reason(wish.allow_regression)
    return found


def _interval(row: dict[str, Any]) -> str:
    low, high = row["interval"]
    return f"{row['change']:+.4g} [{low:+.4g}, {high:+.4g}]"


def _bundle_evidence(project: Project, journal: Journal, model: Model, wish: Wish) -> dict[str, Any]:
    if wish.public_key is None:
        raise UsageError(
            "to be deployable its bundle has to bear a signature", hint="bridgehead bundle sign, then --key FILE.pub"
        )
    folder = evidence.bundle_of(project, model.origin["weights_sha256"])
    found = evidence.deployable(folder, model.origin["weights_sha256"], wish.public_key)
    kept = {
        path.relative_to(folder / names.BUNDLE).as_posix(): journal.put_file(path)[0]
        for path in sorted((folder / names.BUNDLE).rglob("*"))
        if path.is_file()
    }
    return {**found, "files": kept}


def _target_evidence(wish: Wish) -> dict[str, Any]:
    if not wish.target.strip():
        raise UsageError("deployed to where?", hint="--target NAME, such as the fleet or the service that has it")
    return {"target": _checked_reason(wish.target)}


def _checked_reason(text: str) -> str:
    if not text.strip() or len(text) > _REASON_MAX or not text.isprintable():
        raise UsageError(f"a reason is one line of 1 to {_REASON_MAX} characters", hint='--reason "why"')
    return text.strip()


def _write(
    journal: Journal, kind: Kind, digest: str, body: dict[str, Any], *, done_when: Callable[[Model], bool] | None
) -> Model:
    """One entry. `done_when` says that another writer has just done the same, which is as good."""

    def draft(entries: Any) -> Draft | None:
        known = catalog.replay(entries)
        why = catalog.objection(known, kind, digest, body)
        if not why:
            return Draft(str(kind), digest, body)
        if done_when is not None and digest in known.models and done_when(known.models[digest]):
            return None
        raise UsageError(f"{digest[:SHORT]}: {why}", hint="somebody else was quicker? bridgehead models")

    written = journal.append(draft)
    known: Catalog = catalog.replay(journal.entries())
    void = {item["digest"]: item["void"] for item in known.void}
    if written is not None and written.digest in void:
        raise UsageError(f"another writer came in between: {void[written.digest]}", hint="bridgehead models")
    return known.models[digest]
