"""From the words of `bridgehead run` to a queue line and its plan, as the ledger will resolve it."""

from __future__ import annotations

import dataclasses
import sqlite3
import urllib.parse
from collections.abc import Sequence
from typing import Any

from bridge.project import PinRequest
from bridgehead import names
from bridgehead.errors import BridgeheadError, UsageError
from bridgehead.names import RunState
from bridgehead.queue_lines import ALLOW_KEY, RESUME_KEY, SPEC_KEY, UNPRICED_KEY, Verb, nearest, parse_overrides
from bridgehead.records import StageSpec
from run_control import paid_vms, pinning, plan, project_file, queue_writer
from run_control.plan import Plan
from run_control.project import Project
from run_control.project_file import Whole
from run_control.views import ledger_of


def unpriced_word(why: str) -> str:
    """The word of a queue line that says why a run may start although its price is not known. Raises UsageError."""
    text = " ".join(why.split())
    if not text:
        raise UsageError("--unpriced needs a reason", hint='--unpriced "the lab pays"')
    return f"{UNPRICED_KEY}={urllib.parse.quote(text, safe='')}"


def plan_line(project: Project, stage: str, words: Sequence[str]) -> Plan:
    """The plan of `run:STAGE words`. Raises UsageError for what is no line at all; all else is a check of the plan."""
    whole = project_file.load_whole(project.root)
    request = request_of(project, whole, stage, words)
    wanted = pinning.load(project.root, request.spec_id).spec if request.spec_id else None
    return plan.make(project.root, whole, request, wanted=wanted)


def request_of(project: Project, whole: Whole, stage: str, words: Sequence[str]) -> PinRequest:
    """What the ledger would ask to be pinned."""
    if stage not in whole.view.stages:
        raise UsageError(f"no stage {stage!r} in {names.PROJECT_FILE}", hint=nearest(stage, whole.view.stages))
    overrides = parse_overrides(words)
    spec_id, unpriced = str(overrides.pop(SPEC_KEY, "")), urllib.parse.unquote(str(overrides.pop(UNPRICED_KEY, "")))
    spec = resolved(whole.view.stages[stage], overrides)
    return PinRequest(spec, newest_inputs(project, spec), spec_id, unpriced)


def resolved(stage: StageSpec, overrides: dict[str, object]) -> StageSpec:
    """With what a line overrides; a RUN to begin at stays as it was typed."""
    config = {**stage.config, **overrides}
    resume, allow = str(config.pop(RESUME_KEY, stage.resume_from)), stage.allow
    if ALLOW_KEY in config:
        allow = str(config.pop(ALLOW_KEY)).split(",")
    return dataclasses.replace(stage, config=config, resume_from=resume, allow=allow)


def newest_inputs(project: Project, spec: StageSpec) -> dict[str, str]:
    """Stage -> the run whose output it would get now; without those that are not queued yet."""
    if not spec.after or not project.ledger.is_file():
        return {}
    bad = {RunState.FAILED, RunState.STOPPED, "rejected"}
    try:
        with ledger_of(project) as ledger:
            rows = [row for row in ledger.commands() if row.verb == Verb.RUN and row.state not in bad]
    except (BridgeheadError, sqlite3.Error):
        return {}
    return {row.stage: row.run_id for row in rows if row.stage in spec.after}


def line_of_spec(
    project: Project, made: Plan, image: dict[str, Any] | None = None, *, keep: bool = True, vm: str = ""
) -> str:
    """Store the plan's spec, and say the line that runs exactly that. `image`: see pinning.store."""
    assert made.spec is not None
    if keep:
        pinning.store(project.root, made.spec, image)
    return queue_writer.run_line(made.stage.name, [f"{SPEC_KEY}={made.spec.id[: pinning.ID_CHARACTERS]}"], vm)


def may_refuse(project: Project, whole: Whole) -> bool:
    """Whether there is anything by which a run may be refused before it is queued."""
    return (
        bool(whole.data)
        or bool(paid_vms.elsewhere(project.root))
        or whole.money.terms().stated
        or any(limit.max_total or limit.max_price_per_hour or limit.max_hours for limit in whole.limits.values())
    )
