"""The command stop: the first one lets a run save, and one that would kill it says so before."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from run_control.cli_support import JsonFlag, ProjectFlag, emit, note, project_of, say

if TYPE_CHECKING:
    from run_control.project import Project
    from run_control.stopping import UnderWay
    from run_control.views import RunView

StopArgument = Annotated[
    str, typer.Argument(metavar="RUN", help="A run id, its beginning, or a stage: its newest run.")
]
KillFlag = Annotated[bool, typer.Option("--kill", help="End it at once; what came after its last checkpoint is lost.")]


def stop(
    context: typer.Context,
    run: StopArgument,
    kill: KillFlag = False,
    json: JsonFlag = False,
    project: ProjectFlag = None,
) -> int:
    """Let a run save a checkpoint and stop; of one that is being stopped already, ask before it is killed."""
    from run_control import stopping

    found = project_of(context, project)
    code, view, already = _stop(found, run, kill=kill, as_json=json)
    if view is None or already is None:
        return code
    told = stopping.kill_words(view, already)
    asks = can_ask(as_json=json)
    if asks and typer.confirm(f"{told}. Kill it now?", default=False, err=True):
        return _stop(found, view.run_id, kill=True, as_json=json)[0]
    data = {"run": view.to_json(), "taken": False, "already": already.to_json()}
    step = "" if asks else f". next: wait, or bridgehead stop {view.run_id} --kill"
    return emit(data, as_json=json, show=lambda: say(f"{told}{step}"))


def can_ask(*, as_json: bool) -> bool:
    """Whether there is a person to ask."""
    return not as_json and sys.stdin.isatty() and sys.stderr.isatty()


def _stop(project: Project, run: str, *, kill: bool, as_json: bool) -> tuple[int, RunView | None, UnderWay | None]:
    """(exit code, the run and what stops it already, where nothing was written for that)."""
    from run_control import commands, queueing, stopping, views
    from run_control.cli_runs import submit

    views.run(project, run)  # before the first `up` there is no folder for a lock either
    with queueing.in_turn(project.stop_lock):
        view, lines = commands.stop_lines(project, run, now=kill)
        if not lines:
            data = {"run": view.to_json(), "taken": False}
            text = f"{view.run_id} has ended already: {view.state}"
            return emit(data, as_json=as_json, show=lambda: say(text)), None, None
        already = stopping.under_way(project, view)
        if already is not None and already.lines and not kill:
            return 0, view, already
        if already is not None and not kill:
            note(f"{view.run_id} is already being stopped: {already.in_words(time.time())}; this joins it")
        for line in lines[:-1]:
            queueing.submit(project, line)
        return submit(project, lines[-1], wait=False, as_json=as_json), None, None
