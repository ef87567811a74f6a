"""When a checkpoint is due."""

from __future__ import annotations

from typing import Any

import pytest

from bridgehead import cadence
from bridgehead.cadence import Cadence
from bridgehead.records import StageSpec


def _cadence(**spec: Any) -> Cadence:
    return Cadence(StageSpec("t", "x", **{"checkpoint_every_epochs": 0, **spec}))


def _taken(cadence: Cadence, steps: int, steps_per_epoch: int) -> list[int]:
    """The steps at which a loop that always can takes one."""
    taken = []
    for step in range(1, steps + 1):
        if cadence.due(step // steps_per_epoch, step):
            cadence.taken(step // steps_per_epoch, step)
            taken.append(step)
    return taken


@pytest.mark.parametrize(
    ("spec", "steps"),
    [
        ({"checkpoint_every_epochs": 2}, [8, 16, 24]),
        ({"checkpoint_every_steps": 7}, [7, 14, 21]),
        ({"checkpoint_every_epochs": 3, "checkpoint_every_steps": 10}, [10, 12, 20, 24]),
        ({}, []),
        ({"checkpoint_every_epochs": -1, "checkpoint_every_steps": -1, "checkpoint_every_s": -1.0}, []),
    ],
)
def test_it_is_due_once_for_each_interval(spec: dict[str, Any], steps: list[int]) -> None:
    assert _taken(_cadence(**spec), 25, steps_per_epoch=4) == steps


def test_by_the_clock_it_falls_on_any_step(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(cadence.time, "monotonic", lambda: now[0])
    timed = _cadence(checkpoint_every_s=60.0)
    assert not timed.due(0, 3)
    now[0] += 61
    assert timed.due(0, 4)
    timed.taken(0, 4)
    assert not timed.due(0, 5)


def test_put_off_it_stays_due_after_its_epoch_and_is_taken_once() -> None:
    by_epochs = _cadence(checkpoint_every_epochs=2)
    assert by_epochs.due(2, 8)
    by_epochs.put_off()
    assert by_epochs.due(3, 12)
    by_epochs.taken(3, 12)
    assert not by_epochs.due(3, 13)
    assert by_epochs.due(4, 16)


def test_after_a_resume_it_counts_from_that_checkpoint() -> None:
    resumed = _cadence(checkpoint_every_epochs=2, checkpoint_every_steps=10)
    resumed.resumed(2, 9)
    assert not resumed.due(2, 9)
    assert resumed.due(2, 10)


def test_asked_at_the_ends_of_epochs_alone_it_answers_as_ever() -> None:
    by_epochs = _cadence(checkpoint_every_epochs=2)
    assert [by_epochs.due(epoch, None) for epoch in (1, 2, 3, 4)] == [False, True, False, True]
