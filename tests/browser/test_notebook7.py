"""The panel in Notebook 7, the front end with one document to a page."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import pytest
from browser_rig import Rig
from panel_tab import PanelTab, queue_reload_and_stop

from run_control import panel_server
from support import wait_until

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("notebook") is None, reason="notebook (7) is not installed"),
]


@pytest.fixture
def panel(context: Any, serve: Callable[[str], panel_server.PanelServer]) -> PanelTab:
    made = PanelTab(context, serve("lab").url.replace("/lab/tree/", "/notebooks/")).open()
    made.expect_live()
    return made  # its own scripts stumble while a kernel starts; the panel's faults are watched in JupyterLab 4


def test_a_run_is_queued_and_stopped_and_a_reload_shows_it_again(panel: PanelTab, rig: Rig) -> None:
    saved = rig.project.root / panel_server.NOTEBOOK
    queue_reload_and_stop(
        panel, rig, before=lambda: wait_until(lambda: "widget-view" in saved.read_text(), 60, what="the saved notebook")
    )
