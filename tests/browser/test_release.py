"""A VM is given back by a button: its run is saved, handed to the next VM, and goes on there."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from browser_rig import Rig
from panel_tab import PanelTab
from playwright.sync_api import expect

from run_control import panel_server, views
from support import wait_until

pytestmark = [pytest.mark.browser, pytest.mark.slow]


def test_a_vm_is_given_back_and_its_run_goes_on_on_the_next_one(
    context: Any, serve: Callable[[str], panel_server.PanelServer], rig: Rig
) -> None:
    panel = PanelTab(context, serve("lab").url).open()
    panel.expect_live()
    rig.start_vm()
    panel.run("train", "steps=3000")
    run_id = rig.await_run("train", 0)
    rig.await_checkpoint(run_id)
    [vm_id] = [vm["vm_id"] for vm in views.vms(rig.project)]
    # The plan says what the VM has said of its store, and its first word of that may come after the first checkpoint.
    wait_until(lambda: (views.vms(rig.project)[0]["heartbeat"].get("store") or {}).get("ok"), 60, what="its store")
    panel.at(f"release-{vm_id}").click()
    ask = panel.at(f"vm-{vm_id}").get_by_test_id("ask-release")
    expect(ask).to_contain_text(f"@{vm_id} release:", timeout=60_000)
    expect(ask).to_contain_text(f"{run_id} (step", timeout=60_000)
    expect(ask).to_contain_text("will wait until you pair one")
    ask.get_by_test_id("send-release").click()
    panel.expect_text(f"vm-state-{vm_id}", "released", 180)
    panel.expect_state(run_id, re.compile("lost|waits"))
    [line] = [row for row in views.commands(rig.project) if row["verb"] == "release"]
    assert line["state"] == "done" and run_id in line["reason"]
    rig.start_vm()
    wait_until(lambda: views.run(rig.project, run_id).attempt == 2, 60, what="the next attempt")
    panel.expect_state(run_id, re.compile("running|saving|resuming"))
    panel.choose(run_id)
    panel.stop()
    panel.expect_state(run_id, "stopped")
    assert not panel.faults, panel.faults
