"""The exit codes by which a shipped stage says why it failed, and the one line that says it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch

from bridgehead import names, torch_state
from bridgehead.errors import NotFoundError, UsageError
from bridgehead.run import Run
from stage_support import STRIDE, Workshop
from stages import entry, pretrain

CONFIG = {"clips": 64, "epochs": 2, "batch": 16, "width": 8, "stride": STRIDE, "measure_memory": False}


def _code(workshop: Workshop, run: Run, patch: pytest.MonkeyPatch) -> int:
    patch.setattr(entry, "current_run", lambda: run)
    return workshop.here(lambda _: entry.run_stage(pretrain.pretrain), run)


def _last_message(run: Run) -> str:
    events = map(json.loads, (run.folder / names.PROGRESS).read_text().splitlines())
    return [str(event["text"]) for event in events if event["event"] == "message"][-1]


def test_a_loss_that_is_no_number_has_a_code_of_its_own(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    run = workshop.run(names.PRETRAIN, "pretrain-0001-e47000", {**CONFIG, "learning_rate": 1e30})
    assert _code(workshop, run, monkeypatch) == names.NAN_LOSS_EXIT_CODE
    assert "the loss is" in _last_message(run)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "config": ({"epochs": 3}, "epochs 2 → 3"),
    "pool": ({"stride": 2 * STRIDE}, "pool: "),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_checkpoint_that_it_refuses_has_one_too(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    name = f"pretrain-0002-{what[:2].encode().hex()}00"
    assert _code(workshop, workshop.run(names.PRETRAIN, name, CONFIG), monkeypatch) == 0
    changes, said = REFUSED[what]
    other = workshop.run(names.PRETRAIN, name, {**CONFIG, **changes})
    assert _code(workshop, other, monkeypatch) == names.CHECKPOINT_EXIT_CODE
    assert said in _last_message(other)


def test_a_checkpoint_of_another_model_has_it_too(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    run = workshop.run(names.PRETRAIN, "pretrain-0003-e47000", CONFIG, allow=["config", "pool"])
    with run.checkpoint(4) as folder:
        torch_state.save(folder, {"encoder": torch.nn.Linear(2, 2)}, position=4)
    assert _code(workshop, run, monkeypatch) == names.CHECKPOINT_EXIT_CODE
    assert "the run needs" in _last_message(run)


@pytest.mark.parametrize("error", [UsageError("no such key"), NotFoundError("not here", hint="look there")])
def test_any_other_error_of_ours_keeps_its_own(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch, error: UsageError | NotFoundError
) -> None:
    run = workshop.run(names.PRETRAIN, "pretrain-0004-e47000", CONFIG)

    def fails(_: Run) -> int:
        raise error

    monkeypatch.setattr(entry, "current_run", lambda: run)
    body: Callable[[Run], int] = fails
    assert entry.run_stage(body) == error.exit_code
    assert error.message in _last_message(run) and error.hint in _last_message(run)
