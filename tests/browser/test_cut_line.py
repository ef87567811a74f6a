"""The line between browser and Jupyter is cut and comes back: the panel says so, goes on, and presses nothing twice."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from browser_rig import Rig
from cut_line import CutLine, cut_line
from panel_tab import WAIT_MS, PanelTab
from playwright.sync_api import expect

from run_control import panel_server
from support import wait_until

pytestmark = [pytest.mark.browser, pytest.mark.slow]


@pytest.fixture
def line(serve: Callable[[str], panel_server.PanelServer]) -> Iterator[CutLine]:
    with cut_line(serve("lab").port) as made:
        yield made


@pytest.fixture
def panel(context: Any, serve: Callable[[str], panel_server.PanelServer], line: CutLine) -> PanelTab:
    """In JupyterLab behind the line; what JupyterLab says of the cut in a dialog is taken note of."""
    server = serve("lab")
    made = PanelTab(context, server.url.replace(f":{server.port}/", f":{line.port}/")).open()
    made.expect_live()
    made.page.add_locator_handler(made.page.locator(".jp-Dialog"), lambda dialog: dialog.locator("button").last.click())
    return made


def _lines(rig: Rig, text: str) -> int:
    return rig.project.queue.read_text().splitlines().count(text)


def _expect_back(panel: PanelTab) -> None:
    """JupyterLab's websocket comes back by itself, after a pause that grows."""
    panel.expect_text("live", "live")
    expect(panel.at("stale")).to_be_hidden(timeout=WAIT_MS)


def test_a_cut_is_said_and_after_it_the_panel_is_live_and_what_was_pressed_meanwhile_was_not_sent(
    panel: PanelTab, line: CutLine, rig: Rig
) -> None:
    line.cut()
    panel.expect_text("live", "stale")
    panel.expect_text("stale", "runs go on")
    panel.at("run-overrides").fill("steps=11")
    panel.at("run").click()
    panel.expect_text("ask-run", "not sent")
    expect(panel.at("send-run")).to_be_disabled()
    line.mend()
    _expect_back(panel)
    assert _lines(rig, "run:train steps=11") == 0
    panel.run("train", "steps=12")
    rig.await_run("train", 0)
    panel.expect_text("queue", "run:train steps=12")
    assert _lines(rig, "run:train steps=12") == 1


def test_a_press_that_got_lost_on_the_way_acts_at_most_once_and_is_told(
    panel: PanelTab, line: CutLine, rig: Rig
) -> None:
    panel.at("run-stage").select_option("train")
    panel.at("run-overrides").fill("steps=13")
    panel.at("run").click()
    panel.expect_text("ask-run", "run:train steps=13")
    line.silence()  # nobody knows yet that the line is dead
    panel.at("send-run").click()
    panel.expect_text("ask-run", "sending")
    panel.expect_text("live", "stale")
    line.cut()
    line.mend()
    _expect_back(panel)
    panel.expect_text("ack", re.compile("never arrived|taken|queued|waiting"))
    said_lost = "never arrived" in panel.at("ack").inner_text()
    assert _lines(rig, "run:train steps=13") == (0 if said_lost else 1)


def test_a_press_that_arrived_and_whose_answer_got_lost_is_recognised(panel: PanelTab, line: CutLine, rig: Rig) -> None:
    panel.at("run-stage").select_option("train")
    panel.at("run-overrides").fill("steps=14")
    panel.at("run").click()
    panel.expect_text("ask-run", "run:train steps=14")
    panel.at("send-run").click()
    wait_until(lambda: _lines(rig, "run:train steps=14"), 60, what="the line")
    line.cut()
    panel.expect_text("live", "stale")
    line.mend()
    _expect_back(panel)
    panel.expect_text("ack", "run:train steps=14")
    panel.expect_text("ack", re.compile("taken|queued|waiting"))
    assert _lines(rig, "run:train steps=14") == 1
