"""The stage API, from inside a stage."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import bridgehead.run
from bridgehead import files, names
from bridgehead.errors import NotFoundError, UsageError, VerificationError
from bridgehead.records import RunRecord, StageSpec
from bridgehead.run import STOPPED_EXIT_CODE, Run
from support import wait_until

ROOT = Path(__file__).parents[2]


def _record(**config: object) -> RunRecord:
    spec = StageSpec("train", "python train.py", config=dict(config), checkpoint_every_epochs=2)
    return RunRecord("train-0001-abcdef", "train", "p", "c", 1, "vm-1", time.time(), spec)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path, _record(epochs=3))


def _events(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / names.PROGRESS).read_text().splitlines()]


def test_progress_is_one_json_line_and_keeps_wild_numbers_apart(run: Run) -> None:
    run.progress(step=1, total_steps=10, epoch=1, total_epochs=2, loss=0.5, grad=float("nan"))
    (event,) = _events(run.folder)
    assert event["metrics"] == {"loss": 0.5} and event["not_finite"] == ["grad"]


def test_a_checkpoint_is_announced_and_found_again(run: Run) -> None:
    with run.checkpoint(7, epoch=2, pool="abc") as folder:
        (folder / "state.bin").write_bytes(b"x" * 10)
    found = run.latest_checkpoint(must_match={"pool": "abc"})
    assert found is not None and found.step == 7
    assert [event["event"] for event in _events(run.folder)] == ["saving", "checkpoint", "resumed"]


def test_a_file_in_a_checkpoint_whose_name_can_not_travel_is_named_with_the_rule(run: Run) -> None:
    with pytest.raises(UsageError) as caught, run.checkpoint(7) as folder:
        (folder / "epoch=3, loss (best).ckpt").write_bytes(b"x")
    assert caught.value.message.startswith("checkpoint 7 can't be kept: not a safe name in a path: 'epoch=3, loss (bes")
    assert "holds ' ' '(' ')' ','" in caught.value.message and "pack the files into one archive" in caught.value.hint


def test_another_pool_is_refused_and_the_difference_said(run: Run) -> None:
    with run.checkpoint(7, pool="abc") as folder:
        (folder / "state.bin").write_bytes(b"x")
    with pytest.raises(VerificationError, match="'abc'.*'other'"):
        run.latest_checkpoint(must_match={"pool": "other"})


def test_with_none_that_verifies_it_never_starts_anew_in_silence(run: Run) -> None:
    with run.checkpoint(7) as folder:
        (folder / "state.bin").write_bytes(b"x")
    (run.folder / names.CHECKPOINTS / "step-00000007" / "state.bin").write_bytes(b"y")
    with pytest.raises(VerificationError, match="none of 1"):
        run.latest_checkpoint()


def test_no_checkpoint_is_none(run: Run) -> None:
    assert run.latest_checkpoint() is None


def test_due_by_epochs(run: Run) -> None:
    assert [run.checkpoint_due(epoch) for epoch in (1, 2, 3, 4)] == [False, True, False, True]


def test_a_save_that_is_asked_for_is_due_until_a_checkpoint_is_there(run: Run) -> None:
    assert not run.checkpoint_due(1)
    (run.folder / names.SAVE_REQUEST).touch()
    assert run.checkpoint_due(1)
    with run.checkpoint(7) as folder:
        (folder / "state").write_text("x")
    assert not (run.folder / names.SAVE_REQUEST).exists() and not run.checkpoint_due(1)


def test_a_save_that_is_asked_for_while_one_is_being_written_stays_asked_for(run: Run) -> None:
    with run.checkpoint(7) as folder:
        (folder / "state").write_text("x")
        (run.folder / names.SAVE_REQUEST).touch()
    assert run.checkpoint_due(1)


def test_results_must_be_plain_json(run: Run) -> None:
    run.results({"acc": 0.5})
    assert files.read_json(run.folder / names.RESULTS)["acc"] == 0.5
    for bad in ({"x": float("nan")}, {"x": object()}):
        with pytest.raises(UsageError):
            run.results(bad)
    assert files.read_json(run.folder / names.RESULTS)["acc"] == 0.5


def test_an_input_that_was_not_given_says_what_to_add(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(names.ENV_INPUTS, json.dumps({"a": "/runs/a"}))
    assert run.input("a") == Path("/runs/a")
    with pytest.raises(NotFoundError) as caught:
        run.input("b")
    assert "after" in caught.value.hint


def test_the_stop_file_asks_for_a_stop(run: Run) -> None:
    assert not run.should_stop
    (run.folder / names.STOP_REQUEST).touch()
    assert run.should_stop


def test_sigterm_means_save_and_leave(tmp_path: Path) -> None:
    files.write_json(tmp_path / names.RUN_RECORD, _record().to_json())
    script = (
        "import bridgehead, time\n"
        "run = bridgehead.current_run()\n"
        "run.progress(step=1)\n"
        "while not run.should_stop: time.sleep(0.01)\n"
        "with run.checkpoint(2) as folder: (folder / 'f').write_text('x')\n"
        "run.exit_stopped()\n"
    )
    process = _stage(tmp_path, "-c", script)
    wait_until((tmp_path / names.PROGRESS).exists, 20, what="the first progress line")
    process.send_signal(signal.SIGTERM)
    assert process.wait(100) == STOPPED_EXIT_CODE
    assert (tmp_path / names.CHECKPOINTS / "step-00000002" / names.CHECKPOINT_MANIFEST).exists()


def test_a_stage_in_another_language_commits_a_checkpoint(tmp_path: Path) -> None:
    files.write_json(tmp_path / names.RUN_RECORD, _record().to_json())
    (tmp_path / "weights").write_bytes(b"w")
    assert _stage(tmp_path, "-m", "bridgehead", "checkpoint", "--step", "3", str(tmp_path / "weights")).wait(100) == 0
    latest = _stage(tmp_path, "-m", "bridgehead", "latest", stdout=subprocess.PIPE)
    out, _ = latest.communicate(timeout=100)
    assert out.decode().strip().endswith("step-00000003")


def test_a_stage_in_another_language_does_not_begin_anew_in_silence_either(tmp_path: Path) -> None:
    files.write_json(tmp_path / names.RUN_RECORD, _record(epochs=3).to_json())
    with Run(tmp_path, _record(epochs=3)).checkpoint(3) as folder:
        (folder / "w").write_bytes(b"w")
    files.write_json(tmp_path / names.RUN_RECORD, _record(epochs=4).to_json())
    refused = _stage(tmp_path, "-m", "bridgehead", "latest", stderr=subprocess.PIPE)
    assert b"epochs 3 " in refused.communicate(timeout=100)[1] and refused.returncode == names.CHECKPOINT_EXIT_CODE
    (tmp_path / names.CHECKPOINTS / "step-00000003" / "w").write_bytes(b"v")
    for _ in range(2):  # the second time the bad one has been put aside already
        none_left = _stage(tmp_path, "-m", "bridgehead", "latest", stderr=subprocess.PIPE)
        assert b"none of 1" in none_left.communicate(timeout=100)[1]
        assert none_left.returncode == names.CHECKPOINT_EXIT_CODE


def test_two_files_of_one_name_are_refused_and_not_merged(tmp_path: Path) -> None:
    files.write_json(tmp_path / names.RUN_RECORD, _record().to_json())
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "w").write_text(folder)
    process = _stage(tmp_path, "-m", "bridgehead", "checkpoint", "--step", "3", "a/w", "b/w", stderr=subprocess.PIPE)
    _, said = process.communicate(timeout=100)
    assert process.returncode == UsageError.exit_code and b"two files are called" in said
    assert not (tmp_path / names.CHECKPOINTS / "step-00000003").exists()


def test_a_full_disk_does_not_end_training_and_a_torn_line_joins_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tmp_path, _record())
    run.progress(step=1)
    write, room = os.write, [10, 0]

    def full(fd: int, data: bytes) -> int:
        if not room:
            return write(fd, data)
        left = room.pop(0)
        if not left:
            raise OSError(errno.ENOSPC, "full")
        return write(fd, data[:left])

    monkeypatch.setattr(os, "write", full)
    for step in (2, 3, 4):
        run.progress(step=step)
    lines = (tmp_path / names.PROGRESS).read_text().split("\n")
    assert len(lines[1]) == 10
    assert [json.loads(line)["step"] for line in (lines[0], lines[2])] == [1, 4]


def test_looking_for_the_latest_checkpoint_says_nothing_of_a_resume(tmp_path: Path) -> None:
    files.write_json(tmp_path / names.RUN_RECORD, _record().to_json())
    latest = _stage(tmp_path, "-m", "bridgehead", "latest", stdout=subprocess.PIPE)
    out, _ = latest.communicate(timeout=100)
    assert (out, latest.returncode) == (b"\n", 0)
    assert not (tmp_path / names.PROGRESS).exists()


def test_a_run_folder_without_a_record_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(names.ENV_RUN_DIR, str(tmp_path))
    with pytest.raises(NotFoundError):
        bridgehead.run._open_run()


def _stage(folder: Path, *args: str, stdout: int | None = None, stderr: int | None = None) -> subprocess.Popen[bytes]:
    env = {**os.environ, names.ENV_RUN_DIR: str(folder), "PYTHONPATH": str(ROOT)}
    return subprocess.Popen([sys.executable, *args], env=env, cwd=folder, stdout=stdout, stderr=stderr)
