"""The panel as a page of its own: `bridgehead panel --voila`."""

from __future__ import annotations

import re
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from browser_rig import Rig
from panel_tab import WAIT_MS, PanelTab
from playwright.sync_api import expect

from run_control import panel_server

pytestmark = [pytest.mark.browser, pytest.mark.slow]


@pytest.fixture
def panel(context: Any, serve: Callable[[str], panel_server.PanelServer]) -> Iterator[PanelTab]:
    made = PanelTab(context, serve("voila").url).open()
    made.expect_live()
    yield made
    assert not made.faults, made.faults


def test_nobody_gets_in_without_the_token(serve: Callable[[str], panel_server.PanelServer]) -> None:
    url = serve("voila").url.partition("?")[0]
    with urllib.request.urlopen(url, timeout=60) as answer:
        assert "/login" in answer.url
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(url.split("/voila/")[0] + "/api/kernels", timeout=60)
    assert caught.value.code == 403


def test_a_run_is_started_and_stopped_and_a_reload_shows_it_again(panel: PanelTab, rig: Rig) -> None:
    expect(panel.at("next")).to_be_visible(timeout=WAIT_MS)
    rig.start_vm()
    expect(panel.at("vms")).to_contain_text("live", timeout=WAIT_MS, ignore_case=True)
    panel.run("train", "steps=2000")
    run_id = rig.await_run("train", 0)
    panel.expect_state(run_id, re.compile("running|saving"))
    panel.page.reload()
    panel.expect_live()
    panel.choose(run_id)
    panel.stop()
    panel.expect_state(run_id, "stopped")
    rig.await_state(run_id, "stopped")
