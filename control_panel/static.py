"""The panel as text and as a small HTML table: what a saved notebook keeps, and what the plain view is built from.

Everything that comes from a run, a VM or a file name goes through `html.escape`. No log line and no secret is in here.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from html import escape
from typing import Any, Final

RUNS_SHOWN: Final = 20
CELL_MAX: Final = 200  # characters of one cell
_TABLE: Final = "border-collapse:collapse;font-variant-numeric:tabular-nums;margin:4px 0 10px"
_CELL: Final = "text-align:left;padding:2px 14px 2px 0;white-space:nowrap"

Snapshot = Mapping[str, Any]


def text(snapshot: Snapshot) -> str:
    """Three kinds of lines: what this is, its VMs, its runs."""
    lines = [headline(snapshot)]
    lines += ["  ".join(row) for row in vm_rows(snapshot)]
    lines += ["  ".join(cell for cell in row if cell) for row in run_rows(snapshot)]
    lines += [f"! {alert['text']}" for alert in snapshot.get("alerts", [])]
    return "\n".join(lines)


def html(snapshot: Snapshot) -> str:
    """The same as two tables; shown where no widget can be."""
    parts = [f"<p><b>{escape(headline(snapshot))}</b></p>"]
    parts += [f"<p>&#9888; {escape(_cut(alert['text']))}</p>" for alert in snapshot.get("alerts", [])]
    parts.append(_table(("VM", "State", "Accelerator", "Up"), vm_rows(snapshot)))
    parts.append(_table(("Run", "State", "Progress", "Metrics", "Checkpoint", "Why"), run_rows(snapshot)))
    return f"<div>{''.join(parts)}</div>"


def headline(snapshot: Snapshot) -> str:
    """Project, number of VMs and runs, and when that was so."""
    at = time.strftime("%Y-%m-%d %H:%M", time.localtime(float(snapshot.get("t", 0.0))))
    live = sum(vm.get("state") == "live" for vm in snapshot.get("vms", []))
    runs = len(snapshot.get("runs", []))
    project = f" · {snapshot['project']}" if snapshot.get("project") else ""
    return f"Bridgehead{project} · {_many(live, 'live VM')} · {_many(runs, 'run')} · as of {at}"


def vm_rows(snapshot: Snapshot) -> list[tuple[str, ...]]:
    return [
        (vm["id"], str(vm["state"]), vm.get("accelerator", ""), words(vm.get("up_s"))) for vm in snapshot.get("vms", [])
    ]


def run_rows(snapshot: Snapshot) -> list[tuple[str, ...]]:
    """Newest first."""
    rows: list[tuple[str, ...]] = []
    for run in reversed(snapshot.get("runs", [])[-RUNS_SHOWN:]):
        total = run.get("total_steps") or 0
        progress = f"{run.get('step', 0):,}/{total:,}" if total else ""
        metrics = " ".join(f"{name} {value:.4g}" for name, value in list(run.get("metrics", {}).items())[:3])
        levels = run.get("checkpoint") or {}
        level = next((name for name in ("confirmed", "mounted", "local") if levels.get(name)), "")
        why = run.get("failure") or run.get("waits_for") or ""
        rows.append((run["id"], str(run["state"]), progress, metrics, level, why))
    return rows


def words(seconds: float | None) -> str:
    """12 s, 7 min, 3h05m."""
    if seconds is None:
        return ""
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole} s"
    return f"{whole // 60} min" if whole < 3600 else f"{whole // 3600}h{whole % 3600 // 60:02d}m"


def _table(heads: Iterable[str], rows: list[tuple[str, ...]]) -> str:
    if not rows:
        return ""
    head = "".join(f'<th scope="col" style="{_CELL};font-weight:400;opacity:.75">{escape(word)}</th>' for word in heads)
    body = "".join(
        "<tr>" + "".join(f'<td style="{_CELL}">{escape(_cut(cell))}</td>' for cell in row) + "</tr>" for row in rows
    )
    return f'<table style="{_TABLE}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def _cut(word: object) -> str:
    shown = str(word)
    return shown if len(shown) <= CELL_MAX else shown[: CELL_MAX - 1] + "…"


def _many(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"
