"""The panel in a real JupyterLab: from nothing to a run that was stopped and resumed, and what goes wrong meanwhile.

The tests of this file share one project and one server, and stand in the order of a night.
"""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from browser_rig import Rig
from panel_tab import WAIT_MS, PanelTab
from playwright.sync_api import expect

from bridgehead import processes
from run_control import bridge_control, panel_server, views
from support import wait_until

pytestmark = [pytest.mark.browser, pytest.mark.slow]


@pytest.fixture(scope="module")
def lab(serve: Callable[[str], panel_server.PanelServer]) -> panel_server.PanelServer:
    return serve("lab")


@pytest.fixture
def panel(context: Any, lab: panel_server.PanelServer) -> Iterator[PanelTab]:
    """The panel, live; whatever its page could not do is a failure too."""
    made = PanelTab(context, lab.url).open()
    made.expect_live()
    yield made
    assert not made.faults, made.faults


def test_first_use_shows_what_to_do_and_the_cell_to_paste(panel: PanelTab, rig: Rig) -> None:
    expect(panel.at("next")).to_be_visible(timeout=WAIT_MS)
    panel.at("pair").click()
    expect(panel.at("pair-cell")).to_contain_text("bh1.", timeout=WAIT_MS)
    code = bridge_control.pairing(rig.project, bridge_control.need(rig.project)).encode()
    assert code in panel.at("pair-cell").inner_text()
    panel.at("pair-close").click()
    expect(panel.at("pair-cell")).to_be_hidden()
    assert code not in panel.page.content()


def test_a_run_is_started_followed_and_stopped_from_the_panel_alone(panel: PanelTab, rig: Rig) -> None:
    rig.start_vm()
    expect(panel.at("vms")).to_contain_text("live", timeout=WAIT_MS, ignore_case=True)
    panel.run("train", "steps=400")
    run_id = rig.await_run("train", 0)
    panel.expect_state(run_id, re.compile("running|saving"))
    panel.expect_text("queue", "run:train steps=400")
    panel.expect_text("log", re.compile(r"step \d+ of 400"))
    expect(panel.at("plot")).to_be_visible(timeout=WAIT_MS)
    rig.await_checkpoint(run_id)
    panel.choose(run_id)
    panel.stop()
    panel.expect_state(run_id, "stopped")
    rig.await_state(run_id, "stopped")
    panel.expect_text("queue", f"stop:{run_id}")
    assert [row["line"] for row in _stops(rig)] == [f"stop:{run_id}"], "one press, one line"


def _stops(rig: Rig) -> list[dict[str, Any]]:
    return [row for row in views.commands(rig.project) if row["verb"] == "stop"]


def test_what_was_stopped_is_resumed_where_it_was(panel: PanelTab, rig: Rig) -> None:
    stopped = rig.newest("train")
    panel.choose(stopped)
    before = rig.count("train")
    panel.ask("resume")
    run_id = rig.await_run("train", before)
    panel.expect_state(run_id, re.compile("running|saving|resuming"))
    log = rig.project.run(run_id) / "log"
    wait_until(lambda: log.exists() and "begins at step" in log.read_text(), 60)
    assert "begins at step 1\n" not in log.read_text()


def test_a_killed_vm_is_seen_as_lost_and_the_next_one_goes_on(panel: PanelTab, rig: Rig) -> None:
    run_id = rig.newest("train")
    rig.await_checkpoint(run_id)
    rig.kill_vm()
    panel.expect_state(run_id, re.compile("lost|waits", re.IGNORECASE), 90)
    rig.start_vm()
    panel.expect_state(run_id, re.compile("running|saving|resuming"), 120)
    wait_until(lambda: _attempt(rig, run_id) == 2, 60)


def _attempt(rig: Rig, run_id: str) -> int:
    return views.run(rig.project, run_id).attempt


def test_a_reload_brings_back_the_same_panel(panel: PanelTab, rig: Rig) -> None:
    panel.save()
    panel.page.reload()
    panel.expect_live()
    expect(panel.at(f"run-{rig.newest('train')}")).to_be_visible(timeout=WAIT_MS)


def test_a_second_tab_shows_the_same_and_its_stop_works(panel: PanelTab, rig: Rig, context: Any) -> None:
    panel.save()
    second = PanelTab(context, panel.url)
    second.page.goto(second.url)
    second.expect_live()
    panel.expect_live()
    run_id = rig.newest("train")
    second.choose(run_id)
    second.stop()
    second.expect_state(run_id, "stopped")
    panel.expect_state(run_id, "stopped")
    second.close()


