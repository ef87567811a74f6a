"""A run with a cap: near it a checkpoint is forced, seen to be safe, and then the run is stopped, in that order."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from bridgehead import checkpoints, files, names
from bridgehead.names import RunState
from bridgehead.records import Command, Pins, RunRecord, VmRules
from support import wait_until
from vm_daemons import budget, launch, run_meter
from vm_daemons.budget import Budgets
from vm_daemons.home import VmHome
from vm_run_support import exit_of, log_of, python, run_folder, runner, vm_home

BUDGET_S = 3600.0
SAVES_WHEN_ASKED = python(
    "import bridgehead, time\n"
    "run, step = bridgehead.current_run(), 0\n"
    "while not run.should_stop:\n"
    "    step += 1\n"
    "    run.progress(step=step)\n"
    "    if run.checkpoint_due(0, step):\n"
    "        with run.checkpoint(step) as folder: (folder / 'w').write_bytes(b'w')\n"
    "    time.sleep(0.05)\n"
    "run.exit_stopped()\n"
)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "LOOK_EVERY_S", 0.0)


@pytest.fixture
def home(tmp_path: Path) -> VmHome:
    return vm_home(tmp_path / "vm")


def _run(home: VmHome, earlier_s: float, budget_s: float = BUDGET_S) -> tuple[Path, Command]:
    """A second attempt of a run whose first one ran for so long."""
    run_dir = run_folder(home, SAVES_WHEN_ASKED, attempt=2, pins=Pins(budget_s=budget_s))
    events = [{"attempt": 1, "at": at, "event": "progress", "step": 1} for at in (1000.0, 1000.0 + earlier_s)]
    (run_dir / names.PROGRESS).write_text("".join(json.dumps(event) + "\n" for event in events))
    record = RunRecord.from_json(files.read_json(run_dir / names.RUN_RECORD))
    return run_dir, Command(
        "c" * 32, 1, 1, record.vm_id, "run", "train", 0.0, attempt=2, run_id=record.run_id, spec=record.spec
    )


def _newest(run_dir: Path) -> int:
    folders = (run_dir / names.CHECKPOINTS).glob("*")
    return max((step for folder in folders if (step := checkpoints.step_of(folder)) is not None), default=0)


def test_it_saves_then_waits_until_that_is_safe_and_then_stops(home: VmHome) -> None:
    run_dir, command = _run(home, earlier_s=BUDGET_S - 200)
    budgets = Budgets()

    def mind() -> None:
        budgets.mind(run_dir, command, VmRules)

    with runner(home, run_dir) as process:
        wait_until(lambda: launch.stage_lives(run_dir), 60.0, what="the stage")

        def saved() -> int:
            mind()
            return _newest(run_dir) if not (run_dir / names.SAVE_REQUEST).exists() else 0

        step = wait_until(saved, 30.0, what="the forced checkpoint")
        mind()
        assert not (run_dir / names.STOP_REQUEST).exists(), "it is not safe yet"
        safe = {"step": step, "level": "mounted", "at": 2.0, "saved_at": 1.0}
        files.write_json(run_dir / names.CHECKPOINT_LEVELS, {"attempt": 2, "levels": {"mounted": safe}})
        mind()
        assert process.wait(100) == 0
    ended = exit_of(run_dir)
    assert ended.failure_class == "time_limit"
    assert ended.state is RunState.STOPPED and "its cap of 1h00m of running is reached" in ended.message
    assert "its checkpoint is safe" in ended.message and "is near: it saves, and then stops" in log_of(run_dir)


def test_a_run_that_saves_all_the_time_is_stopped_once_one_made_since_then_is_safe(home: VmHome) -> None:
    run_dir, command = _run(home, earlier_s=BUDGET_S - 200)
    with runner(home, run_dir) as process:
        wait_until(lambda: launch.stage_lives(run_dir), 60.0, what="the stage")
        budgets = Budgets()
        budgets.mind(run_dir, command, VmRules)
        step = wait_until(lambda: _newest(run_dir), 30.0, what="the forced checkpoint")
        (run_dir / names.CHECKPOINTS / f"step-{step + 1000:08d}").mkdir()  # a newer one, not yet in the store
        before = {"step": step - 1, "level": "mounted", "at": 2.0, "saved_at": 1.0}
        files.write_json(run_dir / names.CHECKPOINT_LEVELS, {"attempt": 2, "levels": {"mounted": before}})
        budgets.mind(run_dir, command, VmRules)
        assert not (run_dir / names.STOP_REQUEST).exists(), "that one is older than the request"
        since = {"step": step, "level": "mounted", "at": time.time(), "saved_at": time.time()}
        files.write_json(run_dir / names.CHECKPOINT_LEVELS, {"attempt": 2, "levels": {"mounted": since}})
        budgets.mind(run_dir, command, VmRules)
        assert process.wait(100) == 0
    assert "its checkpoint is safe" in exit_of(run_dir).message


def test_shortly_before_the_cap_it_is_stopped_since_stopping_takes_its_time(home: VmHome) -> None:
    run_dir, command = _run(home, earlier_s=BUDGET_S - budget.STOP_S)
    with runner(home, run_dir) as process:
        wait_until(lambda: launch.stage_lives(run_dir), 60.0, what="the stage")
        Budgets().mind(run_dir, command, VmRules)
        assert process.wait(100) == 0
    assert "was not yet safe" in exit_of(run_dir).message


def test_at_the_cap_it_is_stopped_although_nothing_is_safe(home: VmHome) -> None:
    run_dir, command = _run(home, earlier_s=BUDGET_S + 1)
    (run_dir / names.ARTIFACTS).mkdir()
    (run_dir / names.ARTIFACTS / "no name for a laptop?").touch()  # it must not take the place of the reason
    with runner(home, run_dir) as process:
        wait_until(lambda: launch.stage_lives(run_dir), 60.0, what="the stage")
        Budgets().mind(run_dir, command, VmRules)
        assert process.wait(100) == 0
    assert "was not yet safe" in exit_of(run_dir).message
    assert _newest(run_dir) > 0 or (run_dir / names.SAVE_REQUEST).exists()


@pytest.mark.parametrize(("earlier_s", "budget_s"), [(100.0, BUDGET_S), (10 * BUDGET_S, 0.0)])
def test_far_from_its_cap_or_without_one_it_is_left_alone(home: VmHome, earlier_s: float, budget_s: float) -> None:
    run_dir, command = _run(home, earlier_s, budget_s)
    Budgets().mind(run_dir, command, VmRules)
    assert not (run_dir / names.SAVE_REQUEST).exists() and not (run_dir / names.STOP_REQUEST).exists()


def test_the_time_to_save_is_twice_what_the_last_checkpoint_took(tmp_path: Path) -> None:
    assert budget.time_to_save_s(tmp_path, VmRules(), BUDGET_S) == budget.SAVE_UNKNOWN_S
    level = {"step": 1, "level": "confirmed", "at": 160.0, "saved_at": 100.0}
    files.write_json(tmp_path / names.CHECKPOINT_LEVELS, {"levels": {"confirmed": level}})
    assert budget.time_to_save_s(tmp_path, VmRules(), BUDGET_S) == 120.0
    assert budget.time_to_save_s(tmp_path, VmRules(save_before_cap_s=30.0), BUDGET_S) == 30.0
    assert budget.time_to_save_s(tmp_path, VmRules(), 100.0) == 50.0


# --- how long it ran ------------------------------------------------------------------------------------------


def test_time_between_two_attempts_and_in_the_queue_is_no_run_time(tmp_path: Path) -> None:
    moments = [(1, 100.0), (1, 160.0), (2, 5000.0), (2, 5030.0), (3, 9000.0), (3, 9500.0)]
    lines = [json.dumps({"attempt": attempt, "at": at}) for attempt, at in moments]
    (tmp_path / names.PROGRESS).write_text("\n".join(lines) + "\n")
    assert run_meter.earlier_s(tmp_path, 3) == 90.0 and run_meter.earlier_s(tmp_path, 1) == 0.0


def test_odd_lines_count_for_nothing(tmp_path: Path) -> None:
    odd = ["", "{", "[1]", '{"at": true}', '{"attempt": "1", "at": 5}', '{"at": 1e400}', '{"at": -3}', "\x00\xff"]
    (tmp_path / names.PROGRESS).write_text("\n".join(odd), encoding="latin-1")
    assert run_meter.earlier_s(tmp_path, 2) == 0.0 and run_meter.earlier_s(tmp_path / "gone", 2) == 0.0


def test_the_usual_interval_is_the_median() -> None:
    events = [{"at": at} for at in (1.0, 2.0, 3.0, 50.0, 51.0)]
    assert run_meter.usual_interval_s(events) == 1.0
    assert run_meter.usual_interval_s(events[:2]) == 0.0 and run_meter.usual_interval_s([{"at": "x"}] * 9) == 0.0
