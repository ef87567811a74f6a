"""What a run begins with: the newest checkpoint that verifies and is its own, and never nothing in silence."""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path
from typing import Any

import pytest

from bridgehead import image, names
from bridgehead.checkpoints import CheckpointRefused
from bridgehead.errors import UsageError
from bridgehead.records import RunRecord, StageSpec
from bridgehead.run import Run

CONFIG = {"epochs": 3, "lr": 0.1}


def _run(folder: Path, *, attempt: int = 1, payload: str = "p" * 64, run_id: str = "", **spec: Any) -> Run:
    described = StageSpec("train", "python train.py", **{"config": CONFIG, **spec})
    name = run_id or "train-0001-abcdef"
    record = RunRecord(name, "train", "p", "c", attempt, "vm-1", time.time(), described, payload_sha256=payload)
    return Run(folder, record)


def _save(run: Run, *steps: int, **meta: object) -> None:
    for step in steps:
        with run.checkpoint(step, epoch=step // 10, **meta) as folder:
            (folder / "state.bin").write_bytes(b"x" * step)


def _events(run: Run, kind: str) -> list[dict[str, Any]]:
    lines = (run.folder / names.PROGRESS).read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == kind]


def _spoil(run: Run, *steps: int) -> None:
    for step in steps:
        (run.folder / names.CHECKPOINTS / f"step-{step:08d}" / "state.bin").write_bytes(b"y" * step)


def test_each_one_passed_over_is_reported_with_the_steps_it_costs(tmp_path: Path) -> None:
    run = _run(tmp_path)
    _save(run, 10, 25, 45)
    _spoil(run, 25, 45)
    found = run.latest_checkpoint()
    assert found is not None and found.step == run.saved_step == 10
    assert [(event["step"], event["lost_steps"]) for event in _events(run, "passed_over")] == [(45, 20), (25, 15)]
    assert all("damaged" in event["why"] for event in _events(run, "passed_over"))
    assert "that costs 20 steps" in _events(run, "message")[0]["text"]


def test_when_none_verified_it_is_refused_at_every_start_and_not_only_at_the_first(tmp_path: Path) -> None:
    """The bad one has been renamed by then: the second start finds no checkpoint at all."""
    run = _run(tmp_path)
    _save(run, 10)
    _spoil(run, 10)
    for _ in range(3):
        with pytest.raises(CheckpointRefused, match="none of 1 checkpoints verifies"):
            _run(tmp_path).latest_checkpoint()


def test_a_later_attempt_without_a_checkpoint_says_that_it_starts_anew(tmp_path: Path) -> None:
    run = _run(tmp_path, attempt=2)
    assert run.latest_checkpoint() is None
    assert "starts from the beginning" in _events(run, "message")[0]["text"]


def test_other_code_is_refused_until_allowed_and_then_the_promise_is_withdrawn(tmp_path: Path) -> None:
    _save(_run(tmp_path), 10)
    with pytest.raises(CheckpointRefused, match="code: pppppppppp") as caught:
        _run(tmp_path, payload="q" * 64).latest_checkpoint()
    assert caught.value.hint.endswith("--resume train-0001-abcdef --allow-code")
    allowed = _run(tmp_path, payload="q" * 64, allow=["code"])
    assert allowed.latest_checkpoint() is not None
    assert allowed.drift and "no longer promised" in _events(allowed, "message")[-1]["text"]
    allowed.results({"loss": 1.0})
    assert "(allowed)" in json.loads((tmp_path / names.RESULTS).read_text())["drift"][0]


def test_another_config_is_refused_and_its_keys_are_named(tmp_path: Path) -> None:
    _save(_run(tmp_path), 10)
    with pytest.raises(CheckpointRefused, match=r"epochs 3 → 9, lr 0.1 → \(not set\)"):
        _run(tmp_path, config={"epochs": 9}, allow=["code", "pool"]).latest_checkpoint()


def test_what_was_changed_in_the_running_stage_is_not_taken_for_its_config(tmp_path: Path) -> None:
    run = _run(tmp_path)
    run.config["epochs"] = 99
    _save(run, 10)
    assert _run(tmp_path).latest_checkpoint() is not None


def test_what_is_declared_counts_and_neutral_keys_do_not(tmp_path: Path) -> None:
    first = _run(tmp_path)
    first.declare(neutral=["lr"], pool="p1")
    _save(first, 10)
    again = _run(tmp_path, config={**CONFIG, "lr": 5})
    again.declare(neutral=["lr"], pool="p1")
    assert again.latest_checkpoint() is not None
    again.declare(neutral=["lr"], pool="p2")
    with pytest.raises(CheckpointRefused, match="pool: p1 → p2"):
        again.latest_checkpoint()
    with pytest.raises(UsageError, match="plain JSON"):
        again.declare(config={"model": object()})


def test_a_checkpoint_of_another_run_is_taken_only_when_told_to(tmp_path: Path) -> None:
    _save(_run(tmp_path, run_id="train-0007-777777"), 10)
    with pytest.raises(CheckpointRefused, match="of run train-0007-777777"):
        _run(tmp_path).latest_checkpoint()
    assert _run(tmp_path, resume_from="train-0007-777777").latest_checkpoint() is not None


def test_told_to_begin_at_another_run_it_does_not_begin_at_nothing(tmp_path: Path) -> None:
    with pytest.raises(CheckpointRefused, match="no checkpoint of train-0007-777777"):
        _run(tmp_path, resume_from="train-0007-777777").latest_checkpoint()


def test_on_another_machine_the_promise_is_withdrawn_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _save(_run(tmp_path), 10)
    here = image.fingerprint()
    elsewhere = {**here, "cpu": "another one", "platform": "Other-1.0"}
    monkeypatch.setattr(image, "fingerprint", lambda: elsewhere)
    moved = _run(tmp_path)
    moved.latest_checkpoint()
    assert [line.partition(":")[0] for line in moved.drift] == ["cpu"]
    assert _events(moved, "resumed")[0]["drift"] == moved.drift
    _save(moved, 20)
    monkeypatch.setattr(image, "fingerprint", lambda: here)
    back = _run(tmp_path)
    back.latest_checkpoint()
    assert len(back.drift) == 2, "what was computed elsewhere stays in the weights"


def test_another_kernel_is_shown_and_changes_no_promise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _save(_run(tmp_path), 10)
    here = image.fingerprint()
    monkeypatch.setattr(image, "fingerprint", lambda: {**here, "platform": "Other-1.0"})
    moved = _run(tmp_path)
    moved.latest_checkpoint()
    assert not moved.drift and "same where it matters" in _events(moved, "message")[0]["text"]


def test_the_allowance_is_for_what_it_names_alone(tmp_path: Path) -> None:
    _save(_run(tmp_path), 10)
    other = _run(tmp_path, payload="q" * 64, config={"epochs": 4, "lr": 0.1}, allow=["code"])
    with pytest.raises(CheckpointRefused) as caught:
        other.latest_checkpoint()
    assert "config: epochs 3 → 4" in caught.value.message and "code:" not in caught.value.message
    both = dataclasses.replace(other.record.spec, allow=["code", "config"])
    assert Run(tmp_path, dataclasses.replace(other.record, spec=both)).latest_checkpoint() is not None
