"""`bridgehead up` with [tunnel] kind = "ssh": a bridge process, ssh and a relay, all real."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_process import in_process

import relay_rig
from bridgehead import files, processes
from relay_rig import Relay
from run_control import bridge_control, init
from run_control.project import Project
from support import wait_until

WAIT_S = 100.0
pytestmark = pytest.mark.skipif(bool(relay_rig.MISSING), reason=relay_rig.MISSING)


@pytest.fixture
def relay(tmp_path: Path) -> Iterator[Relay]:
    with relay_rig.relay(tmp_path / "relay") as made:
        made.start()
        yield made


@pytest.fixture
def project(tmp_path: Path, relay: Relay) -> Iterator[Project]:
    made, _ = init.init(tmp_path / "watch")
    words = f'\n[tunnel]\nkind = "ssh"\nhost = "127.0.0.1"\noptions = {json.dumps(relay.options())}\n'
    made.file.write_text(made.file.read_text() + words)
    try:
        yield made
    finally:
        bridge_control.stop(made)


def record(project: Project) -> dict[str, Any]:
    found = files.read_json(project.bridge_record)
    assert isinstance(found, dict)
    return found


def test_the_pairing_code_leads_through_the_relay_and_moves_when_its_port_does(
    project: Project, relay: Relay, capsys: pytest.CaptureFixture[str]
) -> None:
    up = in_process(capsys, "-C", str(project.root), "up", "--port", "0", "--json").data
    assert up["tunnel"] == "ssh" and up["url"] != f"http://127.0.0.1:{up['port']}"
    first, code = up["url"], project.notebook.read_bytes()
    relay.signal_sessions(signal.SIGKILL)
    wait_until(lambda: record(project)["url"] != first, WAIT_S)
    assert record(project)["tunnel_state"] == "connected", "the new address is proven before it is told"
    assert project.notebook.read_bytes() != code


def test_a_bridge_that_was_killed_leaves_no_ssh_behind_once_the_next_is_up(
    project: Project, relay: Relay, capsys: pytest.CaptureFixture[str]
) -> None:
    in_process(capsys, "-C", str(project.root), "up", "--port", "0", "--json").data  # noqa: B018 - it has to succeed
    old = record(project)
    processes.send(old["pid"], signal.SIGKILL, started_ticks=old["start"])
    wait_until(lambda: not processes.is_alive(old["pid"], old["start"]), WAIT_S)
    in_process(capsys, "-C", str(project.root), "up", "--port", "0", "--json").data  # noqa: B018
    assert record(project)["tunnel_pid"] != old["tunnel_pid"]
    assert not processes.is_alive(old["tunnel_pid"], old["tunnel_start"])


def test_a_relay_that_is_down_ends_up_in_one_line(
    project: Project, relay: Relay, capsys: pytest.CaptureFixture[str]
) -> None:
    relay.stop()
    answer = in_process(capsys, "-C", str(project.root), "up", "--port", "0")
    assert answer.code == 11
    assert f"nothing listens for ssh at 127.0.0.1 port {relay.port}" in answer.err and "Traceback" not in answer.err
