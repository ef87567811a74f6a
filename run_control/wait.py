"""Following runs on the laptop until they have ended."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence

from bridge.ledger_rows import REJECTED
from bridgehead import names
from bridgehead.errors import BridgeheadError, NotFoundError, RunFailed, StillRunning, UsageError, VmError, WaitTimeout
from bridgehead.names import RunState
from run_control import views
from run_control.project import Project
from run_control.views import RunView

_POLL_S = 0.25


def resolve(project: Project, words: Sequence[str]) -> list[str]:
    """Run ids for run ids, their beginnings, or stages; with no words all runs that have not ended.

    Raises NotFoundError.
    """
    if words:
        return [views.run(project, word).run_id for word in words]
    going = [view.run_id for view in views.runs(project) if not view.ended]
    if not going:
        raise NotFoundError("nothing is queued or running", hint="bridgehead run STAGE")
    return going


def watch(
    project: Project,
    run_ids: Sequence[str],
    *,
    timeout_s: float | None = None,
    poll_s: float = _POLL_S,
    check: Callable[[], None] | None = None,
) -> Iterator[RunView]:
    """Yield each run now and whenever something about it changes, until all have ended.

    `check` is called between looks. Raises what it raises, WaitTimeout after `timeout_s`, and StillRunning at once
    with a timeout of 0.
    """
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    seen: dict[str, RunView] = {}
    with views.ledger_of(project) as ledger:
        while True:
            short = ledger.no_room()
            for run_id in run_ids:
                view = views.run_view(project, ledger.find_run(run_id), short=short)
                if _without_ages(view) != seen.get(run_id):
                    seen[run_id] = _without_ages(view)
                    yield view
            going = [view for view in seen.values() if not view.ended]
            if not going:
                return
            if deadline is not None and time.monotonic() >= deadline:
                raise _too_late(going[0], timeout_s or 0.0)
            if check is not None:
                check()
            time.sleep(poll_s)


def outcome(view: RunView) -> BridgeheadError | None:
    """The error that a run's state stands for; None when it is done."""
    if view.state == RunState.DONE:
        return None
    parts = [part for part in (view.failure_class, view.reason or view.message) if part and part != view.state]
    why = ": ".join(parts)
    text = f"{view.run_id} {view.state}" + (f" ({why})" if why else "")
    if view.state == REJECTED:
        return UsageError(text, hint="bridgehead queue")
    if view.state in names.ENDED:
        return RunFailed(text, hint=f"bridgehead logs {view.run_id}")
    if view.state == RunState.LOST:
        return VmError(f"{view.run_id} {view.waits_for}", hint=f"then bridgehead wait {view.run_id}")
    return StillRunning(f"{view.run_id} is {view.state}", hint=f"bridgehead wait {view.run_id}")


def _too_late(view: RunView, timeout_s: float) -> BridgeheadError:
    if timeout_s == 0:
        return StillRunning(f"{view.run_id} is {view.state}", hint=f"bridgehead wait {view.run_id}")
    return WaitTimeout(
        f"{view.run_id} is still {view.state} after {timeout_s:g} s", hint=f"it goes on: bridgehead wait {view.run_id}"
    )


def _without_ages(view: RunView) -> RunView:
    checkpoint = {key: value for key, value in (view.checkpoint or {}).items() if key != "age_s"}
    levels = {level: {**item, "age_s": None} for level, item in view.levels.items()}
    return dataclasses.replace(
        view, status_age_s=None, checkpoint=checkpoint or None, levels=levels, at_risk=None, cost=None, stalled_s=None
    )
