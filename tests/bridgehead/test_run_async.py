"""Checkpoints that are written while the stage goes on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bridgehead import async_save, checkpoints, files, names
from bridgehead.errors import RunFailed, UsageError
from bridgehead.records import RunRecord, StageSpec
from bridgehead.run import Run
from support import wait_until

ROOT = Path(__file__).parents[2]
DEADLINE_S = 20.0


def _record(**spec: Any) -> RunRecord:
    described = StageSpec("train", "python train.py", **{"checkpoint_every_epochs": 0, **spec})
    return RunRecord("train-0001-abcdef", "train", "p", "c", 1, "vm-1", time.time(), described)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    made = Run(tmp_path, _record(checkpoint_every_steps=10))
    yield made
    made._saver.wait()


def _told(run: Run, kind: str) -> list[dict[str, Any]]:
    lines = (run.folder / names.PROGRESS).read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == kind]


def _says(run: Run) -> str:
    return " | ".join(event["text"] for event in _told(run, "message"))


class Slow:
    """A write that goes on until it is let go."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.taken = 0

    def take(self) -> Callable[[Path], object]:
        self.taken += 1
        return self.write

    def write(self, folder: Path) -> None:
        assert self.go.wait(DEADLINE_S)
        (folder / "state.bin").write_bytes(b"x")


def _fails() -> Callable[[Path], object]:
    def write(folder: Path) -> None:
        (folder / "half").write_bytes(b"x")
        raise OSError(28, "No space left on device")

    return write


def _works() -> Callable[[Path], object]:
    return lambda folder: (folder / "state.bin").write_bytes(b"x")


def test_it_returns_while_the_checkpoint_is_being_written_and_then_it_is_there(run: Run) -> None:
    slow = Slow()
    assert run.checkpoint_async(10, slow.take, epoch=1, note="n")
    assert slow.taken == 1 and run.saved_step is None and _told(run, "saving")
    slow.go.set()
    run.finish_saving()
    found = run.latest_checkpoint()
    assert found is not None and (found.step, found.meta["note"], run.saved_step) == (10, "n", 10)
    assert [event["step"] for event in _told(run, "checkpoint")] == [10]


def test_one_is_in_flight_at_most_and_a_denser_cadence_waits_and_says_so_once(run: Run) -> None:
    slow = Slow()
    assert run.checkpoint_due(0, 10)
    run.checkpoint_async(10, slow.take)
    assert not any(run.checkpoint_due(0, step) for step in range(11, 45))
    assert not run.checkpoint_async(44, slow.take) and slow.taken == 1, "nothing is copied, nothing queues up"
    slow.go.set()
    wait_until(lambda: run.checkpoint_due(0, 45), DEADLINE_S, what="the next one to be due")
    run.checkpoint_async(45, _works)
    run.finish_saving()
    assert not run.checkpoint_due(0, 46) and run.checkpoint_due(0, 50)
    assert _says(run).count("more often than one is written") == 1


def test_a_failed_one_is_said_and_the_next_one_is_tried(run: Run) -> None:
    for step, take in ((10, _fails), (20, _fails), (30, _works), (40, _fails), (50, _fails), (60, _works)):
        run.checkpoint_async(step, take)
        run.finish_saving()
    assert _says(run).count("No space left on device") == 4
    assert checkpoints.newest(run.folder / names.CHECKPOINTS)[0].step == 60  # type: ignore[union-attr]
    left = [path.name for path in (run.folder / names.CHECKPOINTS).iterdir()]
    assert sorted(left) == ["step-00000030", "step-00000060"], "nothing of those that failed"


def test_the_third_failure_in_a_row_ends_the_run_at_the_next_step(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(async_save, "FAILING_MAX_S", 0.0)
    for step in (10, 20):
        run.checkpoint_async(step, _fails)
        run.finish_saving()
    run.checkpoint_async(30, _fails)
    with pytest.raises(RunFailed, match="3 checkpoints in a row"):
        wait_until(lambda: run.checkpoint_due(0, 31), DEADLINE_S, what="the failure to be heard")


def test_a_disk_that_is_full_for_a_minute_ends_no_run_however_many_fail_meanwhile(run: Run) -> None:
    for step in range(10, 60, 10):
        run.checkpoint_async(step, _fails)
        run.finish_saving()
    run.checkpoint_async(60, _works)
    run.finish_saving()
    assert run.saved_step == 60


def test_one_that_waits_is_written_after_the_one_in_flight(run: Run) -> None:
    """A stop saves so: whatever was under way is whole before the last one begins."""
    slow = Slow()
    run.checkpoint_async(10, slow.take)
    threading.Timer(0.05, slow.go.set).start()
    with run.checkpoint(11) as folder:
        assert run.saved_step == 10
        (folder / "state.bin").write_bytes(b"x")
    assert run.saved_step == 11


def test_a_step_that_no_folder_holds_is_refused_before_anything_is_copied(run: Run) -> None:
    slow = Slow()
    with pytest.raises(UsageError):
        run.checkpoint_async(10**12, slow.take)
    assert slow.taken == 0


def _script(folder: Path, body: str) -> subprocess.CompletedProcess[str]:
    files.write_json(folder / names.RUN_RECORD, _record().to_json())
    env = {**os.environ, names.ENV_RUN_DIR: str(folder), "PYTHONPATH": str(ROOT)}
    head = "import bridgehead, time\nrun = bridgehead.current_run()\n"
    return subprocess.run(
        [sys.executable, "-c", head + body], env=env, cwd=folder, capture_output=True, text=True, timeout=DEADLINE_S
    )


def test_the_end_of_a_script_waits_for_the_one_in_flight(tmp_path: Path) -> None:
    body = "def write(folder):\n    time.sleep(0.3)\n    (folder / 'f').write_text('x')\n"
    done = _script(tmp_path, body + "run.checkpoint_async(5, lambda: write)\n")
    assert done.returncode == 0, done.stderr
    assert checkpoints.newest(tmp_path / names.CHECKPOINTS)[0] is not None


def test_a_failure_after_the_last_step_is_said_too(tmp_path: Path) -> None:
    body = "def write(folder):\n    time.sleep(0.3)\n    raise OSError(5, 'Input/output error')\n"
    done = _script(tmp_path, body + "run.checkpoint_async(5, lambda: write)\n")
    assert "checkpoint 5 could not be written: Input/output error" in done.stdout and done.returncode == 0
