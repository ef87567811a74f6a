"""The one line that says what to do about a run."""

from __future__ import annotations

from typing import Final

from bridge.ledger_rows import REJECTED
from bridgehead import names
from bridgehead.names import FailureClass, RunState
from run_control.views import RunView

_OF_FAILURE: Final = {
    FailureClass.USER_ERROR: "read the end of its log, mend the code, then run it with resume={run}",
    FailureClass.KILLED: "run it with resume={run}; its log tells what came before",
    FailureClass.HOST_OOM: "less in memory (a smaller batch, fewer workers) or a larger VM, then resume={run}",
    FailureClass.DISK_FULL: "make room on the VM or keep fewer checkpoints, then resume={run}",
    FailureClass.NAN_LOSS: "a lower learning rate, then begin at an earlier checkpoint with resume={run}",
    FailureClass.CHECKPOINT: "its log says which checkpoint was refused and why; allow=… takes one that differs",
    FailureClass.VM_LOST: "resume={run} on a VM that lives longer, with checkpoints more often",
    FailureClass.GATE: "the gate said no: see its results, train on, then run the gate again",
    FailureClass.UPSTREAM: "mend what it comes after, then run it again",
    FailureClass.UNKNOWN_OUTCOME: "nobody saw how it ended: look at what it did, and only then run it again",
    FailureClass.ENVIRONMENT: "it could not be started: its log says what is missing on the VM",
}


def next_step(view: RunView) -> str:
    """What a person does now; "" when there is nothing to do but wait, or nothing at all."""
    if view.waits_for:
        return view.waits_for
    if view.state == REJECTED:
        return "mend the line and add it to the queue again"
    if view.state == RunState.FAILED:
        text = _OF_FAILURE.get(FailureClass(view.failure_class), "") if view.failure_class in set(FailureClass) else ""
        return (text or "bridgehead logs {run}").format(run=view.run_id)
    if view.state == RunState.STOPPED:
        return f"go on with resume={view.run_id}" if view.levels or view.checkpoint else ""
    if view.state == RunState.QUEUED and not view.vm_id:
        return "waits for a VM with room, and for what it comes after"
    return "bridgehead bundle verify" if view.state == RunState.DONE and view.stage == names.EXPORT else ""
