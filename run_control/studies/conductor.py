"""Takes a study through the queue: queues what the budget allows, follows it, can be stopped and started at any point.

What is about to be queued is written down first, with the queue's newest number. Found again after a death, a line that
the queue has taken is adopted, one that waits in queue.txt is waited for, and only one that is in neither is queued.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bridge.ledger_rows import ENDED, REJECTED, CommandRow
from bridgehead import files, names
from bridgehead.errors import BridgeDownError, UsageError
from bridgehead.names import RunState
from run_control import bridge_control, locks, money, queue_writer, views
from run_control.money import Money
from run_control.project import Project
from run_control.studies import figures, study_file
from run_control.studies import tracker as tracking
from run_control.studies.study_file import Study
from run_control.studies.tracker import BEFORE, DONE, FAILED, PLANNED, QUEUED, RUNNING, TrackedCell, Tracker
from run_control.views import ledger_of

POLL_S = 0.5
_PATIENCE_S = 5.0
STOPPED = "stopped"
_OUTCOME = ("verdict", "effect", "interval", "candidate_accuracy", "baseline_accuracy")


def start(
    project: Project, folder: Path, study: Study, *, wait: bool, tell: Callable[[Tracker], None] = lambda tracker: None
) -> Tracker:
    """Queue and follow until all arms have ended, or budget or stop rule say no more; without `wait`, one round.

    Raises BridgeDownError, and UsageError when another `start` of this study is under way.
    """
    if bridge_control.find(project) is None:
        raise BridgeDownError("no bridge is running: nothing would take the study's lines", hint="bridgehead up")
    with alone(project, folder):
        tracker = tracking.load(folder, study)
        while True:
            if study_file.load(folder).sha256 != study.sha256:
                raise UsageError(
                    f"{study_file.STUDY} was edited while it was under way: nothing more is queued",
                    hint=f"bridgehead study plan {folder.name} --again, then start; what runs goes on",
                )
            before = tracker.to_json()
            _round(project, folder, study, tracker)
            if tracker.to_json() != before:
                tracking.save(folder, tracker)
                tell(tracker)
            if not wait or tracker.state in (DONE, STOPPED):
                return tracker
            time.sleep(POLL_S)


def refresh(project: Project, folder: Path, study: Study) -> Tracker:
    """The tracker as the ledger and the arrived results have it now; queues nothing.

    It is written only while nobody conducts the study: what `start` has just noted must not be written over.
    """
    with _lock(project, folder, patience_s=0.0) as mine:
        tracker = tracking.load(folder, study)
        if project.ledger.is_file():
            before = tracker.to_json()
            _follow(project, tracker, study.metric.name)
            _conclude(study, tracker)
            if mine and tracker.to_json() != before:
                tracking.save(folder, tracker)
    return tracker


@contextmanager
def alone(project: Project, folder: Path) -> Iterator[None]:
    """Raises UsageError when another command conducts the study; one that only looks at it is waited for."""
    with _lock(project, folder, patience_s=_PATIENCE_S) as mine:
        if not mine:
            raise UsageError(
                f"study {folder.name} is being conducted by another command", hint="bridgehead study status"
            )
        yield


def _round(project: Project, folder: Path, study: Study, tracker: Tracker) -> None:
    _follow(project, tracker, study.metric.name)
    for cell in tracker.cells:
        if cell.state == QUEUED and not all(run.run_id for run in cell.runs):
            _queue_again(project, cell)
    while (following := _next_cell(study, tracker)) is not None:
        _queue(project, folder, tracker, following)
        _follow(project, tracker, study.metric.name)
    _conclude(study, tracker)


def _next_cell(study: Study, tracker: Tracker) -> TrackedCell | None:
    """The next one to queue, if anything still may be."""
    waiting = [cell for cell in tracker.cells if cell.state == PLANNED]
    if not waiting or why_no_more(study, tracker):
        return None
    if waiting[0].id == BEFORE:
        return waiting[0]
    under_way = sum(cell.state in (QUEUED, RUNNING) for cell in tracker.arms)
    return waiting[0] if under_way < study.parallel else None


def why_no_more(study: Study, tracker: Tracker) -> str:
    """Why nothing more is queued; empty while it may be."""
    waiting = [cell for cell in tracker.cells if cell.state == PLANNED]
    spent, failed = tracker.spent, [cell.id for cell in tracker.cells if cell.state == FAILED]
    if len(failed) >= study.stop.failures or BEFORE in failed:
        return f"stop rule: {', '.join(failed)} failed"
    if waiting and spent["runs"] + len(waiting[0].runs) > study.budget.runs:
        return f"budget: {spent['runs']:g} of {study.budget.runs} runs are used"
    over = _over(study, tracker) if waiting else ""
    if over:
        return f"budget: {over}"
    if waiting and spent["hours"] >= study.budget.hours:
        return f"budget: {spent['hours']:g} of {study.budget.hours:g} hours are used"
    return ""


def _over(study: Study, tracker: Tracker) -> str:
    """Why a budget in money allows no more; a run whose price nobody knows ends it as well."""
    if not study.budget.cost:
        return ""
    runs = [run for cell in [*tracker.cells, *tracker.dropped] for run in cell.runs]
    unpriced = [run.run_id for run in runs if run.state in ENDED and not run.cost]
    if unpriced:
        return f"nobody knows what {unpriced[0]} cost: set the project's [money], or leave budget.cost out"
    cap, spent = money.parse(study.budget.cost), money.total(money.parse(run.cost) for run in runs if run.cost)
    if isinstance(spent, Money) and not cap > spent:
        return f"{spent} of {cap} are spent"
    return ""


def _conclude(study: Study, tracker: Tracker) -> None:
    under_way = any(cell.state in (QUEUED, RUNNING) for cell in tracker.cells)
    if all(cell.ended for cell in tracker.cells):
        tracker.state, tracker.why = DONE, ""
        return
    tracker.why = why_no_more(study, tracker)
    started = any(cell.state != PLANNED for cell in tracker.cells)
    tracker.state = STOPPED if tracker.why and not under_way else RUNNING if started else PLANNED


# --- into the queue ------------------------------------------------------------------------------------------


def _queue(project: Project, folder: Path, tracker: Tracker, cell: TrackedCell) -> None:
    """All lines of an arm with one write: so that nobody's line comes between them and each follows its own arm's."""
    newest = _newest_seq(project)
    for run in cell.runs:
        run.after_seq = newest
    cell.state = QUEUED
    tracking.save(folder, tracker)
    queue_writer.append(project.queue, [run.line for run in cell.runs])


def _queue_again(project: Project, cell: TrackedCell) -> None:
    """A death came between noting and queuing: neither the ledger nor the file has the lines."""
    missing = [run.line for run in cell.runs if not run.run_id]
    if len(missing) == len(cell.runs) and not _in_file(project, cell):
        queue_writer.append(project.queue, missing)


def _in_file(project: Project, cell: TrackedCell) -> bool:
    """Whether queue.txt holds more lines like the first one than the ledger has taken."""
    line = cell.runs[0].line
    try:
        there = project.queue.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return False
    with ledger_of(project) as ledger:
        taken = sum(row.text.strip() == line for row in ledger.commands())
    return sum(item.strip() == line for item in there) > taken


def _newest_seq(project: Project) -> int:
    if not project.ledger.is_file():
        return 0
    with ledger_of(project) as ledger:
        return max((row.seq for row in ledger.commands(limit=1)), default=0)


# --- following -----------------------------------------------------------------------------------------------


def _follow(project: Project, tracker: Tracker, metric: str) -> None:
    if not project.ledger.is_file():
        return
    with ledger_of(project) as ledger:
        rows = ledger.commands()
    claimed = {run.run_id for cell in [*tracker.cells, *tracker.dropped] for run in cell.runs if run.run_id}
    for cell in tracker.cells:
        if cell.state in (QUEUED, RUNNING):
            _adopt(cell, rows, claimed)
            _move(project, cell, {row.run_id: row for row in rows if row.run_id}, metric)


def _adopt(cell: TrackedCell, rows: list[CommandRow], claimed: set[str]) -> None:
    """Find the taken lines of an arm: after its number, with its text, following its own earlier runs."""
    mine: dict[str, str] = {}
    for run in cell.runs:
        if not run.run_id:
            for row in rows:
                fits = row.seq > run.after_seq and row.text.strip() == run.line and row.run_id not in claimed
                if fits and row.run_id and all(row.inputs.get(stage, of) == of for stage, of in mine.items()):
                    run.run_id = row.run_id
                    claimed.add(row.run_id)
                    break
                if fits and row.state == REJECTED:
                    cell.state, cell.why = FAILED, f"{run.line} was rejected: {row.reason}"
                    return
        mine[run.stage] = run.run_id


def _move(project: Project, cell: TrackedCell, rows: dict[str, CommandRow], metric: str) -> None:
    for run in cell.runs:
        row = rows.get(run.run_id)
        if row is None:
            continue
        run.state = str(row.state)
        run.seconds = _seconds(project.run(run.run_id))
        run.cost = str((views.run_view(project, row).cost or {}).get("so_far") or "")
    if cell.state == FAILED or not all(run.run_id for run in cell.runs):
        return
    if any(run.state not in (RunState.QUEUED,) for run in cell.runs):
        cell.state = RUNNING
    last = cell.runs[-1]
    broken = [run for run in cell.runs if run.state in ENDED and run.state != RunState.DONE]
    results = files.read_json(project.run(last.run_id) / names.RESULTS)
    if last.state in ENDED and isinstance(results, dict) and (last.state == RunState.DONE or "verdict" in results):
        cell.state = DONE  # a gate that says no has answered the question all the same
        cell.outcome = {name: results[name] for name in _OUTCOME if name in results}
        lacks = "" if cell.id == BEFORE else figures.lacks(results, metric)
        if lacks:  # told at the first arm: the others would be paid for, and compared with nothing
            cell.state, cell.why = FAILED, f"{last.run_id} can't be compared: {lacks}"
    elif broken and all(run.state in ENDED for run in cell.runs):
        row = rows[broken[0].run_id]
        failure = views.run_view(project, row).failure_class
        cell.state, cell.why = FAILED, f"{row.run_id} {row.state}: {failure or row.reason}"
    elif last.state == RunState.DONE and cell.id == BEFORE:
        cell.state = DONE


def _seconds(folder: Path) -> float:
    """How long a run took, once it has ended; the time in the queue is none of it."""
    record: Any = files.read_json(folder / names.EXIT)
    try:
        return round(max(0.0, float(record["ended"]) - float(record["started"])), 1)
    except (TypeError, KeyError, ValueError):
        return 0.0


@contextmanager
def _lock(project: Project, folder: Path, *, patience_s: float) -> Iterator[bool]:
    """Whether this command alone may write the study's files."""
    project.make_private()
    path = project.private / f"study-{folder.name}.lock"
    deadline = time.monotonic() + patience_s
    fd = locks.take(path)
    while fd is None and time.monotonic() < deadline:
        time.sleep(POLL_S / 5)
        fd = locks.take(path)
    try:
        yield fd is not None
    finally:
        if fd is not None:
            os.close(fd)
