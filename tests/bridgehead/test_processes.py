"""Who a process is, with and without /proc."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bridgehead import processes
from support import wait_until


@pytest.fixture(params=["proc", "ps"])
def system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    if request.param == "ps":  # as on macOS
        monkeypatch.setattr(processes, "_PROC", tmp_path / "nothing")
    return str(request.param)


def test_a_process_lives_until_it_ends(system: str) -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    start = processes.start_ticks(child.pid)
    assert processes.is_alive(child.pid, start) and not processes.is_alive(child.pid, start + 1)
    child.kill()
    wait_until(lambda: not processes.is_alive(child.pid, start), what="the killed child to count as dead, unreaped")
    child.wait(100)
    assert processes.start_ticks(child.pid) == 0


def test_a_signal_goes_to_the_very_process_alone(system: str) -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    start = processes.start_ticks(child.pid)
    assert not processes.send(child.pid, signal.SIGTERM, started_ticks=start + 1)
    assert child.poll() is None
    assert processes.send(child.pid, signal.SIGTERM, started_ticks=start)
    assert child.wait(100) == -signal.SIGTERM


def test_tagged_processes_are_found_by_their_environment() -> None:
    env = {**os.environ, "BRIDGEHEAD_TEST_TAG": "here"}
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env=env)
    try:
        found = wait_until(lambda: processes.tagged("BRIDGEHEAD_TEST_TAG", "here"), what="the tagged child")
        assert found == [child.pid]
    finally:
        child.kill()
        child.wait(100)


def test_without_proc_there_is_nobody_to_list(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(processes, "_PROC", tmp_path / "nothing")
    assert processes.all_pids() == [] and processes.tagged("A", "b") == []
