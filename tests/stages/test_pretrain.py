"""pretrain as a real process: killed and stopped at bad moments, it ends with the same bits."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from bridgehead import names
from bridgehead.errors import UsageError
from bridgehead.run import STOPPED_EXIT_CODE, Run
from bridgehead.torch_state import tensors_sha256
from stage_support import STRIDE, TINY, Workshop, results
from stages import clips_pool, model, pretrain
from support import wait_until

EXIT_TIMEOUT_S = 100.0


def events(run: Run, kind: str) -> list[dict[str, Any]]:
    path = run.folder / names.PROGRESS
    lines = path.read_text().splitlines() if path.exists() else []
    return [event for event in map(_parse, lines) if event.get("event") == kind]


def _parse(line: str) -> dict[str, Any]:
    with contextlib.suppress(ValueError):
        return dict(json.loads(line))
    return {}  # a line that is being written


@contextlib.contextmanager
def started(workshop: Workshop, run: Run) -> Iterator[subprocess.Popen[str]]:
    process = workshop.start(run)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(timeout=EXIT_TIMEOUT_S)


def finish(workshop: Workshop, run: Run) -> dict[str, Any]:
    with started(workshop, run) as process:
        assert process.wait(timeout=EXIT_TIMEOUT_S) == 0, (run.folder / names.LOG).read_text()[-2000:]
    return results(run)


def weights(run: Run) -> tuple[str, str]:
    record = torch.load(run.folder / names.ARTIFACTS / names.ENCODER_WEIGHTS, weights_only=True)
    return tensors_sha256(record["raw"]), tensors_sha256(record["ema"])


def tiny(workshop: Workshop, name: str, **config: Any) -> Run:
    return workshop.run(names.PRETRAIN, name, {**TINY, **config}, checkpoint_every_epochs=2)


@pytest.fixture(scope="module")
def uninterrupted(workshop: Workshop) -> Run:
    run = tiny(workshop, "pretrain-0001-aaaaaa")
    assert workshop.here(pretrain.pretrain, run) == 0
    return run


@pytest.mark.slow
def test_killed_while_it_saves_it_ends_bit_for_bit_the_same(workshop: Workshop, uninterrupted: Run) -> None:
    """As near to the inside of a save as a poll gets; test_killed.py has the exact points, and many more kills."""
    run = tiny(workshop, "pretrain-0002-bbbbbb")
    with started(workshop, run) as process:
        wait_until(lambda: len(events(run, "saving")) >= 2, EXIT_TIMEOUT_S, what="the second save to begin")
        process.kill()
    assert not (run.folder / names.RESULTS).exists(), "it was to die before it was done"
    outcome = finish(workshop, run)
    assert outcome["resumed_from_step"] > 0 and outcome["bitwise_promised"]
    assert weights(run) == weights(uninterrupted)
    assert outcome["weights_sha256"] == results(uninterrupted)["weights_sha256"]
    assert outcome["loss"] == results(uninterrupted)["loss"]


@pytest.mark.slow
def test_stopped_by_a_signal_it_saves_and_goes_on_from_that_very_step(workshop: Workshop, uninterrupted: Run) -> None:
    run = tiny(workshop, "pretrain-0003-cccccc")
    with started(workshop, run) as process:
        wait_until(lambda: events(run, "progress"), EXIT_TIMEOUT_S, what="the first step")
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=EXIT_TIMEOUT_S) == STOPPED_EXIT_CODE
    stopped_at = events(run, "checkpoint")[-1]["step"]
    outcome = finish(workshop, run)
    assert outcome["resumed_from_step"] == stopped_at
    assert weights(run) == weights(uninterrupted)


def test_another_seed_gives_other_weights(workshop: Workshop, uninterrupted: Run) -> None:
    run = tiny(workshop, "pretrain-0004-dddddd", seed=1)
    assert workshop.here(pretrain.pretrain, run) == 0
    assert weights(run) != weights(uninterrupted)


def test_its_results_say_what_it_learnt_from(workshop: Workshop, uninterrupted: Run) -> None:
    outcome = results(uninterrupted)
    assert outcome["pool"] == clips_pool.describe(workshop.pool)
    assert outcome["clips_used"] == TINY["clips"] == sum(outcome["classes"].values())
    assert sorted(map(int, outcome["subjects"])) == list(clips_pool.TRAIN_SUBJECTS)
    assert outcome["steps"] == 10 * (256 // 16)


def test_raw_and_averaged_weights_are_kept_apart_under_plain_names(uninterrupted: Run) -> None:
    raw, averaged = weights(uninterrupted)
    record = torch.load(uninterrupted.folder / names.ARTIFACTS / names.ENCODER_WEIGHTS, weights_only=True)
    assert raw != averaged and raw == results(uninterrupted)["weights_sha256"]
    assert set(record["raw"]) == set(record["ema"]) == set(model.Encoder(16, [0.0] * 6, [1.0] * 6).state_dict())


def test_a_checkpoint_holds_every_five_epochs_by_default() -> None:
    from bridgehead.records import StageSpec

    assert StageSpec(names.PRETRAIN, "x").checkpoint_every_epochs == 5


def test_the_full_pool_can_be_asked_for(workshop: Workshop) -> None:
    config = pretrain.PretrainConfig(clips=pretrain.FULL, stride=STRIDE)
    chosen = pretrain.choose(workshop.pool, config)
    assert len(chosen) == len(set(chosen.tolist())) == len(workshop.pool.of_subjects(clips_pool.TRAIN_SUBJECTS))


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"clps": 5}, "no key 'clps'"),
        ({"clips": 10**7}, "clips must be"),
        ({"clips": "most"}, 'a number or "full"'),
        ({"epochs": "many"}, "epochs = 'many' is not int"),
        ({"epochs": True}, "epochs = True is not int"),
        ({"batch": 1}, "batch must be at least 2"),
        ({"width": 6}, "multiple of 4"),
    ],
)
def test_a_mistake_in_the_config_is_named(workshop: Workshop, config: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        workshop.here(pretrain.pretrain, tiny(workshop, "pretrain-0005-eeeeee", **config))


def test_a_mistake_ends_the_process_with_one_line_and_its_code(workshop: Workshop) -> None:
    run = tiny(workshop, "pretrain-0006-ffffff", batches=3)
    with started(workshop, run) as process:
        assert process.wait(timeout=EXIT_TIMEOUT_S) == UsageError.exit_code
    log = (run.folder / names.LOG).read_text()
    assert "did you mean batch?" in log and "Traceback" not in log and len(log.splitlines()) == 1


def test_the_loss_falls_on_real_clips(pipeline: Workshop) -> None:
    told = [
        event["metrics"]["loss"]
        for event in map(_parse, (Path(pipeline.inputs[names.PRETRAIN]) / names.PROGRESS).read_text().splitlines())
        if event.get("event") == "progress"
    ]
    assert told[-1] < 0.8 * told[0]
