"""`bridgehead status --watch`: once a second on a terminal; elsewhere a block, or a JSON line, for each change."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from bridge.ledger_rows import ENDED
from run_control import status_now
from run_control.cli_support import detaching, event, note, printable, say, table
from run_control.project import Project
from run_control.status_now import StatusNow

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

PERIOD_S = 1.0
_FRAME_LINES = 3  # the heading, and what a terminal keeps for its cursor


def watch(project: Project, run_id: str = "", *, as_json: bool) -> None:
    """Until Ctrl-C, or with a run until that has ended. Ctrl-C only detaches: exit 130, everything goes on."""
    from rich.console import Console

    again = " ".join(filter(None, ("bridgehead status", run_id, "--watch")))
    console = Console(highlight=False)
    with detaching(run_id, again):
        if as_json:
            _on_change(project, run_id, _json_line, pace=True)
        elif sys.stdout.isatty() and not console.is_dumb_terminal:
            _live(project, run_id, console)
        else:
            _on_change(project, run_id, _block, pace=False)


def _on_change(project: Project, run_id: str, tell: Callable[[int, StatusNow], None], *, pace: bool) -> None:
    """`tell` each look that differs in more than ages from the one before; the first one always."""
    told: dict[str, Any] | None = None
    sequence = 0
    while True:
        now = status_now.look(project, run_id)
        essence = now.essence(pace=pace)
        if essence != told:
            told, sequence = essence, sequence + 1
            tell(sequence, now)
        if run_id and _ended(now):
            return
        time.sleep(PERIOD_S)


def _json_line(sequence: int, now: StatusNow) -> None:
    event(sequence, {"t": time.time(), **now.data})


def _block(sequence: int, now: StatusNow) -> None:
    if sequence > 1:
        say()
    say(f"--- {_clock()}")
    status_now.show(now, say=say, note=note, table=table)


def _live(project: Project, run_id: str, console: Console) -> None:
    """On the terminal's second screen, so that what was there before comes back; the last look stays in the end."""
    from rich.live import Live

    now = status_now.look(project, run_id)
    try:
        with Live(console=console, screen=True, auto_refresh=False, vertical_overflow="crop") as live:
            while True:
                live.update(_picture(now, console.size.height), refresh=True)
                if run_id and _ended(now):
                    break
                time.sleep(PERIOD_S)
                now = status_now.look(project, run_id)
    finally:
        status_now.show(now, say=say, note=note, table=table)


def _picture(now: StatusNow, height: int) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    room = height - _FRAME_LINES - sum(len(rows) + 2 for _, rows in now.tables[:-1]) - len(now.before) - len(now.after)
    parts: list[RenderableType] = [Text(f"{now.data['project']}   {_clock()}   Ctrl-C leaves; runs go on", style="dim")]
    parts += [Text(f"! {printable(line)}", style="bold") for line in now.before]
    for headers, rows in now.tables:
        last = headers is now.tables[-1][0]
        shown, left_out = _fitting(rows, now.data["runs"], max(room, 3)) if last else (rows, 0)
        parts += [Text(), _as_table(headers, shown)]
        parts += [Text(f"… and {left_out} more that have ended: bridgehead status", style="dim")] if left_out else []
    parts += [Text(printable(line)) for line in now.after]
    return Group(*parts)


def _fitting(rows: list[tuple[str, ...]], runs: list[dict[str, Any]], room: int) -> tuple[list[tuple[str, ...]], int]:
    """At most `room` rows: those that still go come first to stay, then the newest; in the order of before."""
    if len(rows) <= room:
        return rows, 0
    by_need = sorted(range(len(rows)), key=lambda number: (runs[number]["state"] in ENDED, -number))
    kept = sorted(by_need[:room])
    return [rows[number] for number in kept], len(rows) - len(kept)


def _as_table(headers: tuple[str, ...], rows: list[tuple[str, ...]]) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    made = Table(box=None, pad_edge=False, show_edge=False)
    for header in headers:
        made.add_column(header, overflow="ellipsis", no_wrap=header in ("RUN", "VM", "STATE"))
    for row in rows:
        made.add_row(*(Text(printable(cell)) for cell in row))
    return made


def _ended(now: StatusNow) -> bool:
    return all(run["state"] in ENDED for run in now.data["runs"])


def _clock() -> str:
    return time.strftime("%H:%M:%S")
