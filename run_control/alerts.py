"""What needs a person, each with a next step and a key that stays the same as long as the trouble does."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from bridge.front_door import DoorState
from bridge.ledger_rows import VmState
from bridge.tunnels import NONE
from bridgehead.names import RunState
from bridgehead.records import duration
from bridgehead.upload_text import size_text
from run_control import launch_notes, next_steps
from run_control.bridge_control import LiveBridge, way_in
from run_control.project_file import SHELL_STAGE
from run_control.views import RunView

WARN: Final = "warn"
BAD: Final = "bad"
UNCONFIRMED_S: Final = 1800.0
QUIET_S: Final = 45.0  # a VM beats every 5 s; this long without one is no hiccup
CELL_SILENT_S: Final = 180.0  # its cell beats every 5 s, and mounting Drive again takes it 150 s at most
TRASH_BYTES: Final = 2**30  # less of it is not worth a word
OLD_S: Final = 86_400.0  # what failed or fell silent longer ago needs nobody any more
_WORKING: Final = (RunState.RUNNING, RunState.SAVING, RunState.RESUMING, RunState.STARTING)


@dataclass(frozen=True)
class AlertView:
    """`level`: bad when work is being lost or stands still, warn when it may."""

    key: str
    level: str
    text: str
    next: str

    def line(self) -> str:
        """One line for a terminal."""
        return f"{self.text}. next: {self.next}" if self.next else self.text

    def to_json(self) -> dict[str, str]:
        return {**vars(self)}

    @property
    def is_news(self) -> bool:
        """Whether `status` says it on top; for a bridge, its way in, failed and stalled runs it has other lines."""
        return self.key.partition(":")[0] not in ("bridge-down", "tunnel-down", "failed", "stalled")


def alerts(
    runs: Sequence[RunView],
    vms: Sequence[Mapping[str, Any]],
    live: LiveBridge | None,
    *,
    now: float | None = None,
    bridge_up: bool | None = None,
) -> list[AlertView]:
    """Of views that were just taken, worst first.

    `bridge_up` says so when the bridge is no process of its own that `live` could name.
    """
    moment = time.time() if now is None else now
    up = live is not None if bridge_up is None else bridge_up
    found = [*_bridge(runs, vms, live, moment, up=up), *_vms(runs, vms, moment)]
    newest = {view.stage: view.run_id for view in runs}
    for view in runs:
        vm = next((vm for vm in vms if vm["vm_id"] == view.vm_id), None)
        found += _failed(view, moment) if newest[view.stage] == view.run_id else []
        found += _unconfirmed(view, moment)
        if vm is not None and vm["state"] == VmState.LIVE and vm["seen_age_s"] < QUIET_S:
            found += _stalled(view)
    return sorted(found, key=lambda alert: alert.level != BAD)


def _bridge(
    runs: Sequence[RunView], vms: Sequence[Mapping[str, Any]], live: LiveBridge | None, now: float, *, up: bool
) -> list[AlertView]:
    open_runs = [view for view in runs if not view.ended]
    if not up and (open_runs or any(vm["state"] == VmState.LIVE for vm in vms)):
        level = BAD if open_runs else WARN
        text = "; ".join(["no bridge is running", *_without_bridge(open_runs)])
        return [AlertView("bridge-down", level, text, "bridgehead up")]
    if live is not None and live.url and live.tunnel != NONE and live.tunnel_state == DoorState.DOWN:
        return [AlertView("tunnel-down", BAD, way_in(live, now=now), "bridgehead doctor; it is tried again by itself")]
    return []


def _without_bridge(runs: Sequence[RunView]) -> list[str]:
    """What becomes of the runs that have not ended: those on a VM go on, the others wait."""
    on_vm = sum(bool(view.vm_id) and view.state not in (RunState.QUEUED, RunState.LOST) for view in runs)
    waiting = len(runs) - on_vm
    said = []
    if on_vm:
        said.append("1 run goes on on its VM, and nothing of it arrives" if on_vm == 1 else _MANY_GO_ON.format(on_vm))
    if waiting:
        said.append("1 run waits for it" if waiting == 1 else f"{waiting} runs wait for it")
    return said


_MANY_GO_ON: Final = "{} runs go on on their VMs, and nothing of them arrives"


def _vms(runs: Sequence[RunView], vms: Sequence[Mapping[str, Any]], now: float) -> list[AlertView]:
    found = []
    for vm in vms:
        vm_id, age_s = vm["vm_id"], vm["seen_age_s"]
        mine = [view.run_id for view in runs if view.vm_id == vm_id and not view.ended]
        quiet = vm["state"] in (VmState.SILENT, VmState.LOST) or (vm["state"] == VmState.LIVE and age_s > QUIET_S)
        waiting = mine or any(view.state == RunState.LOST for view in runs)
        if vm["state"] == "unpaired":
            found.append(AlertView(f"unpaired:{vm_id}", BAD, f"{vm_id} is refused: {vm['reason']}", _CELL))
        elif quiet and age_s < OLD_S and waiting:
            text = f"{vm_id} has not been heard of for {duration(age_s)}"
            found.append(AlertView(f"silent:{vm_id}", BAD, text, f"look at its notebook; {_CELL}"))
        elif vm["state"] == VmState.LIVE and not vm.get("released"):
            found += [*_cell(vm, mine), *_store(vm, mine), *_trash(vm), *_export(vm)]
    return found


def _cell(vm: Mapping[str, Any], runs: Sequence[str]) -> list[AlertView]:
    """A notebook VM whose kernel is idle is taken away, however busy its daemons are: often within minutes."""
    silent_s, vm_id = vm["heartbeat"].get("cell_age_s"), vm["vm_id"]
    if not isinstance(silent_s, int | float) or silent_s < CELL_SILENT_S:
        return []
    text = f"the cell of {vm_id} has not beaten for {duration(silent_s)}: the VM may be taken away at any minute"
    more = f", and {', '.join(runs[:3])} with it" if runs else ""
    return [AlertView(f"cell:{vm_id}", BAD if runs else WARN, text + more, _CELL)]


def _store(vm: Mapping[str, Any], runs: Sequence[str]) -> list[AlertView]:
    beat, vm_id = vm["heartbeat"], vm["vm_id"]
    store = beat.get("store") if isinstance(beat.get("store"), dict) else {}
    found = []
    if store.get("warning"):
        text = f"the store of {vm_id} will get too small: {store['warning']}"
        found += [AlertView(f"room:{vm_id}", WARN, text, "make room there and empty its trash, or raise quota_gb")]
    if store.get("ok") and store.get("error"):  # well, but for what only a person can put right: a sign-in that ended
        text = f"{vm_id}: {store['error']}. Checkpoints are in the store, and nobody proves it"
        found += [AlertView(f"unproven:{vm_id}", WARN, text, _CELL)]
    if not beat or store.get("ok"):
        return found
    if not store:
        text = f"{vm_id} has no durable store: nothing outlives it"
        return [AlertView(f"no-store:{vm_id}", WARN, text, "mount Drive or set [store], then run the cell again")]
    text = f"the store of {vm_id} is ill: {store.get('error') or 'it does not answer'}"
    more = ". Training goes on, checkpoints stay on the VM" if runs else ""
    return [*found, AlertView(f"store:{vm_id}", BAD, text + more, _CELL)]


def _trash(vm: Mapping[str, Any]) -> list[AlertView]:
    """What was removed or replaced in a mounted Drive lies in its trash, and counts against the quota."""
    store, vm_id = vm["heartbeat"].get("store"), vm["vm_id"]
    trash, free = (store.get(name) if isinstance(store, dict) else 0 for name in ("trash_bytes", "free_bytes"))
    if not isinstance(trash, int) or not isinstance(free, int) or trash < max(free, TRASH_BYTES):
        return []
    text = f"{size_text(trash)} lie in the trash of the store of {vm_id} and count; {size_text(free)} are free"
    return [AlertView(f"trash:{vm_id}", WARN, text, "empty its trash")]


def _export(vm: Mapping[str, Any]) -> list[AlertView]:
    """What a run before the export only warns of in its log: hours later the export would fail there."""
    what, hint = launch_notes.export_trouble(vm)
    return [AlertView(f"export:{vm['vm_id']}", WARN, f"{vm['vm_id']} can't export: {what}", hint)] if what else []


_CELL: Final = "run the bootstrap cell there again"


def _failed(view: RunView, now: float) -> list[AlertView]:
    if view.state != RunState.FAILED or now - view.updated > OLD_S:
        return []
    why = ": ".join(part for part in (view.failure_class, view.reason or view.message) if part)
    text = f"{view.run_id} failed" + (f" ({why[:300]})" if why else "")
    return [AlertView(f"failed:{view.run_id}:{view.attempt}", BAD, text, next_steps.next_step(view))]


def _unconfirmed(view: RunView, now: float) -> list[AlertView]:
    risk = view.at_risk
    if risk is None or view.state not in _WORKING or view.stage == SHELL_STAGE:
        return []
    seconds = risk["seconds"] if risk["level"] else now - view.updated  # the ledger's last word was its start
    if seconds is None or seconds < UNCONFIRMED_S:
        return []
    held = f"since the last {risk['level']} checkpoint" if risk["level"] else "and no checkpoint is in the store"
    text = f"{view.run_id}: {duration(seconds)} of work {held}: lost if its VM dies now"
    return [AlertView(f"unconfirmed:{view.run_id}", WARN, text, "look at the store; checkpoint more often")]


def _stalled(view: RunView) -> list[AlertView]:
    if view.stalled_s is None:
        return []
    text = f"{view.run_id} has made no progress for {duration(view.stalled_s)}, many times what is usual"
    next_step = f"bridgehead logs {view.run_id}; bridgehead stop {view.run_id} saves and ends it"
    return [AlertView(f"stalled:{view.run_id}:{view.attempt}", BAD, text, next_step)]
