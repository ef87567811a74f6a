"""Which events there are to tell: the ledger, the runs' status files and the alarms, looked at again and again."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence

from bridge.ledger_rows import REJECTED
from bridgehead.names import RunState
from bridgehead.records import duration
from run_control import alarms, alerts, bridge_control
from run_control.alerts import AlertView
from run_control.live_view import LiveView
from run_control.notify_event import Event
from run_control.notify_memory import Memory
from run_control.notify_spec import EventKind
from run_control.project import Project
from run_control.views import RunView

LASTS_S = 30.0  # what passes by itself so soon is nobody's business
AGAIN_AFTER_S = 3600.0  # an alarm that went away and came back
LOST_AGAIN_S = 600.0  # a VM that is silent now and then
_NUMBERS = re.compile(r"\d[\d.,]*")
_STALLED = "stalled:"
# Told as events of a run, or never true in the bridge's own process.
_ELSEWHERE = ("failed:", "silent:", "bridge-down")


class Watcher:
    """`look()` every few seconds; it returns what is new. Remembers through `memory` what was told before."""

    def __init__(
        self,
        project: Project,
        name: str,
        memory: Memory,
        *,
        clock: Callable[[], float] = time.time,
        find_alarms: Callable[[Project], list[str]] = alarms.alarms,
    ) -> None:
        self._project = project
        self._name = name
        self._memory = memory
        self._clock = clock
        self._find_alarms = find_alarms
        self._view = LiveView(project)
        self._back: set[str] = set()  # runs that were told as lost, and seen to run since
        self._present: dict[str, float] | None = None  # key → since when, of the alarms that are there now

    def close(self) -> None:
        self._view.close()

    def look(self) -> list[Event]:
        """The events since the last look; with a fresh memory none, and all that has ended counts as told."""
        now = self._clock()
        self._view.look()
        runs = self._view.runs(now)
        if self._memory.is_new:
            self._memory.baseline({_end_key(run): now for run in runs if run.ended})
        events = [event for run in runs if (event := self._of_run(run, now)) is not None]
        return [*events, *self._of_alarms(runs, now)]

    # --- runs --------------------------------------------------------------------------------------------

    def _of_run(self, run: RunView, now: float) -> Event | None:
        key = _lost_key(run)
        if run.ended:
            return None if self._memory.knows(_end_key(run)) else self._end(run, now)
        if run.state != RunState.LOST:
            working = run.state in (RunState.RUNNING, RunState.SAVING, RunState.RESUMING)
            if working and self._memory.knows(key):
                self._back.add(run.run_id)
            return None
        known = self._memory.told_at(key)
        if known and (run.run_id not in self._back or now - known < LOST_AGAIN_S):
            return None
        self._back.discard(run.run_id)
        title = f"{run.run_id} lost its VM"
        return self._event(key, EventKind.LOST, title, run.waits_for, now, run.run_id, "bridgehead status")

    def _end(self, run: RunView, now: float) -> Event:
        failed = run.state in (RunState.FAILED, REJECTED)
        why = ": ".join(filter(None, (run.failure_class, run.reason or run.message)))
        code = f"exit code {run.exit_code}" if run.exit_code else ""
        text = why or code if failed else f"after {duration(max(0.0, run.updated - run.created))}"
        hint = f"bridgehead logs {run.run_id}" if failed else ""
        kind = EventKind.FAILED if failed else EventKind.FINISHED
        return self._event(_end_key(run), kind, f"{run.run_id} {run.state}", text, now, run.run_id, hint)

    # --- alarms ------------------------------------------------------------------------------------------

    def _of_alarms(self, runs: Sequence[RunView], now: float) -> list[Event]:
        there = self._alarms(runs, now)
        if self._present is None:  # what was told by the bridge before us, and is still there, is the same alarm
            self._present = {key: known for key in there if (known := self._memory.told_at(key))}
        self._present = {key: self._present.get(key, now) for key in there}
        return [there[key] for key, since in self._present.items() if self._is_due(key, since, now)]

    def _is_due(self, key: str, since: float, now: float) -> bool:
        """Once it has lasted; again only when it is younger than what was told, so that it was away in between."""
        known = self._memory.told_at(key)
        return now - since >= LASTS_S and (not known or (since > known and now - known >= AGAIN_AFTER_S))

    def _alarms(self, runs: Sequence[RunView], now: float) -> dict[str, Event]:
        vms, live = self._view.vms(now), bridge_control.find(self._project)
        found = alerts.alerts(runs, vms, live, now=now, bridge_up=True)
        events = [self._alert(alert, now) for alert in found if not alert.key.startswith(_ELSEWHERE)]
        for line in self._find_alarms(self._project):
            if not line.startswith(
                alarms.QUIET
            ):  # one that would go the way that fails, or that a sink catches up with
                text, _, step = line.partition(". next: ")
                key = f"alarm:{_NUMBERS.sub('#', line)}"
                events.append(self._event(key, EventKind.ALARM, f"{self._name} needs you", text, now, step=step))
        return {event.key: event for event in events}

    def _alert(self, alert: AlertView, now: float) -> Event:
        key = f"alert:{alert.key}"
        if not alert.key.startswith(_STALLED):
            return self._event(key, EventKind.ALARM, f"{self._name} needs you", alert.text, now, step=alert.next)
        run_id = alert.key.split(":")[1]
        title = f"{run_id} stands still"
        return self._event(key, EventKind.STALLED, title, alert.text, now, run_id, alert.next)

    def _event(
        self, key: str, kind: EventKind, title: str, text: str, now: float, run_id: str = "", step: str = ""
    ) -> Event:
        return Event(key, str(kind), f"{self._name}: {title}" if run_id else title, text, now, self._name, run_id, step)


def _end_key(run: RunView) -> str:
    return f"end:{run.run_id}"


def _lost_key(run: RunView) -> str:
    return f"lost:{run.run_id}"
