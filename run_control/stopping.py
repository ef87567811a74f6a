"""Which stop: lines are already meant for a run: the first lets it save and leave, the next one kills it."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Sequence

from bridge.ledger_rows import REJECTED, CommandRow
from bridgehead.errors import BridgeheadError
from bridgehead.queue_lines import Verb, parse_line
from run_control import views
from run_control.project import Project


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
