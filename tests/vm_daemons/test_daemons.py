"""Three detached processes: started once, taken over, replaced with the ship, stopped. Small scripts stand in."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bridgehead import files, names, processes
from support import wait_until
from vm_daemons import daemons
from vm_daemons.home import VmHome
from vm_support import paired_home

DAEMON = """
import json, os, signal, sys, time
told = {"env": dict(os.environ), "path": sys.path, "sid": os.getsid(0), "pid": os.getpid()}
with open(os.environ["BRIDGEHEAD_HOME"] + "/state/" + __file__.split("/")[-1] + ".json.new", "w") as handle:
    json.dump(told, handle)
os.replace(handle.name, handle.name[:-4])
if __file__.endswith("status_daemon.py"):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
while True:
    time.sleep(0.5)
"""
OLD, NEW = "a" * 64, "b" * 64


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[VmHome]:
    monkeypatch.setattr(daemons, "STOP_GRACE_S", 1.0)
    home = paired_home(tmp_path)
    for sha256 in (OLD, NEW):
        package = home.ship(sha256) / "vm_daemons"
        package.mkdir(parents=True)
        for name in ("__init__", *names.DAEMONS):
            (package / f"{name}.py").write_text(DAEMON if name != "__init__" else "")
    home.update_record(ship_sha256=OLD)
    yield home
    daemons.stop(home)


def _told(home: VmHome, name: str) -> dict[str, object]:
    path = home.state / f"{name}.py.json"
    return wait_until(lambda: files.read_json(path), what=f"{name} to start")  # type: ignore[no-any-return]


def _pids(home: VmHome) -> list[int]:
    found = [daemons.running(home, name) for name in names.DAEMONS]
    return [record["pid"] for record in found if record]


def test_they_start_detached_and_a_second_call_finds_them(home: VmHome) -> None:
    assert daemons.ensure(home) == dict.fromkeys(names.DAEMONS, "started")
    pids = _pids(home)
    assert daemons.ensure(home) == dict.fromkeys(names.DAEMONS, "running")
    assert _pids(home) == pids and len(pids) == len(names.DAEMONS)
    assert _told(home, names.STATUS_DAEMON)["sid"] != os.getsid(0)


def test_their_environment_is_clean(home: VmHome, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MPLBACKEND", "JPY_PARENT_PID", "COLAB_GPU", names.ENV_PAIRING):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv(names.ENV_LOCAL_VM, "tag")
    daemons.ensure(home)
    environment = _told(home, names.COMMAND_DAEMON)["env"]
    assert isinstance(environment, dict)
    assert not {"MPLBACKEND", "JPY_PARENT_PID", "COLAB_GPU", names.ENV_PAIRING} & set(environment)
    assert environment[names.ENV_LOCAL_VM] == "tag"
    assert environment["PYTHONPATH"] == str(home.ship(OLD))
    assert environment[names.ENV_HOME] == str(home.root)


def test_a_killed_one_is_started_again(home: VmHome) -> None:
    daemons.ensure(home)
    record = daemons.running(home, names.COMMAND_DAEMON)
    assert record is not None
    os.kill(record["pid"], signal.SIGKILL)
    wait_until(lambda: daemons.running(home, names.COMMAND_DAEMON) is None, what="its end")
    assert daemons.ensure(home) == {
        **dict.fromkeys(names.DAEMONS, "running"),
        names.COMMAND_DAEMON: "started",
    }


def test_a_new_ship_replaces_all_even_one_that_ignores_sigterm(home: VmHome) -> None:
    daemons.ensure(home)
    _told(home, names.STATUS_DAEMON)
    old = _pids(home)
    home.update_record(ship_sha256=NEW)
    assert set(daemons.ensure(home).values()) == {"restarted because the ship changed"}
    assert not set(old) & set(_pids(home)) and not any(processes.start_ticks(pid) for pid in old)


def test_a_lost_pid_file_does_not_make_a_second_daemon(home: VmHome) -> None:
    daemons.ensure(home)
    _told(home, names.COMMAND_DAEMON)
    old = _pids(home)[0]
    daemons.pid_file(home, names.COMMAND_DAEMON).unlink()
    daemons.ensure(home)
    assert processes.start_ticks(old) == 0
    assert len(_pids(home)) == len(names.DAEMONS)


def test_a_pid_that_now_belongs_to_another_process_is_left_alone(home: VmHome) -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as bystander:
        path = daemons.pid_file(home, names.COMMAND_DAEMON)
        files.write_json(path, {"pid": bystander.pid, "start_ticks": 1, "boot_id": processes.boot_id()})
        daemons.stop(home)
        assert bystander.poll() is None
        bystander.kill()


def test_stop_leaves_none(home: VmHome) -> None:
    daemons.ensure(home)
    pids = _pids(home)
    daemons.stop(home)
    assert not any(processes.start_ticks(pid) for pid in pids)
