"""The command daemon as a process against a real bridge: SIGKILL at any moment, and a bridge that goes away."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bridge.ledger_rows import CommandRow
from bridge.project import ProjectView
from bridge_client import LiveBridge, live_bridge
from bridgehead import files, names
from bridgehead.names import FailureClass, RunState
from bridgehead.queue_lines import encode_shell
from bridgehead.records import StageSpec
from command_rig import WAITS
from support import wait_until
from vm_daemons import launch
from vm_daemons.home import VmHome
from vm_daemons.journal import Journal
from vm_run_support import exit_of, is_gone, kill_tagged, log_of, python, vm_home, wait_for_log, wait_for_stage

SLEEP = python("import time; print('up', flush=True); time.sleep(60)")


class Rig:
    """A bridge, a VM home, and daemons that can be killed."""

    def __init__(self, live: LiveBridge, root: Path) -> None:
        self.live = live
        self.home = vm_home(root)
        self.home.save_pairing(live.bridge.pairing(f"http://127.0.0.1:{live.bridge.port}"))

    def queue(self, *lines: str, command: str = SLEEP, retries: int = 2) -> list[CommandRow]:
        project = ProjectView("demo", {"train": StageSpec("train", command, retries=retries)})
        return self.live.bridge.ledger.take(list(enumerate(lines, 1)), project)

    @contextlib.contextmanager
    def daemon(self) -> Iterator[subprocess.Popen[bytes]]:
        env = {**os.environ, names.ENV_HOME: str(self.home.root), "PYTHONPATH": str(launch.SHIP), "PYTHONSAFEPATH": "1"}
        with (self.home.state / "daemon.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "vm_daemons.command_daemon"],
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            yield process
        finally:
            process.kill()
            process.wait(100)

    def row(self, run_id: str) -> CommandRow:
        return self.live.bridge.ledger.find_run(run_id)

    def mirror_what_ended(self) -> None:
        for run_dir in self.home.runs.iterdir():
            if (run_dir / names.EXIT).exists():
                files.write_json(run_dir / names.MIRRORED, {"v": 1, "attempt": 1})

    def wait_for_state(self, run_id: str, *states: RunState) -> CommandRow:
        def reached() -> CommandRow | None:
            self.mirror_what_ended()
            row = self.row(run_id)
            return row if row.state in states else None

        return wait_until(reached, 20.0, what=f"{run_id} to be {states}")


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    root = tmp_path / "project"
    root.mkdir()
    with live_bridge(root) as live:
        rig = Rig(live, tmp_path / "vm")
        yield rig
        for run_dir in rig.home.runs.iterdir():
            launch.kill(run_dir)
            kill_tagged(run_dir)


def test_a_stage_outlives_its_daemon_and_the_next_one_sees_it_end(rig: Rig) -> None:
    (row,) = rig.queue("run:train", command=WAITS)
    run_dir = rig.home.run(row.run_id)
    with rig.daemon():
        wait_for_log(run_dir, "up")
        stage = wait_for_stage(run_dir)
    with rig.daemon():
        rig.wait_for_state(row.run_id, RunState.RUNNING)
        assert wait_for_stage(run_dir) == stage
        (rig.home.payload / "go").touch()
        assert rig.wait_for_state(row.run_id, RunState.DONE).exit_code == 0
    assert log_of(run_dir).count("up") == 1


def test_a_stage_that_ended_while_no_daemon_lived_is_reported_by_the_next(rig: Rig) -> None:
    (row,) = rig.queue("run:train", command=WAITS)
    run_dir = rig.home.run(row.run_id)
    with rig.daemon():
        wait_for_log(run_dir, "up")
        wait_for_stage(run_dir)
    (rig.home.payload / "go").touch()
    wait_until((run_dir / names.EXIT).exists, what="the end")
    with rig.daemon():
        assert rig.wait_for_state(row.run_id, RunState.DONE).exit_code == 0


def test_daemon_and_runner_killed_the_stage_is_adopted(rig: Rig) -> None:
    (row,) = rig.queue("run:train")
    run_dir = rig.home.run(row.run_id)
    with rig.daemon():
        stage = wait_for_stage(run_dir)
        record = launch.process_record(run_dir)
        assert record is not None
    os.kill(record.runner_pid, signal.SIGKILL)
    wait_until(lambda: not launch.is_running(run_dir), what="the runner's end")
    with rig.daemon():
        wait_until(lambda: launch.is_running(run_dir), what="a new runner")
        assert not is_gone(stage)
        rig.queue(f"stop:{row.run_id}")
        rig.wait_for_state(row.run_id, RunState.STOPPED)
    assert is_gone(stage)


def test_all_of_a_run_killed_starts_again_in_the_same_attempt(rig: Rig) -> None:
    (row,) = rig.queue("run:train")
    run_dir = rig.home.run(row.run_id)
    with rig.daemon():
        first = wait_for_stage(run_dir)
        launch.kill(run_dir)
        wait_until(lambda: is_gone(first), what="the stage's end")
        assert wait_for_stage(run_dir) != first
    assert log_of(run_dir).count("--- attempt 1") == 1 and "retry 1 of " in log_of(run_dir)


def test_a_stage_that_is_killed_goes_on_until_its_budget_is_spent(rig: Rig) -> None:
    (row,) = rig.queue("run:train", retries=1)
    run_dir = rig.home.run(row.run_id)
    with rig.daemon():
        first = wait_for_stage(run_dir)
        os.kill(first, signal.SIGKILL)
        wait_for_log(run_dir, "retry 1 of 1")
        wait_until(lambda: launch.stage_lives(run_dir), what="the second start")
        second = wait_for_stage(run_dir)
        assert second != first
        os.kill(second, signal.SIGKILL)
        ended = rig.wait_for_state(row.run_id, RunState.FAILED)
    assert (ended.failure_class, exit_of(run_dir).retries) == (FailureClass.KILLED, 1)


def test_a_stage_that_dies_with_its_runner_again_and_again_fails_at_last(rig: Rig) -> None:
    (row,) = rig.queue("run:train", retries=1)
    run_dir = rig.home.run(row.run_id)
    with rig.daemon():
        for count in (1, 2):
            wait_until(lambda: launch.stage_lives(run_dir), what=f"start {count}")
            stage = wait_for_stage(run_dir)
            launch.kill(run_dir)
            wait_until(lambda stage=stage: is_gone(stage), what="the stage's end")
        ended = rig.wait_for_state(row.run_id, RunState.FAILED)
    assert ended.failure_class == FailureClass.KILLED
    assert exit_of(run_dir).retries == 1 and "retry 1 of 1" in log_of(run_dir)
    assert log_of(run_dir).count("--- attempt 1") == 1


def test_starts_that_never_became_a_process_do_not_use_the_budget_up(rig: Rig) -> None:
    """The daemon died between writing a start down and making it, several times over."""
    (row,) = rig.queue("run:train", command=WAITS, retries=0)
    (command,) = rig.live.bridge.ledger.deliver(str(rig.home.record()["vm_id"]), 0)
    journal = Journal(rig.home.journal)
    journal.accept([command])
    for _ in range(3):
        journal.starting(command)
    (rig.home.payload / "go").touch()
    with rig.daemon():
        assert rig.wait_for_state(row.run_id, RunState.DONE).exit_code == 0


def test_a_shell_command_whose_processes_were_killed_is_not_repeated(rig: Rig) -> None:
    (row,) = rig.queue(encode_shell("echo ran; sleep 60"))
    run_dir = rig.home.run(row.run_id)
    with rig.daemon():
        wait_for_log(run_dir, "ran")
        wait_for_stage(run_dir)
        launch.kill(run_dir)
        ended = rig.wait_for_state(row.run_id, RunState.FAILED)
    assert ended.failure_class == FailureClass.UNKNOWN_OUTCOME
    assert log_of(run_dir).count("ran") == 1


def test_a_shell_command_whose_start_was_journalled_but_not_made_is_not_run(rig: Rig) -> None:
    """The one moment that nobody can tell apart from a command that ran and vanished."""
    (row,) = rig.queue(encode_shell("echo ran"))
    (command,) = rig.live.bridge.ledger.deliver(str(rig.home.record()["vm_id"]), 0)
    journal = Journal(rig.home.journal)
    journal.accept([command])
    journal.starting(command)
    with rig.daemon():
        ended = rig.wait_for_state(row.run_id, RunState.FAILED)
    assert ended.failure_class == FailureClass.UNKNOWN_OUTCOME
    assert "ran" not in log_of(rig.home.run(row.run_id)).splitlines()


def test_a_daemon_killed_again_and_again_runs_no_command_twice(rig: Rig) -> None:
    marks = rig.home.root / "marks"
    marks.mkdir()
    lines = [encode_shell(f"echo ran >> {marks}/{number}") for number in range(12)]
    rows = rig.queue(*lines)
    for target in range(1, 12, 2):  # each daemon dies at another point of what it is doing
        with rig.daemon():
            wait_until(lambda count=target: len(list(marks.iterdir())) >= count or _all_over(rig, rows), 20.0)
    with rig.daemon():
        ended = [rig.wait_for_state(row.run_id, RunState.DONE, RunState.FAILED) for row in rows]
    for number, row in enumerate(ended):
        times = (marks / str(number)).read_text().count("ran") if (marks / str(number)).exists() else 0
        if row.state == RunState.DONE:
            assert times == 1
        else:
            assert row.failure_class == FailureClass.UNKNOWN_OUTCOME
            assert times <= 1


def test_a_stop_that_was_passed_on_is_not_passed_on_again_by_the_next_daemon(rig: Rig) -> None:
    """A second signal would kill a stage that is just saving."""
    code = (
        "import os, signal, sys, time\n"
        "def save(*_):\n"
        "    print('saving', flush=True)\n"
        "    while not os.path.exists(os.environ['BRIDGEHEAD_HOME'] + '/payload/go'): time.sleep(0.02)\n"
        "    sys.exit(143)\n"
        "signal.signal(signal.SIGTERM, save)\n"
        "print('up', flush=True)\n"
        "while True: time.sleep(0.05)"
    )
    (row,) = rig.queue("run:train", command=python(code))
    run_dir = rig.home.run(row.run_id)
    with rig.daemon():
        wait_for_log(run_dir, "up")
        rig.queue(f"stop:{row.run_id}")
        wait_for_log(run_dir, "saving")
    _forget_last_finish(rig.home)
    with rig.daemon():
        rig.wait_for_state(row.run_id, RunState.RUNNING)
        wait_until(lambda: '"finished"' in rig.home.journal.read_text(), what="the stop taken again")
        (rig.home.payload / "go").touch()
        assert rig.wait_for_state(row.run_id, RunState.STOPPED).exit_code == 143


def test_a_bridge_that_stops_holds_up_no_stage_and_hears_of_it_afterwards(tmp_path: Path) -> None:
    root = tmp_path / "project"
    root.mkdir()
    with live_bridge(root) as live:
        rig = Rig(live, tmp_path / "vm")
        port = live.bridge.port
        (row,) = rig.queue("run:train", command=WAITS)
        run_dir = rig.home.run(row.run_id)
        daemon = rig.daemon()
        process = daemon.__enter__()
        wait_for_log(run_dir, "up")
        rig.wait_for_state(row.run_id, RunState.RUNNING)
    try:
        (rig.home.payload / "go").touch()
        wait_until((run_dir / names.EXIT).exists, what="the end of the stage without a bridge")
        rig.mirror_what_ended()
        with live_bridge(root, port=port) as live:
            rig.live = live
            rig.wait_for_state(row.run_id, RunState.DONE)
            assert process.poll() is None
    finally:
        daemon.__exit__(None, None, None)


def _all_over(rig: Rig, rows: list[CommandRow]) -> bool:
    return all((rig.home.run(row.run_id) / names.EXIT).exists() for row in rows)


def _forget_last_finish(home: VmHome) -> None:
    """As if the daemon had been killed between passing the stop on and writing down that it did."""
    lines = home.journal.read_text().splitlines(keepends=True)
    home.journal.write_text("".join(line for line in lines if '"finished"' not in line))