def test_hostile_lines_are_text_and_nothing_else(panel: PanelTab, rig: Rig) -> None:
    panel.run("hostile")
    run_id = rig.await_run("hostile", 0)
    rig.await_state(run_id, "done")
    panel.at("log-run").select_option(run_id)
    panel.expect_text("log", "HOSTILE-END")
    text = panel.log_text()
    assert "<img src=x onerror=" in text and "<a href=" in text
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e\u2066-\u2069]", text)
    assert panel.page.evaluate("window.pwned") is None
    assert panel.at("log").locator("img, script, a").count() == 0
    assert text.count("bar ") == 1, "a progress bar is one line"
    assert "L" * 2001 not in text


def test_a_flood_leaves_the_panel_alive_and_the_file_whole(panel: PanelTab, rig: Rig) -> None:
    panel.run("flood", "seconds=5")  # longer ones are in test_flood.py and in the benchmark
    run_id = rig.await_run("flood", 0)
    panel.expect_state(run_id, re.compile("running"))
    panel.expect_text("log", "flood line")
    rig.await_state(run_id, "done", timeout_s=180)
    panel.expect_live()
    panel.expect_text("log", re.compile(r"FLOOD-END \d+"))
    lines = (rig.project.run(run_id) / "log").read_text().splitlines()
    told = int(lines[-1].split()[1])
    assert sum(line.startswith("flood line ") for line in lines) == told


def test_a_bridge_that_goes_away_is_told_and_one_that_comes_back_too(panel: PanelTab, rig: Rig) -> None:
    rig.bridge_down()
    panel.expect_text("bridge", "down")
    panel.expect_live()
    rig.bridge_up()
    panel.expect_text("bridge", "up")


def test_stop_is_taken_while_a_cell_keeps_the_kernel_busy(panel: PanelTab, rig: Rig) -> None:
    before = rig.count("train")
    panel.run("train", "steps=2000")
    run_id = rig.await_run("train", before)
    panel.expect_state(run_id, re.compile("running|saving"), 120)
    panel.choose(run_id)
    awake = rig.project.root / "awake"
    panel.new_cell(f"while not __import__('os').path.exists({str(awake)!r}): __import__('time').sleep(0.2)")
    panel.await_busy()
    panel.stop()
    rig.await_state(run_id, "stopped")
    panel.await_busy()  # the cell still runs
    panel.expect_state(run_id, "stopped")
    awake.touch()


def test_a_restarted_kernel_is_said_to_be_stale_and_the_cell_brings_it_back(panel: PanelTab) -> None:
    panel.restart_kernel()
    _expect_stale_then_run_again(panel)


def test_a_kernel_that_dies_is_said_to_be_stale_and_the_cell_brings_it_back(
    panel: PanelTab, lab: panel_server.PanelServer
) -> None:
    [kernel] = [pid for pid in processes.descendants(lab.process.pid) if "ipykernel" in processes.command_line(pid)]
    os.kill(kernel, signal.SIGKILL)
    panel.accept()  # JupyterLab tells of it in a dialog
    _expect_stale_then_run_again(panel)


def _expect_stale_then_run_again(panel: PanelTab) -> None:
    expect(panel.at("stale")).to_be_visible(timeout=WAIT_MS)
    panel.expect_text("stale", "runs go on")
    panel.expect_text("live", "stale")
    panel.run_cell()
    panel.expect_live()
    expect(panel.at("stale")).to_be_hidden(timeout=WAIT_MS)


def test_a_saved_notebook_is_small_and_holds_no_secret_and_no_log(panel: PanelTab, rig: Rig) -> None:
    panel.expect_live()
    panel.at("pair").click()
    expect(panel.at("pair-cell")).to_contain_text("bh1.", timeout=WAIT_MS)
    panel.save()
    text = (rig.project.root / panel_server.NOTEBOOK).read_text()
    pairing = bridge_control.pairing(rig.project, bridge_control.need(rig.project))
    assert len(text) < 30_000
    assert pairing.encode() not in text and "bh1." not in text
    assert "flood line" not in text and "HOSTILE" not in text
    assert json.loads(text)["cells"]
