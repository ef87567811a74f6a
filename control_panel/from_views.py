"""From run_control's views to what the panel shows: the same facts under the panel's names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

from bridgehead import image, names
from bridgehead.names import FailureClass, RunState
from bridgehead.queue_lines import Verb
from control_panel.log_text import plain
from control_panel.run_files import RunFiles
from control_panel.shapes import Alert, QueueLine, Run, Vm, VmState, age
from run_control import next_steps
from run_control.alerts import AlertView
from run_control.bridge_control import LiveBridge
from run_control.views import RunView

CELL_BEATS_S: Final = 120.0  # the cell writes every few seconds; after this it does not run
_STATES: Final = {"live": VmState.LIVE, "lost": VmState.LOST, "gone": VmState.ENDED, "released": VmState.RELEASED}
_FATES: Final = {
    RunState.QUEUED: "taken",
    RunState.STARTING: "started",
    RunState.RUNNING: "started",
    RunState.SAVING: "started",
    RunState.RESUMING: "started",
    RunState.LOST: "waiting",
}
_URL_MAX = 300


def run(view: RunView, found: RunFiles, stopped_by: int | None = None) -> Run:
    """`found`: its folder here, looked at just now; `stopped_by`: number of the line that asked it to stop."""
    levels = view.levels or ({view.checkpoint["level"]: view.checkpoint} if view.checkpoint else {})
    risk, cause = view.at_risk, found.cause(view.attempt) if view.state == RunState.FAILED else {}
    return Run(
        id=view.run_id,
        stage=view.stage,
        vm=view.vm_id if began(view, found) else "",
        state=view.state,
        waits_for=plain(view.waits_for),
        attempt=view.attempt,
        step=view.step,
        total_steps=view.total_steps,
        epoch=view.epoch,
        total_epochs=view.total_epochs,
        rate_per_s=None if view.rate_per_s is None else float(f"{view.rate_per_s:.3g}"),
        eta_s=None if view.eta_range_s is None else [float(round(seconds)) for seconds in view.eta_range_s],
        metrics={plain(name, 64): float(f"{value:.6g}") for name, value in view.metrics.items()},
        checkpoint={str(level): _level(levels.get(level)) for level in names.CheckpointLevel},
        at_risk=risk and {**risk, "seconds": None if risk["seconds"] is None else age(risk["seconds"])},
        verdict=found.verdict,
        verdict_why=found.verdict_why,
        failure=plain(str(cause.get("class") or view.failure_class), 40),
        reason=plain(view.reason or str(cause.get("detail") or "")),
        next=plain(next_steps.next_step(view, cause)),
        created=view.created,
        updated=view.updated,
        exit_code=view.exit_code,
        log_bytes=found.log.size_bytes,
        resumed=found.resumed,
        bar=found.log.bar,
        message=plain(view.message),
        cost=view.cost,
        stalled_s=None if view.stalled_s is None else age(view.stalled_s),
        stopped_by=stopped_by,
        stopping=view.stopping and {"at": view.stopping["at"], "why": plain(str(view.stopping["why"]), 300)},
    )


def began(view: RunView, found: RunFiles) -> bool:
    """False of a run that ended before any attempt: what it comes after failed, or it was stopped in the queue."""
    if view.state not in (RunState.FAILED, RunState.STOPPED) or view.exit_code is not None or view.step:
        return True
    upstream = view.failure_class == FailureClass.UPSTREAM and view.attempt == 1  # its VM says so in the log
    return found.log.size_bytes > 0 and not upstream


def _level(item: Mapping[str, Any] | None) -> dict[str, Any] | None:
    return {"step": item["step"], "age_s": age(item["age_s"]), "at": item["at"]} if item else None


def vm(told: Mapping[str, Any], local: Sequence[str], drift: str) -> Vm:
    """`told`: of views.vms; `local`: ids of the VMs on this machine; `drift`: how its image differs from before."""
    beat = told["heartbeat"]
    life = _table(beat, "lifetime")
    state = _STATES.get(told["state"], VmState.SILENT)
    up_s = _number(life.get("age_s")) or max(0.0, told["last_seen"] - told["first_seen"])
    return Vm(
        id=told["vm_id"],
        state=state,
        accelerator=plain(", ".join(str(gpu.get("name", "?")) for gpu in _gpus(beat)), 120),
        up_s=age(up_s + (told["seen_age_s"] if state is VmState.LIVE else 0.0)),
        cap_s=_number(life.get("cap_s")) or None,
        seen_s=age(told["seen_age_s"]),
        gauges=gauges(beat),
        kept_alive_by=_kept_alive_by(beat, life),
        tunnel=plain(str(beat.get("address_note") or ""), 300),
        image_drift=drift,
        note=plain(str(told["reason"] or life.get("note") or _store_note(beat)), 300),
        seen_at=told["last_seen"],
        local=told["vm_id"] in local,
    )


def gauges(beat: Mapping[str, Any]) -> dict[str, dict[str, float | None]]:
    """Of one heartbeat; what it does not tell is missing. Several GPUs: their mean use, the sum of their memory."""
    found: dict[str, dict[str, float | None]] = {}
    gpus = _gpus(beat)
    if gpus:
        uses = [float(gpu["use"]) for gpu in gpus if isinstance(gpu.get("use"), int | float)]
        found["gpu"] = {"use": round(sum(uses) / len(uses), 2) if uses else None}
        used, total = (sum(_number(gpu.get(f"memory_{what}_mb")) * 2**20 for gpu in gpus) for what in ("used", "total"))
        found |= _gauge("gpu_memory", used, total)
    for name, source in (("ram", "memory"), ("disk", "disk")):
        total = _number(beat.get(f"{source}_total_bytes"))
        found |= _gauge(name, total - _number(beat.get(f"{source}_free_bytes")), total)
    store = _table(beat, "store")
    total = _number(store.get("quota_bytes") or store.get("total_bytes"))
    if total:
        found |= _gauge("store", total - _number(store.get("free_bytes")), total)
    elif _number(store.get("free_bytes")):
        found["store"] = {"free": _number(store["free_bytes"])}  # most stores tell no more
    return found


def queue_line(command: Mapping[str, Any], command_id: str, *, began: bool = True) -> QueueLine:
    """`command`: of views.commands; `command_id`: of the press that sent it, else the ledger's."""
    verb = command["verb"]
    line = f"{Verb.SH}: {command['argument']}" if verb == Verb.SH else command["line"]
    return QueueLine(
        n=command["seq"],
        id=command_id,
        line=plain(line, 500),
        state=_FATES.get(command["state"], str(command["state"])),
        run=command["run_id"],
        why=plain("; ".join(filter(None, (command["waits_for"], command["reason"])))),
        exit_code=command["exit_code"],
        t=command["updated"],
        began=began,
    )


