"""The main job from the panel alone: the four real stages, small, and their bundle verified by a button."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from browser_rig import Rig
from panel_tab import WAIT_MS, PanelTab
from playwright.sync_api import expect

from run_control import init, panel_server, up

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.demo, pytest.mark.timeout(900)]
STAGES = {
    "pretrain": "clips=2000 epochs=8",
    "finetune": "clips=2000",
    "gate": "min_effect=0",
    "export": "",
}


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """What `bridgehead init` makes."""
    project, _ = init.init(tmp_path_factory.mktemp("pipeline") / "watch")
    made = Rig(project)
    made.bridge_up()
    try:
        yield made
    finally:
        up.down(project)


def test_from_nothing_to_a_verified_bundle(clips: Rig, context: Any) -> None:
    server = panel_server.start(clips.project, voila=False, port=0, browser=False)
    try:
        panel = PanelTab(context, server.url).open()
        panel.expect_live()
        clips.start_vm()
        for stage, overrides in STAGES.items():
            panel.run(stage, overrides)
            run_id = clips.await_run(stage, 0)
        panel.expect_state(run_id, "done", 600)
        bundle = panel.page.locator("[data-testid^=art-]").filter(has_text=run_id).filter(has_text="bundle").first
        bundle.get_by_role("button", name="Verify").click()
        expect(bundle).to_contain_text(re.compile("verified"), timeout=WAIT_MS)
        assert not panel.faults, panel.faults
    finally:
        server.stop()
