"""When and how the loop saves: on any step, behind the training, and not at the cost of what was trained."""

from __future__ import annotations

import contextlib
import json
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from bridgehead import async_save, checkpoints, names, torch_state
from bridgehead.errors import RunFailed
from bridgehead.run import STOPPED_EXIT_CODE, Run
from stage_support import Workshop
from stages import training
from stages.training import Loop, Plan

PLAN = Plan(epochs=6, steps_per_epoch=5, batch=4)
DEADLINE_S = 20.0

_names = iter(range(1000))


def _new(workshop: Workshop, **spec: Any) -> Run:
    return workshop.run("toy", f"toy-{next(_names):04d}-5afe00", {}, **{"checkpoint_every_epochs": 0, **spec})


def _loop(run: Run) -> Loop:
    training.prepare(seed=5, threads=1)
    return Loop(run, PLAN, {"model": nn.Linear(40, 40)})


def _train(loop: Loop, *, stop_at: int | None = None, wait: bool = True) -> None:
    for at in loop:
        if wait:
            loop.run.finish_saving()
        if at.step == stop_at:
            loop.run.on_stop_signal()
        loop.report(torch.tensor(1.0))


def _told(run: Run, kind: str) -> list[dict[str, Any]]:
    lines = (run.folder / names.PROGRESS).read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == kind]


def _saved(run: Run) -> list[int]:
    return [event["step"] for event in _told(run, "checkpoint")]


def _says(run: Run) -> str:
    return " | ".join(event["text"] for event in _told(run, "message"))


@pytest.mark.parametrize(
    ("spec", "saved"),
    [
        ({"checkpoint_every_steps": 7}, [7, 14, 21, 28, 30]),
        ({"checkpoint_every_epochs": 2, "checkpoint_every_steps": 12}, [10, 12, 20, 24, 30]),
        ({}, [30]),
    ],
)
def test_it_saves_when_due_and_after_the_last_step(workshop: Workshop, spec: dict[str, Any], saved: list[int]) -> None:
    run = _new(workshop, **spec)
    _train(_loop(run))
    assert _saved(run) == saved


def test_by_the_clock_it_saves_between_the_ends_of_epochs(workshop: Workshop) -> None:
    run = _new(workshop, checkpoint_every_s=1e-9)
    _train(_loop(run))
    assert _saved(run) == list(range(1, 31)) and checkpoints.newest(run.folder / names.CHECKPOINTS)[0] is not None


def test_with_every_interval_at_0_it_says_what_that_means(workshop: Workshop) -> None:
    run = _new(workshop)
    _train(_loop(run))
    assert _says(run).count("every interval is 0") == 1


class Gate:
    """Holds back every write of a state file until it is opened."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.open = threading.Event()
        self._write = torch_state._write
        patch.setattr(torch_state, "_write", self.write)

    def write(self, state: Any, folder: Path) -> None:
        assert self.open.wait(DEADLINE_S)
        self._write(state, folder)


def test_while_one_is_written_training_goes_on_and_the_next_one_waits(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, gate = _new(workshop, checkpoint_every_steps=1), Gate(monkeypatch)
    loop = _loop(run)
    for at in loop:
        loop.report(torch.tensor(1.0))
        if at.step == 20:
            gate.open.set()
            run.finish_saving()
    saved = _saved(run)
    assert saved[:2] == [1, 21] and saved[-1] == 30, "one copy was taken, and the next when it was written"
    assert _says(run).count("more often than one is written") == 1


def test_how_much_memory_the_copies_take_is_said_once(workshop: Workshop) -> None:
    run = _new(workshop, checkpoint_every_steps=3)
    _train(_loop(run))
    assert _says(run).count("in host memory") == 1


def test_without_memory_for_copies_training_waits_and_says_so(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_state, "memory_available_bytes", lambda: 1)
    run = _new(workshop, checkpoint_every_steps=7)
    _train(_loop(run), wait=False)
    assert _saved(run) == [7, 14, 21, 28, 30] and "training waits" in _says(run)


class Disk:
    """A disk that is full for so many saves."""

    def __init__(self, patch: pytest.MonkeyPatch, full_for: int) -> None:
        self.full_for = full_for
        self._write = torch_state._write
        patch.setattr(torch_state, "_write", self.write)

    def write(self, state: Any, folder: Path) -> None:
        self.full_for -= 1
        if self.full_for >= 0:
            raise OSError(28, "No space left on device")
        self._write(state, folder)


@pytest.mark.parametrize("room", [10**12, 1])
def test_two_saves_that_fail_are_not_a_failed_run(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    monkeypatch.setattr(torch_state, "memory_available_bytes", lambda: room)
    Disk(monkeypatch, full_for=2)
    run = _new(workshop, checkpoint_every_steps=7)
    _train(_loop(run))
    assert _saved(run) == [21, 28, 30] and _says(run).count("No space left") == 2


@pytest.mark.parametrize("room", [10**12, 1])
def test_three_in_a_row_are(workshop: Workshop, monkeypatch: pytest.MonkeyPatch, room: int) -> None:
    monkeypatch.setattr(torch_state, "memory_available_bytes", lambda: room)
    monkeypatch.setattr(async_save, "FAILING_MAX_S", 0.0)
    Disk(monkeypatch, full_for=3)
    run = _new(workshop, checkpoint_every_steps=7)
    with pytest.raises(RunFailed, match="3 checkpoints in a row"):
        _train(_loop(run))


def test_a_last_checkpoint_that_can_not_be_written_does_not_lose_what_was_trained(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    Disk(monkeypatch, full_for=99)
    run = _new(workshop)
    loop = _loop(run)
    _train(loop)
    assert loop.outcome()["steps"] == PLAN.horizon and "checkpoint 30 could not be written" in _says(run)


@pytest.mark.parametrize(("full_for", "code"), [(0, STOPPED_EXIT_CODE), (2, STOPPED_EXIT_CODE), (3, RunFailed)])
def test_a_stop_tries_three_times_to_save(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch, full_for: int, code: Any
) -> None:
    Disk(monkeypatch, full_for)
    run = _new(workshop)
    expected: Any = RunFailed if code is RunFailed else SystemExit
    with pytest.raises(expected) as ended:
        _train(_loop(run), stop_at=12)
    if code is not RunFailed:
        assert ended.value.code == code and run.saved_step == 13


def test_a_stop_while_one_is_written_saves_the_later_step_too(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, gate = _new(workshop, checkpoint_every_steps=7), Gate(monkeypatch)
    loop = _loop(run)
    threading.Timer(0.2, gate.open.set).start()
    with contextlib.suppress(SystemExit):
        _train(loop, stop_at=9, wait=False)
    assert _saved(run) == [7, 10]


def test_a_stop_before_the_first_step_saves_nothing(workshop: Workshop) -> None:
    run = _new(workshop)
    run.on_stop_signal()
    with pytest.raises(SystemExit):
        _train(_loop(run))
    assert run.saved_step is None