def alert(view: AlertView, since: float) -> Alert:
    return Alert(view.key, view.level, plain(view.text), plain(view.next), since)


def bridge(live: LiveBridge | None, trouble: str, *, started_once: bool) -> dict[str, str]:
    """`started_once`: there is a ledger. The address goes without what may be secret in it."""
    if live is None:
        return {"state": "down" if started_once else "unknown", "url": "", "tunnel": "", "trouble": trouble}
    parts = urlsplit(live.url)
    url = f"{parts.scheme}://{parts.hostname or ''}{f':{parts.port}' if parts.port else ''}" if live.url else ""
    tunnel = f"{live.tunnel}: {live.tunnel_state}" if live.tunnel_state else live.tunnel
    return {"state": "up", "url": url[:_URL_MAX], "tunnel": tunnel, "trouble": live.tunnel_note or trouble}


def drift(now: Mapping[str, Any], before: Mapping[str, Any]) -> str:
    """How the image that a run is on differs from the one that the run before it was on, where bits depend on it."""
    return "; ".join(image.differences(before, now)[0])[:300] if now and before else ""


def _kept_alive_by(beat: Mapping[str, Any], life: Mapping[str, Any]) -> str:
    cell_s = beat.get("cell_age_s")
    if isinstance(cell_s, int | float) and cell_s < CELL_BEATS_S:
        return "cell"
    return plain(str(life.get("stays_because") or ("nobody: the cell does not run" if beat else "")), 200)


def _store_note(beat: Mapping[str, Any]) -> str:
    store = _table(beat, "store")
    if not beat or (store.get("ok") and not store.get("error")):
        return ""
    return f"store: {store.get('error') or 'ill'}" if store else "no durable store"


def _gpus(beat: Mapping[str, Any]) -> list[dict[str, Any]]:
    gpus = beat.get("gpus")
    return [gpu for gpu in gpus if isinstance(gpu, dict)] if isinstance(gpus, list) else []


def _table(beat: Mapping[str, Any], name: str) -> dict[str, Any]:
    found = beat.get(name)
    return found if isinstance(found, dict) else {}


def _gauge(name: str, used: float, total: float) -> dict[str, dict[str, float | None]]:
    return {name: {"used": max(0.0, used), "total": total}} if total > 0 else {}


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else 0.0
