"""Everything that bitwise resume needs is saved, and leaving any of it out would show."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bridgehead import torch_state
from bridgehead.checkpoints import CheckpointRefused
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


# --- copies, for checkpoints that are written while training goes on -------------------------------------


def _resumed_from_copies(run: Run) -> str:
    """The copies are taken at step 6 and written only when 3 more steps have changed everything."""
    first = Training()
    list(first.steps(6))
    write = torch_state.Snapshot(first.parts).take(position=first.position)
    list(first.steps(3))
    with run.checkpoint(6) as folder:
        write(folder)
    second = Training()
    found = run.latest_checkpoint()
    assert found is not None
    second.position = torch_state.load(found, second.parts)
    list(second.steps(4))
    return second.digest()


def test_copies_hold_the_moment_at_which_they_were_taken(run: Run) -> None:
    assert _resumed_from_copies(run) == _uninterrupted()


def test_the_buffers_are_used_again_and_hold_the_second_moment_then(run: Run) -> None:
    training = Training()
    snapshot = torch_state.Snapshot(training.parts)
    list(training.steps(2))
    snapshot.take(position=2)
    before = {place: buffer.data_ptr() for place, buffer in snapshot._buffers.items()}
    list(training.steps(2))
    write = snapshot.take(position=4)
    assert {place: buffer.data_ptr() for place, buffer in snapshot._buffers.items()} == before
    with run.checkpoint(4) as folder:
        write(folder)
    digest = training.digest()
    other = Training()
    found = run.latest_checkpoint()
    assert found is not None and torch_state.load(found, other.parts) == 4
    assert other.digest() == digest


def test_a_weight_that_changed_its_shape_gets_a_new_buffer(tmp_path: Path) -> None:
    layer = torch.nn.Linear(2, 2)
    snapshot = torch_state.Snapshot({"layer": layer})
    snapshot.take(position=0)
    layer.weight = torch.nn.Parameter(torch.ones(3, 5))
    snapshot.take(position=1)(tmp_path)
    state = torch.load(tmp_path / torch_state.STATE_FILE, weights_only=True)
    assert torch.equal(state["parts"]["layer"]["weight"], torch.ones(3, 5))


def test_weights_with_two_names_stay_one_in_the_file_and_in_memory(tmp_path: Path) -> None:
    big = torch.nn.Linear(200, 200, bias=False)
    twice = torch.nn.ModuleList([big, big])
    snapshot = torch_state.Snapshot({"twice": twice})
    snapshot.take(position=0)(tmp_path)
    assert snapshot.size_bytes == big.weight.nbytes
    assert (tmp_path / torch_state.STATE_FILE).stat().st_size < 1.5 * big.weight.nbytes


def test_a_modules_own_notes_on_its_state_are_kept(tmp_path: Path) -> None:
    norm = torch.nn.BatchNorm1d(3)
    torch_state.Snapshot({"norm": norm}).take(position=0)(tmp_path)
    state = torch.load(tmp_path / torch_state.STATE_FILE, weights_only=True)["parts"]["norm"]
    assert state._metadata == norm.state_dict()._metadata


@pytest.mark.parametrize(("available", "room"), [(None, True), (10**12, True), (1000, False)])
def test_without_memory_for_copies_there_is_no_room(
    monkeypatch: pytest.MonkeyPatch, available: int | None, room: bool
) -> None:
    monkeypatch.setattr(torch_state, "memory_available_bytes", lambda: available)
    assert torch_state.Snapshot({"m": torch.nn.Linear(100, 100)}).has_room() is room


def test_weights_of_another_shape_are_refused_in_one_line(run: Run) -> None:
    with run.checkpoint(1) as folder:
        torch_state.save(folder, {"m": torch.nn.Linear(2, 2)}, position=1)
    found = run.latest_checkpoint()
    assert found is not None
    with pytest.raises(CheckpointRefused, match="m of checkpoint 1 does not fit") as caught:
        torch_state.load(found, {"m": torch.nn.Linear(2, 3)})
    assert "\n" not in caught.value.message


@pytest.mark.parametrize("what", ["no torch file", "something else", "code inside"])
def test_a_state_file_that_another_program_wrote_is_refused(run: Run, what: str) -> None:
    with run.checkpoint(1) as folder:
        if what == "no torch file":
            (folder / torch_state.STATE_FILE).write_bytes(b"weights")
        else:
            torch.save([1] if what == "something else" else {"parts": time.sleep}, folder / torch_state.STATE_FILE)
    found = run.latest_checkpoint()
    assert found is not None
    with pytest.raises(CheckpointRefused, match="can't be read"):
        torch_state.load(found, {})
