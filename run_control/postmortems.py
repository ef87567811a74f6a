"""Post-mortems on the laptop: those that came from VMs, and those that it writes itself where a VM left none."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bridgehead import files, names
from bridgehead.errors import BridgeheadError, StillRunning
from bridgehead.failures import postmortem
from bridgehead.names import RunState
from run_control import memos, verdicts, views
from run_control.project import Project
from run_control.views import RunView

GRACE_S: Final = 60.0  # for the VM's own to arrive: it leaves before exit.json, so that mostly it is here already
_HANDLED: Final = "postmortems_seen.json"  # in .bridgehead: what has been counted in a memo


@dataclass(frozen=True)
class PostMortem:
    folder: Path
    record: dict[str, Any]

    @property
    def page(self) -> str:
        """The Markdown page, made anew where the file is not there."""
        from bridgehead.failures.page import page

        with contextlib.suppress(OSError):
            return (self.folder / names.POSTMORTEM_PAGE).read_text(encoding="utf-8", errors="replace")
        return page(self.record)


def of(project: Project, view: RunView) -> PostMortem:
    """Of an ended run, written now if its VM left none. Raises StillRunning for one that has not ended, and OSError."""
    if not view.ended:
        raise StillRunning(f"{view.run_id} is {view.state}", hint=f"bridgehead wait {view.run_id}")
    folder = project.run(view.run_id)
    known = verdicts.of_attempt(folder, view.attempt)
    return PostMortem(folder, known or _write(project, view, folder))


def settle(project: Project, runs: list[RunView] | None = None, now: float | None = None) -> list[str]:
    """Post-mortems and memos of all that has ended since the last call; the run ids. Never in the way of its caller."""
    moment = time.time() if now is None else now
    with contextlib.suppress(OSError, BridgeheadError):  # a full laptop, a writer that hangs: tried again the next time
        return _settle(project, views.runs(project) if runs is None else runs, moment)
    return []


def _settle(project: Project, runs: list[RunView], now: float) -> list[str]:
    path = project.private / _HANDLED
    seen = files.read_json(path)
    handled: dict[str, Any] = seen if isinstance(seen, dict) else {}
    fresh = []
    for view in runs:
        key = f"{view.run_id}/{view.attempt}/{view.state}"
        waiting = view.state == RunState.LOST
        if key in handled or not (waiting or view.ended) or _is_awaited(project, view, now):
            continue
        try:
            record = {} if waiting else of(project, view).record
            memos.note(project, view, record, now)
        except OSError:  # something odd in its folder, or no room: the others have theirs, it is tried again
            continue
        handled[key] = round(now, 3)
        fresh.append(view.run_id)
    if fresh:
        files.write_json(path, handled)
    return fresh


def _is_awaited(project: Project, view: RunView, now: float) -> bool:
    """Whether the VM's own may still be on its way."""
    if not view.ended or now - view.updated >= GRACE_S:
        return False
    return verdicts.of_attempt(project.run(view.run_id), view.attempt) is None


def _write(project: Project, view: RunView, folder: Path) -> dict[str, Any]:
    folder.mkdir(parents=True, exist_ok=True)
    exit_record = files.read_json(folder / names.EXIT)
    seen = exit_record if isinstance(exit_record, dict) and exit_record.get("attempt") == view.attempt else {}
    ledger = {"attempt": view.attempt, "state": str(view.state), "exit_code": view.exit_code, "message": view.reason}
    ending = {**seen, **{key: value for key, value in ledger.items() if value not in (None, "")}}
    ending["failure_class"] = view.failure_class or seen.get("failure_class") or ""
    ending.setdefault("ended", view.updated)
    return postmortem.write(folder, postmortem.Measured(ending=ending), written_by="laptop")
