"""The models that the journal tells of: each act is checked against what was before it; what does not fit is void."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from bridgehead.errors import NotFoundError, UsageError
from run_control.registry.entries import Entry, Kind

SHORT = 12


class State(StrEnum):
    """RAW → CANDIDATE → BENCHMARKED → DEPLOYABLE → DEPLOYED; one step at a time, each with evidence of its own."""

    RAW = "raw"  # a finished run's artifacts, and nothing known about them
    CANDIDATE = "candidate"  # the gate passed these very weights
    BENCHMARKED = "benchmarked"  # compared with the champion, slice by slice
    DEPLOYABLE = "deployable"  # a bundle of it that verifies, with parity and a signature
    DEPLOYED = "deployed"  # somewhere, which is named


ORDER = list(State)
ALIAS_FROM = State.BENCHMARKED  # the least that a model with an alias is
CHAMPION = "champion"


_RUN_NUMBER = re.compile(r"-\d{4,}(-[0-9a-f]*)?\Z")


@dataclass
class Model:
    """One model as the journal leaves it."""

    digest: str
    name: str
    run_id: str
    state: State = State.RAW
    artifacts: list[dict[str, Any]] = field(default_factory=list)  # path, size, sha256
    origin: dict[str, Any] = field(default_factory=dict)  # run, parents, data, code
    evidence: dict[str, dict[str, Any]] = field(default_factory=dict)  # state → what let it in
    aliases: list[str] = field(default_factory=list)
    history: list[dict[str, Any]] = field(default_factory=list)
    registered: float = 0.0
    changed: float = 0.0

    def to_json(self) -> dict[str, Any]:
        return {
            "model": self.digest,
            "name": self.name,
            "run_id": self.run_id,
            "state": str(self.state),
            "aliases": sorted(self.aliases),
            "artifacts": self.artifacts,
            "origin": self.origin,
            "evidence": self.evidence,
            "registered": self.registered,
            "changed": self.changed,
            "history": self.history,
        }


@dataclass
class Catalog:
    """All models by digest, and who bears which alias."""

    models: dict[str, Model] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    void: list[dict[str, Any]] = field(default_factory=list)

    def find(self, text: str) -> Model:
        """A digest, an alias, a run id, or the beginning of a digest or, with its number, of a run id.

        Raises NotFoundError, UsageError when several match.
        """
        if text in self.aliases:
            return self.models[self.aliases[text]]
        found = [m for m in self.models.values() if m.digest.startswith(text) or m.run_id == text] if text else []
        if not found and _RUN_NUMBER.search(text):  # a stage alone is its newest run, registered or not
            found = [m for m in self.models.values() if m.run_id.startswith(text)]
        if len(found) > 1:
            raise UsageError(f"{text!r} is the beginning of {len(found)} models", hint="write more of the digest")
        if not found:
            raise NotFoundError(f"the registry knows no model {text!r}", hint="bridgehead models lists them")
        return found[0]

    def champion(self) -> Model | None:
        return self.models[self.aliases[CHAMPION]] if CHAMPION in self.aliases else None


def replay(entries: Sequence[Entry]) -> Catalog:
    """Every entry in order. What does not apply (two writers at once, at the worst) changes nothing and is told."""
    made = Catalog()
    for entry in entries:
        why = _apply(made, entry)
        head = {"seq": entry.seq, "at": entry.at, "by": entry.by, "kind": entry.kind, "digest": entry.digest}
        line: dict[str, Any] = {**head, **_shown(entry)}
        if why:
            line["void"] = why
            made.void.append({**line, "model": entry.model})
        if entry.model in made.models:
            made.models[entry.model].history.append(line)
            made.models[entry.model].changed = entry.at
    return made


def objection(catalog: Catalog, kind: str, digest: str, body: dict[str, Any]) -> str:
    """Why such an act does not apply to what is there; empty when it does. Changes nothing."""
    checks = {Kind.REGISTER: _no_register, Kind.ADVANCE: _no_advance, Kind.DEMOTE: _no_demote, Kind.ALIAS: _no_alias}
    if kind not in set(Kind):
        return f"an act of kind {kind!r}, which this Bridgehead does not know"
    if kind != Kind.REGISTER and digest not in catalog.models:
        return "it was never registered"
    return checks[Kind(kind)](catalog, digest, body)


def _apply(catalog: Catalog, entry: Entry) -> str:
    why = objection(catalog, entry.kind, entry.model, entry.body)
    if why:
        return why
    body = entry.body
    if entry.kind == Kind.REGISTER:
        catalog.models[entry.model] = Model(
            entry.model,
            str(body.get("name", "")),
            str(body.get("run_id", "")),
            artifacts=list(body.get("artifacts", [])),
            origin=dict(body.get("origin", {})),
            registered=entry.at,
        )
        return ""
    model = catalog.models[entry.model]
    if entry.kind == Kind.ADVANCE:
        model.state = State(body["to"])
        model.evidence[body["to"]] = dict(body.get("evidence", {}))
    elif entry.kind == Kind.DEMOTE:
        model.state = State(body["to"])
        for state in ORDER[ORDER.index(model.state) + 1 :]:
            model.evidence.pop(state, None)
        if ORDER.index(model.state) < ORDER.index(ALIAS_FROM):
            for alias in model.aliases:
                catalog.aliases.pop(alias, None)
            model.aliases.clear()
    else:
        _move_alias(catalog, model, str(body["alias"]), remove=bool(body.get("remove")))
    return ""


def _move_alias(catalog: Catalog, model: Model, alias: str, *, remove: bool) -> None:
    holder = catalog.aliases.pop(alias, None)
    if holder is not None:
        catalog.models[holder].aliases.remove(alias)
    if not remove:
        catalog.aliases[alias] = model.digest
        model.aliases.append(alias)


def _no_register(catalog: Catalog, digest: str, body: dict[str, Any]) -> str:
    return "it is registered already" if digest in catalog.models else ""


def _no_advance(catalog: Catalog, digest: str, body: dict[str, Any]) -> str:
    state = catalog.models[digest].state
    if body.get("to") not in set(State) or body.get("from") != state:
        return f"it is {state}, not {body.get('from')}"
    step = ORDER.index(State(body["to"])) - ORDER.index(state)
    if step != 1:
        return f"from {state} the next step is {ORDER[min(ORDER.index(state) + 1, len(ORDER) - 1)]}, not {body['to']}"
    return "" if body.get("evidence") else "it comes without evidence"


def _no_demote(catalog: Catalog, digest: str, body: dict[str, Any]) -> str:
    state = catalog.models[digest].state
    if body.get("to") not in set(State):
        return f"there is no state {body.get('to')!r}"
    lower = ORDER.index(State(body["to"])) < ORDER.index(state)
    return "" if lower else f"it is {state}, which is not above {body['to']}"


def _no_alias(catalog: Catalog, digest: str, body: dict[str, Any]) -> str:
    alias, model = str(body.get("alias", "")), catalog.models[digest]
    holder = catalog.aliases.get(alias, "")
    if body.get("expected", "") != holder:
        return f"{alias} is at {holder[:SHORT] or 'nothing'}, not at {str(body.get('expected'))[:SHORT] or 'nothing'}"
    if body.get("remove"):
        return "" if holder == digest else f"it does not bear {alias}"
    if ORDER.index(model.state) < ORDER.index(ALIAS_FROM):
        return f"it is {model.state}; only from {ALIAS_FROM} on can it be {alias}"
    return ""


def _shown(entry: Entry) -> dict[str, Any]:
    names = ("from", "to", "reason", "alias", "expected", "remove", "name", "run_id", "target")
    return {name: entry.body[name] for name in names if name in entry.body}
