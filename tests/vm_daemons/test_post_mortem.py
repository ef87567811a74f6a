"""The post-mortem that a runner starts: there after every end, and never in the way of one."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from bridgehead import files, names
from support import wait_until
from vm_daemons import post_mortem
from vm_daemons.home import VmHome
from vm_run_support import exit_of, log_of, python, run_folder, run_to_the_end, vm_home


@pytest.fixture
def home(tmp_path: Path) -> VmHome:
    return vm_home(tmp_path / "vm")


@pytest.mark.parametrize(
    ("code", "wanted"),
    [
        ("print('hello')", "done"),
        ("raise MemoryError", "host_oom"),
        ("import os; os.kill(os.getpid(), 9)", "killed_unknown"),
    ],
)
def test_every_end_gets_one(home: VmHome, code: str, wanted: str) -> None:
    run_dir = run_folder(home, python(code), retries=0)
    run_to_the_end(home, run_dir)
    wait_until(lambda: not (run_dir / names.POSTMORTEM_DUE).exists(), timeout_s=20)
    record = files.read_json(run_dir / names.POSTMORTEM)
    assert record is not None and record["verdict"]["class"] == wanted
    assert wanted in (run_dir / names.POSTMORTEM_PAGE).read_text()


def test_one_that_can_not_be_started_changes_nothing(home: VmHome, monkeypatch: pytest.MonkeyPatch) -> None:
    run_dir = run_folder(home, python("raise SystemExit(3)"))
    (run_dir / names.POSTMORTEM).mkdir()  # nor can its files be written
    ended = run_to_the_end(home, run_dir)
    assert (ended.exit_code, exit_of(run_dir).failure_class) == (3, "user_error") and "Traceback" not in log_of(run_dir)
    wait_until(lambda: not (run_dir / names.POSTMORTEM_DUE).exists(), timeout_s=20)
    monkeypatch.setattr(post_mortem.sys, "executable", str(run_dir / "none"))
    post_mortem.announce(run_dir, oom_killed=False, disk_full=False)
    post_mortem.start(run_dir)
    assert not post_mortem.is_due(run_dir)


def test_nobody_waits_for_one_that_died(tmp_path: Path) -> None:
    post_mortem.announce(tmp_path, oom_killed=True, disk_full=False)
    assert post_mortem.is_due(tmp_path)
    past = time.time() - post_mortem.LIMIT_S
    os.utime(tmp_path / names.POSTMORTEM_DUE, (past, past))
    assert not post_mortem.is_due(tmp_path)
    post_mortem.announce(tmp_path / "nowhere", oom_killed=True, disk_full=False)


def test_what_the_runner_measured_is_evidence(tmp_path: Path) -> None:
    exit_record = {"attempt": 1, "state": "failed", "exit_code": 137, "failure_class": "killed_unknown"}
    files.write_json(tmp_path / names.EXIT, exit_record)
    post_mortem.announce(tmp_path, oom_killed=True, disk_full=False)
    post_mortem.write(tmp_path)
    record = files.read_json(tmp_path / names.POSTMORTEM)
    assert record is not None and record["verdict"]["class"] == "host_oom"
    assert record["resources"]["disks"]["run"]["total_bytes"] > 0 and record["written_by"] == "vm"
