"""What `status` shows, gathered once: as data for --json, as tables and lines for people."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bridge.tunnels import NONE
from run_control import alarms, bridge_control, money_view, postmortems, uploads_view, views
from run_control.alerts import alerts
from run_control.project import Project
from run_control.views import RunView

_BRIDGE_KEYS = ("pid", "port", "url", "tunnel", "tunnel_state", "tunnel_since", "tunnel_note")
# What moves by itself while nothing happens: how long ago something was, and the gauges of a heartbeat.
_AGES = frozenset({"age_s", "seen_age_s", "status_age_s", "stalled_s", "last_seen", "at_risk", "heartbeat", "money"})
# What moves all the time while a run is well.
_PACE = frozenset({"step", "epoch", "metrics", "eta_s", "eta_range_s", "rate_per_s", "updated", "message", "cost"})
Table = tuple[tuple[str, ...], list[tuple[str, ...]]]


@dataclass(frozen=True)
class StatusNow:
    """One look at a project. `tables` are (headers, rows); `before` and `after` are lines for a person around them."""

    data: dict[str, Any]
    before: list[str]
    tables: list[Table]
    after: list[str]

    def essence(self, *, pace: bool = True) -> dict[str, Any]:
        """The data without what grows older by itself: two looks that differ in it are worth telling.

        Without `pace` also without steps and metrics; how far the checkpoints have climbed stays.
        """
        plain: dict[str, Any] = _without(_AGES if pace else _AGES | _PACE, self.data)
        plain["vms"] = [{**vm, "reason": ""} if vm["released"] else vm for vm in plain["vms"]]  # it tells an age
        plain["alerts"] = [alert["key"] for alert in plain["alerts"]]  # so do these
        return plain


def look(project: Project, run_id: str = "") -> StatusNow:
    """Read the ledger, the runs' status files and the bridge's record; of one run alone where one is named.

    Raises NotFoundError when there is no such run.
    """
    live = bridge_control.find(project)
    runs, vms = [views.run(project, run_id)] if run_id else views.runs(project), views.vms(project)
    if run_id:
        vms = [vm for vm in vms if vm["vm_id"] == runs[0].vm_id]
    postmortems.settle(project, runs)
    trouble, need = alarms.alarms(project), alerts(runs, vms, live)
    tables: list[Table] = [(views.VM_HEADERS, [views.vm_row(vm) for vm in vms])] if vms else []
    tables.append((views.RUN_HEADERS, [view.row() for view in runs]))
    # Of the whole project alone: a run's own cost is in its row.
    spent = None if run_id else money_view.cost(project, runs, vms, time.time())
    data = {
        "project": str(project.root),
        "bridge": {name: getattr(live, name) for name in _BRIDGE_KEYS} if live else None,
        "vms": vms,
        "runs": [view.to_json() for view in runs],
        "money": spent,
        "alarms": trouble,
        "alerts": [alert.to_json() for alert in need],
        "uploads_paused": uploads_view.is_paused(project),
    }
    news = [alert.line() for alert in need if alert.is_news]
    after = _lines(project, live, runs, vms)
    if spent is not None:
        after.append(f"money: {money_view.in_words(spent)}")
    return StatusNow(data, [*trouble, *news], tables, after)


def show(now: StatusNow, *, say: Callable[[], None], note: Callable[[str], None], table: Callable[..., None]) -> None:
    """Print it with the caller's own ways to print a blank line, a line beside the data, and a table."""
    for line in now.before:
        note(line)
    for number, (headers, rows) in enumerate(now.tables):
        if number:
            say()
        table(headers, rows)
    for line in now.after:
        note(line)


def _lines(
    project: Project, live: bridge_control.LiveBridge | None, runs: list[RunView], vms: list[dict[str, Any]]
) -> list[str]:
    found = [f"{view.run_id}: {view.waits_for or view.stays}" for view in runs if view.waits_for or view.stays]
    found += uploads_view.lines(project, vms)
    if live is None:
        found.append("no bridge is running. next: bridgehead up")
    elif not live.url:
        found.append(f"{bridge_control.record_lost(project, live)}. next: {bridge_control.RESTART}")
    elif live.tunnel != NONE or live.tunnel_note:
        found.append(bridge_control.way_in(live))
    return found


def _without(keys: frozenset[str], value: Any) -> Any:
    if isinstance(value, dict):
        levels = "at" in value and "step" in value  # of a checkpoint, the step is what it is
        return {
            key: _without(keys, item) for key, item in value.items() if key not in keys or (levels and key == "step")
        }
    return [_without(keys, item) for item in value] if isinstance(value, list) else value
