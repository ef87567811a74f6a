"""What keeps the panel's model up to date: one thread that looks at the ledger, at in/ and at the bridge.

It only reads, so the bridge may run in a process of its own, in this one, or not at all. A look costs next to nothing
while nothing has changed: the ledger is asked for its version, files for their size.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from bridgehead import names
from bridgehead.errors import BridgeheadError, ProjectError
from control_panel import from_views
from control_panel.checks import Checks
from control_panel.model import PanelModel, Update
from control_panel.run_files import RunFiles
from control_panel.sent import Sent
from control_panel.shapes import Alert, Artifact, Cost, LogLine, QueueLine, Vm
from control_panel.what_next import next_step
from run_control import alarms, alerts, bridge_control, local_vms, money_view, project_file, stopping, views
from run_control.alerts import AlertView
from run_control.bridge_control import LiveBridge
from run_control.live_view import Cached, LiveView
from run_control.project import Project
from run_control.views import RunView

TICK_S: Final = 0.2
PROGRESS_EVERY_S: Final = 0.5
WHOLE_EVERY_S: Final = 0.4  # at least between two looks at everything, unless a press of this panel waits to be shown
AGES_EVERY_S: Final = 1.0  # all is told anew so often, for what changes by time alone
SLOW_EVERY_S: Final = 10.0
ENDED_LOOKS_S: Final = 60.0  # a run that ended so long ago is looked at with the slow things only
LINES_MAX: Final = 20_000  # of all logs in one look
_log = logging.getLogger(__name__)


class Feed:
    """`start` and `close` once each; or `look` by hand, from one thread."""

    def __init__(
        self,
        project: Project,
        model: PanelModel,
        *,
        sent: Sent | None = None,
        checks: Checks | None = None,
        bridge: Callable[[], Mapping[str, str]] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`sent`, `checks`: lines that the panel's actions added, and what they found out of bundles.

        `bridge` tells of a bridge in this very process.
        """
        self._project = project
        self._model = model
        self._sent = sent or Sent()
        self._own_bridge = bridge
        self._clock = clock
        self._view = LiveView(project)
        self._runs: dict[str, RunFiles] = {}
        self._seen: list[RunView] = []
        self._since: dict[str, float] = {}  # key of an alert -> when it was first seen
        self._file = Cached(project.file, lambda: project_file.load(project.root))
        self._next_progress = self._next_ages = self._next_slow = self._whole_at = 0.0
        self._news = False  # the ledger has changed, and not all of it is shown yet
        self._live: LiveBridge | None = None
        self._local: list[str] = []
        self._stages: list[dict[str, Any]] = []
        self._cost: dict[str, Any] | None = None
        self._checks = checks or Checks(project.private)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin. Does nothing the second time."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="bridgehead-panel-feed", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """End the thread and let go of the ledger."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(10)
        self._view.close()

    def look_at_checks(self) -> None:
        """A check of an artifact has just found something: shown with the next look. From any thread."""
        self._next_ages = 0.0

    def look(self) -> bool:
        """One look at everything that is due. Returns whether anything is new to a view."""
        now = self._clock()
        self._news = self._view.look() or self._news
        slow = now >= self._next_slow
        if slow:
            self._next_slow = now + SLOW_EVERY_S
            self._local = self._local_ids()
        due = slow or now >= self._next_ages or (self._news and self._is_time(now))
        due = self._sent.changed() or due
        if due:  # in between only logs and progress are looked at, for which older views do
            self._seen = self._view.runs(now)
        points, lines = self._read_folders(self._seen, now, slow=slow, progress=due)
        if due or points:
            self._seen = self._seen if due else self._view.runs(now)
            self._news, self._whole_at, self._next_ages = False, now, now + AGES_EVERY_S
            return self._model.ingest(self._all(self._seen, points, lines, now, slow=slow))
        return self._model.ingest(Update(lines=lines)) if lines else False

    # --- inside ---------------------------------------------------------------------------------

    def _work(self) -> None:
        failing = False
        while not self._stop.wait(TICK_S):
            try:
                self.look()
                failing = False
            except Exception:  # noqa: BLE001  edge of the thread: whatever a file holds, the next look may do better
                if not failing:
                    _log.exception("the panel could not look at %s", self._project.root)
                failing = True

    def _is_time(self, now: float) -> bool:
        """What the ledger tells comes in bursts; a clock that was set back must not hold it up."""
        return not 0 <= now - self._whole_at < WHOLE_EVERY_S

    def _read_folders(
        self, runs: list[RunView], now: float, *, slow: bool, progress: bool
    ) -> tuple[dict[str, dict[str, list[tuple[int, float]]]], list[LogLine]]:
        """New points and log lines of the runs that may have any."""
        points: dict[str, dict[str, list[tuple[int, float]]]] = {}
        progress = progress or now >= self._next_progress
        self._next_progress = now + PROGRESS_EVERY_S if progress else self._next_progress
        lines: list[LogLine] = []
        for gone in set(self._runs) - {view.run_id for view in runs}:
            del self._runs[gone]
        for view in runs:
            known = self._runs.get(view.run_id)
            fresh = known is None
            found = known or RunFiles(self._project.run(view.run_id), view.run_id)
            self._runs[view.run_id] = found
            if view.ended and now - view.updated > ENDED_LOOKS_S and not (slow or fresh):
                continue
            if progress and (told := found.points()):
                points[view.run_id] = told
            lines += found.log.look(view.vm_id, now)
        return points, lines[-LINES_MAX:]

    def _all(
        self, runs: list[RunView], points: Mapping[str, Any], lines: list[LogLine], now: float, *, slow: bool
    ) -> Update:
        paced = [views.with_pace(view, self._runs[view.run_id].pace) for view in runs]
        told = self._view.vms(now)
        self._live = self._bridge_now()
        can, mistake = self._project_now()
        stops, vms = stopping.first_lines(self._view.rows), self._vms(told, runs)
        shown = [from_views.run(view, self._runs[view.run_id], stops.get(view.run_id)) for view in paced]
        bridge, artifacts = self._bridge_told(), self._artifacts(runs, anew=slow)
        if slow:  # it moves by cents a minute, and reads the project file and the prices
            self._cost = money_view.cost(self._project, runs, told, now)
        return Update(
            vms=vms,
            runs=shown,
            points=points,
            lines=lines,
            queue=self._queue(runs),
            artifacts=artifacts,
            alerts=self._alerts(paced, told, mistake, now),
            cost=Cost(**self._cost) if self._cost is not None else None,
            bridge=bridge,
            stages=self._stages,
            can=can,
            next=next_step(bridge, vms, shown, self._stages, artifacts, mistake),
            project=self._project.root.name,
        )

    def _bridge_now(self) -> LiveBridge | None:
        with contextlib.suppress(BridgeheadError, OSError):
            return bridge_control.find(self._project)
        return None

    def _bridge_told(self) -> dict[str, str]:
        if self._own_bridge is not None:
            return {"state": "up", "url": "", "tunnel": "", "trouble": "", **self._own_bridge()}
        started_once = bool(self._view.rows or self._view.vm_rows) or self._project.ledger.exists()
        trouble = self._view.trouble
        return from_views.bridge(self._live, trouble, started_once=started_once)

    def _project_now(self) -> tuple[dict[str, Any], str]:
        """What is allowed, and a mistake in the project file: with one the stages of before it stay."""
        try:
            found = self._file.get()
        except ProjectError as error:
            return {"sh": False, "why": f"{names.PROJECT_FILE} can't be read: mend it first"}, error.in_one_line()
        self._stages = [
            {"name": stage.name, "after": list(stage.after), "command": stage.command}
            for stage in found.stages.values()
        ]
        return {"sh": found.allow_sh}, ""

    def _alerts(self, runs: list[RunView], vms: list[dict[str, Any]], mistake: str, now: float) -> list[Alert]:
        up = True if self._own_bridge is not None else None
        found = alerts.alerts(runs, vms, self._live, now=now, bridge_up=up)
        if mistake:
            found.insert(0, AlertView("project-file", alerts.BAD, mistake, f"mend {names.PROJECT_FILE}"))
        for number, line in enumerate(alarms.alarms(self._project)):
            text, _, step = line.partition(". next: ")
            found.append(AlertView(f"laptop:{number}", alerts.BAD, text, step))
        self._since = {alert.key: self._since.get(alert.key, now) for alert in found}
        return [from_views.alert(alert, self._since[alert.key]) for alert in found]

    def _vms(self, vms: list[dict[str, Any]], runs: list[RunView]) -> list[Vm]:
        newest: dict[str, dict[str, Any]] = {}  # VM -> the image of its newest run
        drift: dict[str, str] = {}
        before: dict[str, Any] = {}
        for view in runs:
            image = self._runs[view.run_id].fingerprint
            if image and view.vm_id and view.vm_id not in newest:
                drift[view.vm_id] = from_views.drift(image, before)
                newest[view.vm_id] = before = image
        return [from_views.vm(vm, self._local, drift.get(vm["vm_id"], "")) for vm in vms]

    def _queue(self, runs: list[RunView]) -> list[QueueLine]:
        rows, known = self._view.rows, {view.run_id: view for view in runs}
        commands = views.commands_of(self._project, rows, self._view.short, known)
        told = [
            from_views.queue_line(
                command,
                self._sent.id_of(command["seq"], command["line"]) or row.id,
                began=row.run_id not in known or from_views.began(known[row.run_id], self._runs[row.run_id]),
            )
            for command, row in zip(commands, rows, strict=True)
        ]
        return [*told, *self._sent.waiting()]

    def _artifacts(self, runs: list[RunView], *, anew: bool) -> list[Artifact]:
        found = [item for view in runs for item in self._runs[view.run_id].artifacts(anew=anew)]
        return self._checks.shown(found, {view.run_id: self._runs[view.run_id].folder / names.BUNDLE for view in runs})

    def _local_ids(self) -> list[str]:
        with contextlib.suppress(BridgeheadError, OSError, ImportError):
            return [vm.vm_id for vm in local_vms.backend(self._project).list() if vm.vm_id and vm.alive]
        return []
