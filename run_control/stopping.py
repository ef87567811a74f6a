"""What already stops a run. The first stop: line lets it save and leave, the next one kills it.

So a second line needs the word of a person who was told that a save is under way. What its VM does by itself (near a
cap, before the VM's end) counts as no line: there the first one joins.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bridge.ledger_rows import REJECTED, CommandRow
from bridgehead.errors import BridgeheadError
from bridgehead.queue_lines import Verb, parse_line
from bridgehead.records import duration
from run_control import views
from run_control.project import Project
from run_control.views import RunView


@dataclass(frozen=True)
class UnderWay:
    """`lines`: numbers of the stop: lines so far; `why`: what else; `since`: seconds since 1970, 0: not known."""

    lines: list[int]
    why: str
    since: float

    def to_json(self) -> dict[str, Any]:
        return vars(self)

    def in_words(self, now: float) -> str:
        """`line #5, since 14 s`."""
        by = in_words(self.lines) if self.lines else self.why
        return f"{by}, since {duration(max(0.0, now - self.since))}" if self.since else by


def under_way(project: Project, view: RunView) -> UnderWay | None:
    """What stops the run already; None: nothing does. Raises NotFoundError before the first `bridgehead up`."""
    lines, told = asked(project, view.run_id), view.stopping or {}
    if not lines and not told:
        return None
    since = float(told.get("at", 0.0))
    if lines and lines[0]:
        with views.ledger_of(project) as ledger:
            since = since or next((row.created for row in ledger.commands() if row.seq == lines[0]), 0.0)
    return UnderWay(lines, str(told.get("why", "")), since)


def kill_words(view: RunView, found: UnderWay, now: float | None = None) -> str:
    """What a person is told before a second line."""
    moment = time.time() if now is None else now
    return (
        f"{view.run_id} is already being stopped by {found.in_words(moment)}: it saves a checkpoint, then ends;"
        " to kill it now loses what was not saved"
    )


def asked(project: Project, run_id: str) -> list[int]:
    """Numbers of those lines, oldest first; 0 for one that is in queue.txt and that no bridge has taken yet.

    Rejected lines are left out. Raises NotFoundError before the first `bridgehead up`.
    """
    with views.ledger_of(project) as ledger:
        rows = [row for row in ledger.commands() if row.verb == Verb.STOP]
    taken = [row.seq for row in rows if row.state != REJECTED and run_id in (row.argument, row.run_id)]
    seen = Counter(row.text.strip() for row in rows)
    waiting = Counter(_stop_lines(project)) - seen
    return [*taken, *(0 for line in waiting.elements() if _is_for(project, line, run_id))]


def first_lines(rows: Sequence[CommandRow]) -> dict[str, int]:
    """run -> number of the first line that asked it to stop and was not rejected."""
    asked = [row for row in rows if row.verb == Verb.STOP and row.state != REJECTED]
    return {row.argument: row.seq for row in sorted(asked, key=lambda row: row.seq, reverse=True)}


def in_words(numbers: list[int]) -> str:
    """The line that stops it, for a sentence."""
    return f"line #{numbers[0]}" if numbers and numbers[0] else "a line that no bridge has taken yet"


def _stop_lines(project: Project) -> list[str]:
    with contextlib.suppress(OSError):
        text = project.queue.read_text(encoding="utf-8-sig", errors="replace")
        return [line.strip() for line in text.splitlines() if f"{Verb.STOP}:" in line]
    return []


def _is_for(project: Project, line: str, run_id: str) -> bool:
    """A line may name a stage: it stops that one's newest run."""
    with contextlib.suppress(BridgeheadError):
        parsed = parse_line(line)
        if parsed is not None and parsed.verb is Verb.STOP:
            return parsed.argument == run_id or views.run(project, parsed.argument).run_id == run_id
    return False
