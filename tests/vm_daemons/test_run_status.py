"""A run's status is what its files say, however they were written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bridgehead import checkpoints, files, names
from bridgehead.names import CheckpointLevel, RunState
from bridgehead.records import CheckpointInfo, ProcessRecord, Status
from vm_daemons.run_status import METRICS_MAX, TAIL_BYTES, compose
from vm_support import end_run, make_run, paired_home

RUN = "pretrain-0001-abcdef"
NOW = 1000.0


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return make_run(paired_home(tmp_path), RUN)


def _events(run_dir: Path, *events: dict[str, Any]) -> None:
    with (run_dir / names.PROGRESS).open("a") as handle:
        for event in events:
            handle.write(json.dumps(event) + "\n")


def _step(step: int, at: float, **more: Any) -> dict[str, Any]:
    return {"event": "progress", "attempt": 1, "step": step, "total_steps": 100, "at": at, **more}


def test_a_live_process_without_a_word_is_running(run_dir: Path) -> None:
    assert compose(run_dir, {}, NOW).state is RunState.RUNNING


def test_without_a_process_it_is_starting(run_dir: Path) -> None:
    (run_dir / names.PROCESS).unlink()
    assert compose(run_dir, {}, NOW).state is RunState.STARTING


def test_a_process_that_died_unseen_is_resuming(run_dir: Path) -> None:
    _events(run_dir, _step(1, 1.0))
    record = ProcessRecord.from_json(files.read_json(run_dir / names.PROCESS)).to_json()
    files.write_json(run_dir / names.PROCESS, {**record, "runner_start": 1, "stage_start": 1})
    assert compose(run_dir, {}, NOW).state is RunState.RESUMING


def test_each_metric_stays_as_it_was_last_told_also_when_others_come_in_words_of_their_own(run_dir: Path) -> None:
    _events(run_dir, _step(1, 1.0, metrics={"loss": 1.0}), _step(1, 1.1, metrics={"accuracy": 0.5}))
    _events(run_dir, _step(2, 2.0, metrics={"loss": 0.25}))
    status = compose(run_dir, {}, NOW)
    assert status.metrics == {"accuracy": 0.5, "loss": 0.25}
    files.write_json(run_dir / names.STATUS, status.to_json())
    _events(run_dir, *(_step(step, float(step), metrics={"loss": 0.1, "why": "x" * 400}) for step in range(3, 300)))
    assert compose(run_dir, {}, NOW).metrics == {"accuracy": 0.5, "loss": 0.1}
    _events(run_dir, *(_step(step, float(step), metrics={f"of-{step}": 0.1}) for step in range(300, 420)))
    assert len(compose(run_dir, {}, NOW).metrics) == METRICS_MAX


def test_a_later_attempt_resumes_until_its_first_progress(tmp_path: Path) -> None:
    run_dir = make_run(paired_home(tmp_path), RUN, attempt=2)
    _events(run_dir, _step(70, 1.0), {"event": "resumed", "attempt": 2, "step": 60})
    status = compose(run_dir, {}, NOW)
    assert (status.state, status.step, status.resumed_from_step) == (RunState.RESUMING, 60, 60)
    _events(run_dir, _step(61, 2.0, attempt=2))
    status = compose(run_dir, {}, NOW)
    assert (status.state, status.step, status.resumed_from_step) == (RunState.RUNNING, 61, 60)


def test_saving_lasts_until_the_checkpoint_is_there(run_dir: Path) -> None:
    _events(run_dir, _step(5, 1.0), {"event": "saving", "attempt": 1, "step": 5})
    assert compose(run_dir, {}, NOW).state is RunState.SAVING
    _events(run_dir, {"event": "checkpoint", "attempt": 1, "step": 5, "size_bytes": 9, "at": 2.0, "epoch": 1})
    status = compose(run_dir, {}, NOW)
    assert status.state is RunState.RUNNING
    assert status.checkpoint == CheckpointInfo(5, CheckpointLevel.LOCAL, 2.0, 9, 1)


def _levels(**steps: int) -> dict[str, Any]:
    return {"levels": {name: {"step": step, "level": name, "at": 3.0, "saved_at": 2.5} for name, step in steps.items()}}


def test_the_mounted_copy_counts_once_it_has_caught_up(run_dir: Path) -> None:
    _events(run_dir, {"event": "checkpoint", "attempt": 1, "step": 5, "at": 2.0})
    local = compose(run_dir, _levels(confirmed=4), NOW).checkpoint
    assert local is not None and local.level is CheckpointLevel.LOCAL
    mounted = compose(run_dir, _levels(mounted=5, confirmed=4), NOW).checkpoint
    assert mounted == CheckpointInfo(5, CheckpointLevel.MOUNTED, 3.0)


def test_each_level_is_told_and_work_is_safe_by_what_was_confirmed(run_dir: Path) -> None:
    _events(run_dir, {"event": "checkpoint", "attempt": 1, "step": 6, "at": NOW - 3})
    status = compose(run_dir, _levels(mounted=5, confirmed=4), NOW)
    assert {level: item["step"] for level, item in status.levels.items()} == {"local": 6, "mounted": 5, "confirmed": 4}
    assert status.saved_at == 2.5
    assert "checkpoint 6 local 3s, 5 mounted 16m37s, 4 confirmed 16m37s" in status.line()


@pytest.mark.parametrize("told", [_levels(mounted=5), {}, {"levels": [1]}, {"levels": {"confirmed": {"step": "many"}}}])
def test_without_a_confirmed_one_all_of_it_is_at_risk(run_dir: Path, told: dict[str, Any]) -> None:
    assert compose(run_dir, told, NOW).saved_at == 0.0


def test_a_level_that_says_more_than_its_place_is_not_believed(run_dir: Path) -> None:
    told = {"levels": {"mounted": {"step": 5, "level": "confirmed", "at": 3.0}}}
    assert compose(run_dir, told, NOW).checkpoint is None


def test_the_eta_is_this_attempts_rate(run_dir: Path) -> None:
    _events(run_dir, _step(90, 0.0), {"event": "resumed", "attempt": 1, "step": 10}, _step(10, 100.0), _step(30, 140.0))
    assert compose(run_dir, {}, NOW).eta_s == 140.0  # 70 steps at 2 s


def test_no_eta_from_one_point(run_dir: Path) -> None:
    _events(run_dir, _step(10, 100.0))
    assert compose(run_dir, {}, NOW).eta_s is None


@pytest.mark.parametrize("total", [10**15, 1e30, 1e308, 10**400])
def test_no_eta_of_centuries(run_dir: Path, total: float) -> None:
    _events(run_dir, *({**_step(step, at), "total_steps": total} for step, at in ((10, 100.0), (30, 140.0))))
    assert compose(run_dir, {}, NOW).eta_s is None


def test_an_exit_record_decides(run_dir: Path) -> None:
    _events(run_dir, _step(10, 1.0), _step(20, 2.0))
    end_run(run_dir, RunState.FAILED, message="exit code 3")
    status = compose(run_dir, {}, NOW)
    assert (status.state, status.message, status.eta_s) == (RunState.FAILED, "exit code 3", None)


def test_an_exit_record_of_an_earlier_attempt_does_not(tmp_path: Path) -> None:
    run_dir = make_run(paired_home(tmp_path), RUN, attempt=2)
    end_run(run_dir, RunState.FAILED, attempt=1)
    assert compose(run_dir, {}, NOW).state is RunState.RUNNING


def test_a_later_attempt_that_found_a_checkpoint_resumes(tmp_path: Path) -> None:
    run_dir = make_run(paired_home(tmp_path), RUN, attempt=2)
    (run_dir / names.CHECKPOINTS / checkpoints.folder_name(40)).mkdir(parents=True)
    assert compose(run_dir, {}, NOW).state is RunState.RESUMING


def test_what_left_the_tail_is_kept_from_the_last_status(run_dir: Path) -> None:
    _events(
        run_dir,
        {"event": "resumed", "attempt": 1, "step": 7},
        {"event": "checkpoint", "attempt": 1, "step": 8, "at": 2.0},
    )
    files.write_json(run_dir / names.STATUS, compose(run_dir, {}, NOW).to_json())
    _events(run_dir, *(_step(10 + index, float(index), pad="x" * 1000) for index in range(TAIL_BYTES // 1000 + 5)))
    status = compose(run_dir, {}, NOW)
    assert status.resumed_from_step == 7
    assert status.checkpoint is not None and status.checkpoint.step == 8


@pytest.mark.parametrize(
    "line", [b"not json", b"[1]", b"\xff\xfe\x00", b'{"event":"progress","step":"many","metrics":[1]}', b"null", b""]
)
def test_a_line_written_by_hand_breaks_nothing(run_dir: Path, line: bytes) -> None:
    _events(run_dir, _step(3, 1.0, metrics={"loss": 0.5, "bad": float("nan")}))
    with (run_dir / names.PROGRESS).open("ab") as handle:
        handle.write(line + b"\n" + b'{"event": "progress", "step": 99')  # the last one is still being written
    assert isinstance(compose(run_dir, {}, NOW), Status)


def test_metrics_are_finite_and_wild_ones_are_named(run_dir: Path) -> None:
    _events(run_dir, _step(3, 1.0, metrics={"loss": 0.5}, not_finite=["grad"]))
    status = compose(run_dir, {}, NOW)
    assert status.metrics == {"loss": 0.5} and status.message == "grad not finite"


def test_nothing_changes_but_the_time(run_dir: Path) -> None:
    _events(run_dir, _step(10, 100.0), _step(30, 140.0))
    assert {**compose(run_dir, {}, 1.0).to_json(), "updated": 0} == {
        **compose(run_dir, {}, 2.0).to_json(),
        "updated": 0,
    }
