"""`bridgehead panel`: a server for its owner alone, which goes with Ctrl-C and takes nothing else along."""

from __future__ import annotations

import importlib.util
import json
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser_rig import jupyter_place
from cli_process import command, environment, heeds_ctrl_c, in_process

from bridgehead import processes
from bridgehead.errors import BridgeheadError, UsageError
from run_control import bridge_control, panel_server
from run_control.project import Project
from support import wait_until

needs_lab = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("jupyterlab", "anywidget")), reason="needs JupyterLab"
)


def _without(monkeypatch: pytest.MonkeyPatch, *missing: str) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in missing else real(name))


def test_what_is_missing_is_named_with_the_command_that_installs_it(
    fresh: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _without(monkeypatch, "jupyterlab", "anywidget")
    answer = in_process(capsys, "-C", str(fresh.root), "panel")
    assert answer.code == 2 and "anywidget and jupyterlab, which are not installed" in answer.err
    assert "-m pip install 'bridgehead[panel]'" in answer.err
    assert not (fresh.root / panel_server.NOTEBOOK).exists()


def test_voila_needs_voila_and_no_jupyterlab(monkeypatch: pytest.MonkeyPatch) -> None:
    _without(monkeypatch, "voila", "anywidget", "jupyterlab")
    with pytest.raises(UsageError, match="anywidget and voila, which"):
        panel_server.refuse_missing(voila=True)


def test_the_notebook_is_copied_once_and_then_its_owners(fresh: Project) -> None:
    path = panel_server.notebook(fresh)
    shipped = json.loads(path.read_text())
    code = ["".join(cell["source"]) for cell in shipped["cells"] if cell["cell_type"] == "code"]
    assert code == ["from control_panel import panel\n\npanel()"]
    assert not any(cell.get("outputs") for cell in shipped["cells"])
    path.write_text("mine")
    assert panel_server.notebook(fresh).read_text() == "mine"


@pytest.fixture
def started(fresh: Project) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    with jupyter_place():
        words = ("-C", str(fresh.root), "panel", "--json")
        process = subprocess.Popen(
            command(*words),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
            preexec_fn=heeds_ctrl_c,
        )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, process.stderr.read() if process.stderr else ""
        yield process, json.loads(line)["data"]
    finally:
        process.terminate()
        process.communicate(timeout=100)


def _get(url: str) -> int:
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


@needs_lab
def test_it_lets_its_owner_in_and_ctrl_c_ends_it_and_nothing_else(
    fresh: Project, started: tuple[subprocess.Popen[str], dict[str, Any]]
) -> None:
    process, told = started
    live = bridge_control.start(fresh, port=0, tunnel="none")
    try:
        base, token = f"http://127.0.0.1:{told['port']}", told["url"].partition("token=")[2]
        assert told["url"].startswith(f"{base}/lab/tree/{panel_server.NOTEBOOK}?token=") and len(token) > 30
        assert _get(f"{base}/api/kernels") == 403
        assert _get(f"{base}/api/kernels?token={token}") == 200
        [server] = processes.descendants(process.pid)
        assert token not in _argv(server) and token not in (fresh.private / panel_server.LOG).read_text()
        ticks = processes.start_ticks(server)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        wait_until(lambda: not processes.is_alive(server, ticks), 30)
        assert bridge_control.find(fresh) == live
    finally:
        bridge_control.stop(fresh)


@needs_lab
def test_its_kernel_is_this_very_python(fresh: Project, started: tuple[subprocess.Popen[str], dict[str, Any]]) -> None:
    _, told = started
    token = told["url"].partition("token=")[2]
    with urllib.request.urlopen(f"http://127.0.0.1:{told['port']}/api/kernelspecs?token={token}", timeout=60) as answer:
        specs = json.load(answer)
    assert specs["kernelspecs"]["python3"]["spec"]["argv"][0] == sys.executable


@needs_lab
def test_a_port_that_is_taken_is_told_with_where_to_look(fresh: Project) -> None:
    live = bridge_control.start(fresh, port=0, tunnel="none")
    try:
        with pytest.raises(BridgeheadError, match="ended while starting") as caught:
            panel_server.start(fresh, voila=False, port=live.port, browser=False)
        assert panel_server.LOG in caught.value.hint
    finally:
        bridge_control.stop(fresh)


def _argv(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
