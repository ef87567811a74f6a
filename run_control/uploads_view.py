"""Artefacts on their way to the laptop, as the VMs last told: paused or not, and how far."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from bridge.ledger_rows import VmState
from bridgehead import files, names, upload_text
from run_control.project import Project

if TYPE_CHECKING:
    from bridge.ledger import Ledger


def is_paused(project: Project) -> bool:
    return (project.private / names.UPLOADS_PAUSED).exists()


def pause(project: Project) -> None:
    """From each VM's next heartbeat on; it lasts until `resume`, whatever is restarted meanwhile."""
    project.private.mkdir(mode=0o700, exist_ok=True)
    files.write_atomic(project.private / names.UPLOADS_PAUSED, b"")


def resume(project: Project) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(project.private / names.UPLOADS_PAUSED)


def lines(project: Project, vms: list[dict[str, Any]]) -> list[str]:
    """One for each live VM that has something on its way, and one when the owner has paused it."""
    found = []
    for vm in vms:
        text = upload_text.line(vm["heartbeat"].get("uploads"))
        if text and vm["state"] == VmState.LIVE:
            found.append(f"{vm['vm_id']}: {text}")
    if is_paused(project):
        found.append("uploads of artefacts are paused. next: bridgehead vm resume-uploads")
    return found


class Bars:
    """Progress bars on a terminal's stderr, one for each run whose artefacts are on their way; else nothing."""

    def __init__(self, ledger: Ledger, run_ids: list[str]) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        self._ledger = ledger
        self._run_ids = run_ids
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[told]}"))
        self._progress = Progress(*columns, console=Console(stderr=True), transient=True)
        self._tasks: dict[str, Any] = {}

    def look(self) -> None:
        """Show how far they are now."""
        there: set[str] = set()
        for vm in self._ledger.vms():
            told = vm.heartbeat.get("uploads") or {}
            runs = told.get("runs")
            for run in runs if isinstance(runs, list) and vm.state == VmState.LIVE else []:
                run_id = run.get("run_id") if isinstance(run, dict) else None
                if run_id in self._run_ids:
                    there.add(run_id)
                    self._show(run_id, told, run)
        for run_id in set(self._tasks) - there:
            self._progress.remove_task(self._tasks.pop(run_id))

    def _show(self, run_id: str, told: dict[str, Any], run: dict[str, Any]) -> None:
        done, total = upload_text.sums([run])
        speed = "paused" if told.get("paused") is True else upload_text.speed(told)
        text = f"{upload_text.size_text(done['bytes'])} of {upload_text.size_text(total['bytes'])}, {speed}"
        if run_id not in self._tasks:
            self._tasks[run_id] = self._progress.add_task(f"{run_id} artefacts", told=text)
        self._progress.update(self._tasks[run_id], total=total["bytes"] or 1, completed=done["bytes"], told=text)

    def start(self) -> None:
        self._progress.start()

    def stop(self) -> None:
        self._progress.stop()


@contextlib.contextmanager
def bars(project: Project, run_ids: list[str], *, wanted: bool) -> Iterator[Any]:
    """Yields a function to call between two looks at the runs."""
    if not (wanted and sys.stderr.isatty() and project.ledger.is_file()):
        yield lambda: None
        return
    from run_control import views

    with views.ledger_of(project) as ledger:
        shown = Bars(ledger, run_ids)
        shown.start()
        try:
            yield shown.look
        finally:
            shown.stop()
