"""The cell's heartbeat: what it minds, what it says, and what it survives."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bridgehead import files, names, processes
from support import wait_until
from vm_daemons import beats, cell, daemons, mounting, release
from vm_daemons.home import VmHome
from vm_support import make_run, paired_home


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> VmHome:
    monkeypatch.setattr(daemons, "ensure", lambda _: dict.fromkeys(names.DAEMONS, "running"))
    monkeypatch.setenv(names.ENV_LOCAL_VM, "vm-under-test")
    return VmHome(tmp_path / "vm")


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_heartbeat_goes_on_until_it_is_interrupted(
    home: VmHome, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    paired_home(home.root)
    run_dir = make_run(home, "pretrain-0001-abcdef")
    (run_dir / names.STATUS_LINE).write_text("pretrain-0001-abcdef · running\n")
    (home.state / daemons.CONTACT_MARK).touch()
    found = iter([{names.STATUS_DAEMON: "running"}, {names.STATUS_DAEMON: "started"}])
    monkeypatch.setattr(daemons, "ensure", lambda _: next(found))
    daemons.log_file(home, names.STATUS_DAEMON).write_text("first\nOSError: why it died\n")
    turns = iter([None])

    def pause(_: float) -> None:
        if next(turns, "stop") == "stop":
            raise KeyboardInterrupt

    cell.heartbeat_loop(home, pause)
    said = capsys.readouterr().out
    assert "running" in said and home.record()["vm_id"] in said and "laptop answered" in said
    assert "OSError: why it died" in said
    assert said.count("pretrain-0001-abcdef") == 1  # a line a minute, not one a check
    assert "only this heartbeat has stopped" in said
    assert (home.state / daemons.CELL_MARK).exists()


def test_trouble_does_not_end_the_heartbeat(
    home: VmHome, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    paired_home(home.root)

    def no_room(_: VmHome) -> dict[str, str]:
        raise OSError("No space left on device")

    monkeypatch.setattr(daemons, "ensure", no_room)
    turns = iter([None, None])

    def pause(_: float) -> None:
        if next(turns, "stop") == "stop":
            raise KeyboardInterrupt

    cell.heartbeat_loop(home, pause)
    said = capsys.readouterr().out
    assert said.count("No space left on device") == 1 and "only this heartbeat has stopped" in said


def test_a_run_that_has_left_is_not_listed(home: VmHome) -> None:
    paired_home(home.root)
    run_dir = make_run(home, "pretrain-0001-abcdef")
    (run_dir / names.STATUS_LINE).write_text("pretrain-0001-abcdef · done\n")
    files.write_json(run_dir / names.MIRRORED, {})
    assert cell.summary(home).endswith("no run")


def test_the_line_tells_age_cap_and_why_the_vm_stays(home: VmHome) -> None:
    paired_home(home.root)
    home.update_record(vm_rules={"cap_h": 12.0})
    line = cell.summary(home, release.Verdict("x-0001-abcdef runs"))
    assert " of 12h00m · " in line and line.endswith("stays up: x-0001-abcdef runs")
    assert cell.summary(home, release.Verdict(in_s=90.0)).endswith("gives itself back in 1m30s")


def test_after_a_sleep_of_ten_hours_it_says_one_line_and_ends_no_daemon(
    home: VmHome, capsys: pytest.CaptureFixture[str], sleeper: subprocess.Popen[bytes]
) -> None:
    paired_home(home.root)
    _pretend_daemon(home, names.STATUS_DAEMON, sleeper)
    clock = Clock()
    heart = cell.Heart(home, clock)
    heart.turn()
    clock.now += 36_000.0
    capsys.readouterr()
    for _ in range(5):
        heart.turn()
        clock.now += cell.CHECK_EVERY_S
    assert len(capsys.readouterr().out.splitlines()) == 1
    assert sleeper.poll() is None


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    yield process
    process.kill()
    process.wait(100)


def _pretend_daemon(home: VmHome, name: str, process: subprocess.Popen[bytes]) -> None:
    """A live process in the pid file, and a sign of life that will not change."""
    record = {"pid": process.pid, "start_ticks": processes.start_ticks(process.pid), "boot_id": processes.boot_id()}
    files.write_json(daemons.pid_file(home, name), record)
    beats.beat(home, name)


@pytest.mark.parametrize(
    ("name", "after_s"),
    [(names.STATUS_DAEMON, cell.STUCK_AFTER_S), (names.COMMAND_DAEMON, cell.STUCK_AFTER_S)],
)
def test_a_daemon_that_lives_and_hangs_is_killed_with_the_reason(
    home: VmHome, capsys: pytest.CaptureFixture[str], sleeper: subprocess.Popen[bytes], name: str, after_s: float
) -> None:
    paired_home(home.root)
    _pretend_daemon(home, name, sleeper)
    clock = Clock()
    heart = cell.Heart(home, clock)
    while clock.now < after_s:
        heart.turn()
        clock.now += cell.CHECK_EVERY_S
    assert sleeper.poll() is None
    heart.turn()
    wait_until(lambda: sleeper.poll() is not None, what="its end")
    assert f"{name}: it lives, and has given no sign of life for 5m00s" in capsys.readouterr().out


def test_one_that_hangs_again_gets_more_time(home: VmHome, sleeper: subprocess.Popen[bytes]) -> None:
    paired_home(home.root)
    _pretend_daemon(home, names.STATUS_DAEMON, sleeper)
    clock = Clock()
    heart = cell.Heart(home, clock)
    while sleeper.poll() is None:
        heart.turn()
        clock.now += cell.CHECK_EVERY_S
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as second:
        _pretend_daemon(home, names.STATUS_DAEMON, second)
        os.utime(beats.path(home, names.STATUS_DAEMON), (1.0, 1.0))
        began = clock.now
        while clock.now < began + cell.STUCK_AFTER_S * 1.5:
            heart.turn()
            clock.now += cell.CHECK_EVERY_S
        assert second.poll() is None
        second.kill()


def test_a_daemon_that_dies_at_each_start_gets_a_line_a_minute(
    home: VmHome, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    paired_home(home.root)
    monkeypatch.setattr(daemons, "ensure", lambda _: {names.STATUS_DAEMON: "started"})
    clock = Clock()
    heart = cell.Heart(home, clock)
    for _ in range(24):  # two minutes
        heart.turn()
        clock.now += cell.CHECK_EVERY_S
    assert capsys.readouterr().out.count("its last words") == 2


def test_each_chore_is_done_whatever_happens_to_the_others(
    home: VmHome, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    paired_home(home.root)

    def broken(*_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(daemons, "ensure", broken)
    monkeypatch.setattr(mounting.Remounter, "mind", broken)
    heart = cell.Heart(home, Clock())
    assert not heart.turn() and not heart.turn()
    said = capsys.readouterr().out
    assert said.count("a bug") == 2 and "no run" in said  # each once, and the line all the same
    assert (home.state / daemons.CELL_MARK).exists()


def test_a_vm_record_that_can_not_be_read_ends_nothing_and_releases_nothing(home: VmHome) -> None:
    paired_home(home.root)
    heart = cell.Heart(home, Clock())
    (home.state / names.VM_RECORD).write_text("[")
    home.runs.rmdir()
    assert not heart.turn()


def test_a_front_end_that_is_gone_does_not_end_the_heartbeat(home: VmHome, monkeypatch: pytest.MonkeyPatch) -> None:
    paired_home(home.root)

    class Gone:
        def write(self, _: str) -> None:
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stdout", Gone())
    assert not cell.Heart(home, Clock()).turn()


def test_on_a_full_disk_the_heartbeat_goes_on(home: VmHome, monkeypatch: pytest.MonkeyPatch) -> None:
    paired_home(home.root)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "write_atomic", full)
    heart = cell.Heart(home, Clock())
    assert not heart.turn() and not heart.turn()


def test_a_cap_that_has_passed_is_said_once(home: VmHome, capsys: pytest.CaptureFixture[str]) -> None:
    paired_home(home.root)
    home.update_record(vm_rules={"cap_h": 0.0000001}, store="/somewhere")
    heart = cell.Heart(home, Clock())
    heart.turn()
    heart.turn()
    assert capsys.readouterr().out.count("no run starts here any more") == 1


def test_the_cell_is_done_once_the_vm_was_given_back(
    home: VmHome, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    paired_home(home.root)
    monkeypatch.setattr(release.Release, "look", lambda _: release.Verdict())
    answers = iter([False, True])
    monkeypatch.setattr(release.Release, "go", lambda _: next(answers))
    cell.heartbeat_loop(home, lambda _: None)
    assert "given back" in capsys.readouterr().out
