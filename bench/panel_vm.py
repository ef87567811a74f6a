"""The panel over a real local VM: from a line that a stage prints to the painted page, and 10,000 lines a second."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from bench import panel_page
from bench.panel_page import Tab
from bench.project import BenchProject, bench_project, quantile, until
from bridgehead import names
from run_control.project import Project

PIXEL_GOAL_S: Final = 1.0  # p95
LINES: Final = 200  # of the stage `lines`
FLOOD_RATE: Final = 10_000  # lines a second
RING_MAX: Final = 22_000  # lines that a view keeps: 20,000, cut in blocks of 2,000


def rows(flood_s: float) -> Iterator[dict[str, Any]]:
    with bench_project() as vm, panel_page.lab(Project(vm.root)) as lab:
        code = f"from bench import panel_kernel\n\npanel_kernel.panel({str(vm.root / 'vm.jsonl')!r})"
        with lab.open("vm", code) as tab:
            tab.await_live()
            yield line_to_pixel(vm, tab)
            yield flood(vm, tab, flood_s)


def line_to_pixel(vm: BenchProject, tab: Tab) -> dict[str, Any]:
    """20 lines a second, each with the time at which the stage printed it; both clocks are this machine's."""
    tab.watch_lines()
    vm.queue("run:lines")
    until(lambda: len(tab.lines_seen()) >= LINES, 120, "every line to be seen")
    seen = tab.lines_seen()
    p95 = quantile(seen, 0.95)
    return {
        "bench": "panel: log line printed on a local VM -> painted",
        "lines": len(seen),
        "median_s": round(quantile(seen, 0.5), 3),
        "p95_s": round(p95, 3),
        "goal": f"p95 < {PIXEL_GOAL_S:g} s",
        "holds": p95 < PIXEL_GOAL_S,
        "gated": False,
    }


def flood(vm: BenchProject, tab: Tab, seconds: float) -> dict[str, Any]:
    """The page meanwhile, a Stop pressed in the midst of it, and what the file has in the end."""
    vm.queue(f"run:flood seconds={3 * seconds:g} rate={FLOOD_RATE}")
    logs = (vm.root / names.IN_FOLDER).glob
    log: Path = until(lambda: next(iter(logs(f"flood-*/{names.LOG}")), None), 60, "the flood's log")
    cost = tab.cost(seconds)
    [ack_s] = tab.stop_presses(log.parent.name, 1)
    told = until(lambda: _end(log), 180, "the flood's last line")
    kept = int("".join(filter(str.isdigit, tab.at("log-count").text_content())))
    tab.await_live()
    lost = told - _lines(log)
    return {
        "bench": f"panel: {FLOOD_RATE:,} log lines a second for {seconds:g} s",
        "lines": told,
        "lost_from_the_file": lost,
        "kept_in_the_page": kept,
        "stop_to_ack_s": round(ack_s, 3),
        "frame_gap_p95_ms": round(cost.frame_gap_p95_ms, 1),
        "frame_gap_max_ms": round(cost.frame_gap_max_ms),
        "browser_ms_per_update": round(cost.task_ms, 1),
        "goal": f"nothing lost, at most {RING_MAX:,} lines kept, Stop ends it",
        "holds": lost == 0 and kept <= RING_MAX,
    }


def _lines(log: Path) -> int:
    """In the log, and in what was put aside of it."""
    paths = [path for path in (log.with_name(names.LOG_BEFORE), log) if path.exists()]
    return sum(line.startswith(b"flood line ") for path in paths for line in path.read_bytes().splitlines())


def _end(log: Path) -> int:
    """How many lines the stage says that it has printed; 0 before it has."""
    with log.open("rb") as handle:
        handle.seek(max(0, log.stat().st_size - 200))
        words = handle.read().split(b"FLOOD-END ")
    return int(words[1].split()[0]) if len(words) == 2 and b"\n" in words[1] else 0
