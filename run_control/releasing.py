"""Giving a VM back, wherever it is: the line for queue.txt, and what it will mean for what is under way there."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from bridge.ledger_rows import VmState
from bridgehead.errors import BridgeheadError, NotFoundError, UsageError
from bridgehead.queue_lines import Verb, nearest
from run_control import local_vms, queue_writer, views
from run_control.alerts import CELL_SILENT_S
from run_control.project import Project
from run_control.views import RunView

_THERE: Final = (VmState.LIVE, VmState.SILENT)


@dataclass(frozen=True)
class ReleasePlan:
    """`lines`: what will happen, for a person; `under_way`: runs that it touches; `warnings`: what needs a thought."""

    vm_id: str
    line: str
    lines: list[str]
    under_way: list[str]
    warnings: list[str]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def plan(project: Project, text: str = "") -> ReleasePlan:
    """Of the VM that `text` names: its id, the beginning of one, or a local VM's name; "" is the only one there.

    Raises NotFoundError for none such, and UsageError for several.
    """
    known = views.vms(project)
    vm = _choose(known, _local_ids(project).get(text, text))
    vm_id = str(vm["vm_id"])
    runs = [view for view in views.runs(project) if view.vm_id == vm_id and not view.ended]
    others = [other["vm_id"] for other in known if other["state"] == VmState.LIVE and other["vm_id"] != vm_id]
    stored = bool(vm["heartbeat"].get("store"))  # one that is ill just now is waited for
    lines = [_fate(view, stored=stored, others=others) for view in runs]
    lines.append(f"{vm_id} gives itself back once all that it holds is safe")
    return ReleasePlan(
        vm_id,
        queue_writer.release_line(vm_id),
        lines,
        [view.run_id for view in runs],
        _warnings(vm, runs, stored=stored, others=others),
    )


def _local_ids(project: Project) -> dict[str, str]:
    """Name → id of the VMs on this machine; none where there can't be any."""
    with contextlib.suppress(BridgeheadError, OSError, ImportError):
        return {vm.name: vm.vm_id for vm in local_vms.backend(project).list() if vm.vm_id}
    return {}


def _choose(known: Sequence[dict[str, Any]], text: str) -> dict[str, Any]:
    there = [vm for vm in known if vm["state"] in _THERE]
    exact = [vm for vm in there if vm["vm_id"] == text]
    found = exact or [vm for vm in there if vm["vm_id"].startswith(text)]
    names = [str(vm["vm_id"]) for vm in there]
    if not found:
        raise NotFoundError(f"no live VM {text[:60]!r}" if text else "no VM is live", hint=nearest(text, names))
    if len(found) > 1:
        raise UsageError(f"{len(found)} VMs may be meant: {', '.join(vm['vm_id'] for vm in found)}", hint="say which")
    return found[0]


def _fate(view: RunView, *, stored: bool, others: Sequence[str]) -> str:
    """What becomes of one run."""
    if view.stage == Verb.SH:
        return f"{view.run_id} is a shell command: the VM waits until it has ended"
    if not stored:
        return f"{view.run_id} can't be handed over without a durable store: the VM waits until it has ended"
    where = f"goes on on {others[0]}" if len(others) == 1 else "goes on on the next VM"
    step = f" (step {view.step:,})" if view.step else ""
    return f"{view.run_id}{step} saves a checkpoint, stops here and {where}"


def _warnings(vm: dict[str, Any], runs: Sequence[RunView], *, stored: bool, others: Sequence[str]) -> list[str]:
    found = []
    moving = [view.run_id for view in runs if view.stage != Verb.SH] if stored else []
    if moving and not others:
        found.append(f"no other VM is live: {', '.join(moving)} will wait until you pair one")
    store = vm["heartbeat"].get("store") or {}
    if moving and not store.get("ok"):
        found.append(f"its store is ill ({store.get('error') or 'it does not answer'}): the VM waits until it is well")
    cell_s = vm["heartbeat"].get("cell_age_s")
    if vm["state"] == VmState.SILENT:
        found.append("the bridge does not hear of it: the line waits until it speaks again")
    elif isinstance(cell_s, int | float) and cell_s > CELL_SILENT_S:
        found.append("its cell does not run, and the cell alone can give it back: run the cell again")
    return found
