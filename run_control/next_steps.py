"""The one line that says what to do about a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bridge.ledger_rows import REJECTED
from bridgehead import names
from bridgehead.failures.classes import facts
from bridgehead.names import RunState
from run_control.views import RunView


def next_step(view: RunView, verdict: Mapping[str, Any] | None = None) -> str:
    """What a person does now; "" when there is nothing to do but wait, or nothing at all.

    `verdict`: of the run's post-mortem, where there is one; it knows more than the class in the ledger.
    """
    if view.waits_for:
        return view.waits_for
    if view.state == REJECTED:
        return "mend the line and add it to the queue again"
    again = f"; go on with resume={view.run_id}" if view.levels or view.checkpoint else ""
    if view.state == RunState.FAILED:
        told = verdict or {}
        said = str(told.get("hint") or told.get("next_step") or "")
        return (said or facts(view.failure_class or "unknown").next_step) + again
    if view.state == RunState.STOPPED:
        return again.removeprefix("; ")
    if view.state == RunState.QUEUED and not view.vm_id:
        return "waits for a VM with room, and for what it comes after"
    return "bridgehead bundle verify" if view.state == RunState.DONE and view.stage == names.EXPORT else ""
