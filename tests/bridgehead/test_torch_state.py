"""Everything that bitwise resume needs is saved, and leaving any of it out would show."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bridgehead import torch_state
from bridgehead.errors import VerificationError
from bridgehead.records import RunRecord, StageSpec
from bridgehead.run import Run

torch = pytest.importorskip("torch")
numpy = pytest.importorskip("numpy")


class Training:
    """A toy with every kind of state: weights, optimizer moments, an average, three random generators."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        numpy.random.seed(0)
        random.seed(0)
        self.model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
        self.ema = torch.nn.Linear(1, 1, bias=False)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.parts = {"model": self.model, "ema": self.ema, "optimizer": self.optimizer}
        self.position = 0

    def steps(self, count: int) -> Iterator[None]:
        for _ in range(count):
            noise = float(numpy.random.rand()) + random.random()
            x = torch.full((2, 4), float(self.position)) + noise
            loss = self.model(x).square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            with torch.no_grad():
                self.ema.weight.mul_(0.9).add_(0.1 * loss)
            self.position += 1
            yield

    def digest(self) -> str:
        return torch_state.tensors_sha256({**self.model.state_dict(), "ema": self.ema.weight})


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path, RunRecord("t-0001-abcdef", "t", "p", "c", 1, "vm", time.time(), StageSpec("t", "x")))


def _uninterrupted() -> str:
    training = Training()
    list(training.steps(10))
    return training.digest()


def _resumed(run: Run, *, without: str = "") -> str:
    first = Training()
    list(first.steps(6))
    with run.checkpoint(6) as folder:
        torch_state.save(folder, first.parts, position=first.position)
    second = Training()
    fresh = {name: _copy(part.state_dict()) for name, part in second.parts.items()}
    before = {"torch": torch.get_rng_state(), "numpy": numpy.random.get_state(), "python": random.getstate()}
    found = run.latest_checkpoint()
    assert found is not None
    second.position = torch_state.load(found, second.parts)
    if without in fresh:
        second.parts[without].load_state_dict(fresh[without])
    elif without == "position":
        second.position = 0
    elif without == "torch":
        torch.set_rng_state(before["torch"])
    elif without == "numpy":
        numpy.random.set_state(before["numpy"])
    elif without == "python":
        random.setstate(before["python"])
    list(second.steps(4))
    return second.digest()


def _copy(state: Any) -> Any:
    import copy

    return copy.deepcopy(state)


def test_resumed_equals_uninterrupted_bit_for_bit(run: Run) -> None:
    assert _resumed(run) == _uninterrupted()


@pytest.mark.parametrize("part", ["model", "ema", "optimizer", "position", "torch", "numpy", "python"])
def test_leaving_any_part_out_would_show(run: Run, part: str) -> None:
    assert _resumed(run, without=part) != _uninterrupted()


def test_other_parts_than_saved_are_refused_before_anything_is_restored(run: Run) -> None:
    training = Training()
    with run.checkpoint(0) as folder:
        torch_state.save(folder, training.parts, position=0)
    found = run.latest_checkpoint()
    assert found is not None
    with pytest.raises(VerificationError, match="ema"):
        torch_state.load(found, {"model": training.model})
