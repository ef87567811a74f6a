"""The panel's benchmark, small: a night that the panel can read, what figures come to, and each row once."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser_rig import jupyter_place

from bench import __main__ as bench_main
from bench import panel, panel_page
from bench.panel import Seen, Sizes
from bench.panel_night import Night
from bench.panel_page import Cost
from control_panel.feed import Feed
from control_panel.model import PanelModel

NEED_IT = "BRIDGEHEAD_NEED_BROWSER"
IDLE = Cost(task_ms=10.0, frame_gap_p95_ms=17.0, frame_gap_max_ms=20.0, long_tasks=0)


@pytest.fixture
def night(tmp_path: Path) -> Iterator[Night]:
    made = Night(tmp_path / "night", vms=3, runs=10, log_lines=200)
    yield made
    made.close()


def test_the_panel_finds_the_whole_night_and_hears_of_each_tick(night: Night) -> None:
    model = PanelModel()
    now = [time.time()]
    feed = Feed(night.project, model, clock=lambda: now[0])
    feed.look()
    begin = model.snapshot()
    assert len(begin["vms"]) == 3 and {vm["state"] for vm in begin["vms"]} == {"live"}
    assert [run["state"] for run in begin["runs"]].count("running") == len(night.running) == 6
    assert len(begin["log"]) == 180, "of the nine runs that have begun"
    night.tick()
    now[0] += 1.0  # progress is looked at twice a second
    feed.look()
    told = model.delta(begin["seq"])
    assert told is not None and len(told["lines"]) == 10 and told["points"] and told["vms"] and told["runs"]
    feed.close()


def _seen(task_ms: float, cpu_ms: float, count: int = 20) -> Seen:
    updates = [{"wall_ms": 2 * cpu_ms, "cpu_ms": cpu_ms, "bytes": 5000, "messages": 1} for _ in range(count)]
    return Seen(Cost(task_ms, 18.0, 30.0, 0), updates, acks_s=[0.1])


@pytest.mark.parametrize(
    ("ours", "holds"), [((50.0, 1.0), [True, True]), ((51.0, 1.0), [False, True]), ((50.0, 1.1), [True, False])]
)
def test_the_gate_is_a_fifth_of_the_browsers_and_an_eighth_of_the_kernels_time(
    ours: tuple[float, float], holds: list[bool]
) -> None:
    rows = list(panel.against_naive(IDLE, _seen(210.0, 8.0), _seen(*ours)))
    assert [row["holds"] for row in rows] == holds
    assert all("gated" not in row for row in rows), "they decide the exit code"


def test_a_way_that_sent_nothing_holds_nothing() -> None:
    assert not any(row["holds"] for row in panel.against_naive(IDLE, _seen(210.0, 8.0), _seen(300.0, 0.0, count=0)))


def test_what_is_sent_to_a_closed_tab_is_held_against_it() -> None:
    seen, naive = _seen(20.0, 1.0), _seen(200.0, 16.0)
    assert panel.closed_tab(naive, seen)["holds"]
    seen.sent_after_quiet = 1
    assert not panel.closed_tab(naive, seen)["holds"]


def test_a_large_update_or_a_second_message_breaks_the_bound() -> None:
    def bound(seen: Seen) -> dict[str, Any]:
        return next(row for row in panel.of_the_kernel(seen) if "bytes_p95" in row)

    assert bound(_seen(20.0, 1.0))["holds"]
    large, twice = _seen(20.0, 1.0), _seen(20.0, 1.0)
    for update in large.updates[-3:]:
        update["bytes"] = 17_000
    twice.updates[7]["messages"] = 2
    assert not bound(large)["holds"] and not bound(twice)["holds"]


@pytest.mark.parametrize(("gated", "code"), [({}, 1), ({"gated": False}, 0)])
def test_only_what_is_gated_decides_the_exit_code(
    monkeypatch: pytest.MonkeyPatch, gated: dict[str, bool], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(panel, "rows", lambda: iter([{"bench": "panel: it", "holds": False, **gated}]))
    assert bench_main.main(["--only", "panel"]) == code
    assert json.loads(capsys.readouterr().out)["bench"] == "panel: it"


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(
    bool(panel_page.lacking()) and not os.environ.get(NEED_IT), reason=f"no {panel_page.lacking() or 'lack'} here"
)
def test_each_row_of_the_night_once_in_a_real_notebook() -> None:
    sizes = Sizes(window_s=2, settle_s=1, closed_s=2, presses=1, hour_updates=120, hour_per_s=40)
    with jupyter_place():
        rows = list(panel.over_a_night(sizes))
    assert len({row["bench"] for row in rows}) == len(rows) == 10
    assert all(row["goal"] for row in rows)
    assert next(row for row in rows if "bytes_p50" in row)["bytes_p50"] > 0
