"""20 runs and 5 VMs in a real JupyterLab, narrow and wide: all of them are there, with nothing to scroll sideways."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from panel_tab import PanelTab
from playwright.sync_api import expect

from bench.panel_night import Night
from run_control import panel_server
from support import wait_until

pytestmark = [pytest.mark.browser, pytest.mark.slow]
WIDTHS = (1600, 900, 480)
# What is wider than the place it has: parts of the panel, and what JupyterLab puts it into.
TOO_WIDE = """(panel) => {
    const wide = (node) => node.scrollWidth > node.clientWidth + 1 && node.clientWidth > 0;
    const parts = [panel, ...panel.querySelectorAll(':scope > *, .card, .table-scroll, .detail-inner, .queue, .arts')];
    const around = [];
    for (let at = panel.getRootNode().host; at; at = at.parentElement) {
        if (getComputedStyle(at).overflowX !== 'visible') around.push(at);
    }
    const told = (node) => `${node.className} ${node.scrollWidth}>${node.clientWidth}`;
    return [...parts, ...around].filter(wide).map(told);
}"""
# Of each named thing whether it lies within the panel from left to right.
INSIDE = """(panel, names) => {
    const whole = panel.getBoundingClientRect();
    return names.filter((name) => {
        const box = panel.querySelector(`[data-testid="${name}"]`)?.getBoundingClientRect();
        return !box || !box.width || box.left < whole.left - 1 || box.right > whole.right + 1;
    });
}"""


@pytest.fixture(scope="module")
def night(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Night]:
    made = Night(tmp_path_factory.mktemp("crowd") / "night", log_lines=400)
    yield made
    made.close()


@pytest.fixture(scope="module")
def crowd(night: Night) -> Iterator[panel_server.PanelServer]:
    server = panel_server.start(night.project, voila=False, port=0, browser=False)
    yield server
    server.stop()


def test_all_of_a_crowd_is_there_at_each_width(context: Any, crowd: panel_server.PanelServer, night: Night) -> None:
    panel = PanelTab(context, crowd.url).open()
    panel.expect_live()
    files = panel.page.locator(".jp-SideBar.jp-mod-left .lm-TabBar-tab.lm-mod-current")
    if files.count():  # JupyterLab's list of files leaves a narrow page no room
        files.first.click()
        expect(files).to_have_count(0)
    names = [f"vm-{vm_id}" for vm_id in night.vm_ids] + [f"run-{run_id}" for run_id in night.run_ids]
    assert len(names) == 25
    for width in WIDTHS:
        panel.page.set_viewport_size({"width": width, "height": 1400})
        expect(panel.at(f"run-{night.run_ids[0]}")).to_be_attached()
        node = panel.at("panel")
        panel.page.wait_for_function(
            "([panel, width]) => panel.clientWidth > 0 && panel.clientWidth < width", arg=[node.element_handle(), width]
        )
        wait_until(lambda: not node.evaluate(INSIDE, names), 20, what=f"all of it within {width}")  # noqa: B023
        wait_until(lambda: not node.evaluate(TOO_WIDE), 20, what=f"nothing wider than {width}")  # noqa: B023
    assert not panel.faults, panel.faults
