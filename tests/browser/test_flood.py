"""A run that prints 10,000 lines a second while the panel shows it: the page lives, Stop arrives, the file is whole.

A burst by default; BRIDGEHEAD_FLOOD_S=60 for the full minute.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from browser_rig import Rig
from panel_tab import WAIT_MS, PanelTab
from playwright.sync_api import expect

from run_control import panel_server

pytestmark = [pytest.mark.browser, pytest.mark.slow]
FLOOD_S = float(os.environ.get("BRIDGEHEAD_FLOOD_S", "6"))
KEPT_MAX = 22_000  # lines in a page: 20,000, cut in blocks of 2,000
# Frames that the page drew in so many seconds, and how often its count of lines was another one.
WATCH = """async ([count, seconds]) => {
    const seen = { frames: 0, counts: new Set() };
    const end = performance.now() + 1000 * seconds;
    while (performance.now() < end) {
        await new Promise(requestAnimationFrame);
        seen.frames += 1;
        seen.counts.add(count.textContent);
    }
    return [seen.frames, seen.counts.size];
}"""


@pytest.fixture
def panel(context: Any, serve: Callable[[str], panel_server.PanelServer]) -> Iterator[PanelTab]:
    made = PanelTab(context, serve("lab").url).open()
    made.expect_live()
    yield made
    assert not made.faults, made.faults


def test_a_stop_ends_a_flood_in_a_page_that_lives_and_no_line_is_lost(panel: PanelTab, rig: Rig) -> None:
    rig.start_vm()
    expect(panel.at("vms")).to_contain_text("live", timeout=WAIT_MS, ignore_case=True)
    panel.run("flood", f"seconds={FLOOD_S + 120:g} rate=10000")
    run_id = rig.await_run("flood", 0)
    panel.expect_text("log", "flood line")
    count = panel.at("log-count").element_handle()
    frames, counts = panel.page.evaluate(WATCH, [count, FLOOD_S])
    assert frames > 1 and counts > 1, "the page stands still"
    panel.choose(run_id)
    panel.stop()
    rig.await_state(run_id, "stopped", timeout_s=240)
    panel.expect_state(run_id, "stopped")
    panel.expect_live()
    panel.expect_text("log", re.compile(r"FLOOD-END \d+"))
    assert 0 < int(re.sub(r"\D", "", panel.at("log-count").inner_text())) <= KEPT_MAX
    lines = (rig.project.run(run_id) / "log").read_text().splitlines()
    told = next(int(line.split()[1]) for line in reversed(lines) if line.startswith("FLOOD-END "))
    assert sum(line.startswith("flood line ") for line in lines) == told
