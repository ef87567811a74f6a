"""The loop: resumed equals uninterrupted, and only when everything is restored."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from bridgehead import checkpoints, image, names, torch_state
from bridgehead.checkpoints import CheckpointRefused
from bridgehead.errors import RunFailed
from bridgehead.run import STOPPED_EXIT_CODE, Run
from stage_support import Workshop
from stages import training
from stages.training import Ema, Loop, Plan, learning_rate

PLAN = Plan(epochs=6, steps_per_epoch=5, batch=4)
CONFIG = {"epochs": 6, "rate": 0.05}


class Killed(BaseException):
    """Stands in for SIGKILL inside this process: nothing of the stage gets to react."""


class Toy:
    """A model whose every step draws from all three generators."""

    def __init__(self, run: Run, pool: str = "p1", config: dict[str, Any] = CONFIG) -> None:
        training.prepare(seed=5, threads=1)
        self.model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.Linear(8, 1))
        self.optimizer = torch.optim.AdamW([{"params": list(self.model.parameters()), "name": "all"}])
        self.ema = Ema(self.model, 0.9)
        parts = {"model": self.model, "optimizer": self.optimizer, "ema": self.ema}
        run.declare(config=config, neutral=["threads"], pool=pool)
        self.loop = Loop(run, PLAN, parts)

    def train(self, *, kill_at: int | None = None, stop_at: int | None = None) -> str:
        for at in self.loop:
            self.loop.run.finish_saving()  # or it would be chance which checkpoint a kill leaves
            if at.step == kill_at:
                raise Killed
            if at.step == stop_at:
                self.loop.run.on_stop_signal()
            x = torch.randn(4, 4) + random.random() + float(np.random.rand())
            rate = learning_rate(at.step, PLAN.horizon, peak=0.05, warmup_steps=3)
            training.set_learning_rates(self.optimizer, {"all": rate})
            loss = (self.model(x) - at.step).square().mean()
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            self.optimizer.step()
            self.ema.update(self.model)
            self.loop.report(loss)
        weights = torch_state.tensors_sha256(self.model.state_dict())
        return weights + torch_state.tensors_sha256(self.ema.state_dict())


_names = iter(range(1000))


def new_run(workshop: Workshop, **spec: Any) -> Run:
    return workshop.run("toy", f"toy-{next(_names):04d}-abcdef", {}, **{"checkpoint_every_epochs": 2, **spec})


@pytest.fixture(scope="module")
def uninterrupted(workshop: Workshop) -> str:
    return Toy(new_run(workshop)).train()


@pytest.mark.parametrize("kill_at", [3, 10, 13, 24, 29])
def test_killed_and_resumed_equals_uninterrupted(workshop: Workshop, uninterrupted: str, kill_at: int) -> None:
    run = new_run(workshop)
    with pytest.raises(Killed):
        Toy(run).train(kill_at=kill_at)
    again = Toy(run)
    again.loop.resume()
    assert again.loop.resumed_from_step == (kill_at // 10 * 10 or None)
    assert again.train() == uninterrupted


def test_two_kills_in_one_epoch_change_nothing(workshop: Workshop, uninterrupted: str) -> None:
    run = new_run(workshop)
    for kill_at in (12, 14):
        toy = Toy(run)
        toy.loop.resume()
        with pytest.raises(Killed):
            toy.train(kill_at=kill_at)
    last = Toy(run)
    last.loop.resume()
    assert last.train() == uninterrupted


def test_a_stop_in_the_middle_of_an_epoch_saves_there_and_changes_nothing(
    workshop: Workshop, uninterrupted: str
) -> None:
    run = new_run(workshop)
    with pytest.raises(SystemExit) as stopped:
        Toy(run).train(stop_at=12)
    assert stopped.value.code == STOPPED_EXIT_CODE
    again = Toy(Run(run.folder, run.record))
    again.loop.resume()
    assert again.loop.resumed_from_step == 13
    assert again.train() == uninterrupted


SPOILERS: dict[str, Callable[[Toy, Toy], object]] = {
    "model": lambda toy, fresh: toy.model.load_state_dict(fresh.model.state_dict()),
    "optimizer": lambda toy, fresh: toy.optimizer.load_state_dict(fresh.optimizer.state_dict()),
    "ema": lambda toy, fresh: toy.ema.load_state_dict(fresh.ema.state_dict()),
    "torch's generator": lambda toy, fresh: torch.manual_seed(5),
    "numpy's generator": lambda toy, fresh: np.random.seed(5),
    "python's generator": lambda toy, fresh: random.seed(5),
    "position": lambda toy, fresh: setattr(toy.loop, "step", 0),
}


@pytest.mark.parametrize("lost", SPOILERS)
def test_losing_any_one_part_breaks_equality(workshop: Workshop, uninterrupted: str, lost: str) -> None:
    """Each of these is why the test above can fail at all."""
    run = new_run(workshop)
    with pytest.raises(Killed):
        Toy(run).train(kill_at=13)
    fresh, again = Toy(new_run(workshop)), Toy(run)
    again.loop.resume()
    SPOILERS[lost](again, fresh)
    assert again.train() != uninterrupted


OTHERS: dict[str, tuple[dict[str, Any], str]] = {
    "pool": ({"pool": "p2"}, "pool: p1 → p2"),
    "config": ({"config": {"epochs": 8, "decay": 0.1}}, r"decay \(not set\) → 0.1, epochs 6 → 8, rate 0.05 → \(not"),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_another_pool_or_config_is_refused_unless_allowed(workshop: Workshop, kind: str) -> None:
    run = new_run(workshop)
    with pytest.raises(Killed):
        Toy(run).train(kill_at=13)
    other, said = OTHERS[kind]
    with pytest.raises(CheckpointRefused, match=said) as caught:
        Toy(run, **other).loop.resume()
    assert caught.value.exit_code == names.CHECKPOINT_EXIT_CODE and f"--allow-{kind}" in caught.value.hint
    allowed = Run(run.folder, dataclasses.replace(run.record, spec=dataclasses.replace(run.record.spec, allow=[kind])))
    again = Toy(allowed, **other)
    again.loop.resume()
    assert again.loop.resumed_from_step == 10
    assert any("(allowed)" in line for line in again.loop.outcome()["drift"])


def test_a_key_that_changes_nothing_may_differ(workshop: Workshop, uninterrupted: str) -> None:
    run = new_run(workshop)
    with pytest.raises(Killed):
        Toy(run).train(kill_at=13)
    again = Toy(run, config={**CONFIG, "threads": 1})
    again.loop.resume()
    assert again.train() == uninterrupted and not run.drift


def test_the_promise_is_withdrawn_in_words_when_the_machine_differs(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = new_run(workshop)
    with pytest.raises(Killed):
        Toy(run).train(kill_at=13)
    here = image.fingerprint()
    with monkeypatch.context() as patch:
        patch.setattr(image, "fingerprint", lambda: {**here, "cpu_capability": "another"})
        second = Toy(run)
        second.loop.resume()
        assert any("cpu_capability" in line for line in run.drift)
        with pytest.raises(Killed):
            second.train(kill_at=23)
    third = Toy(run)
    third.loop.resume()
    assert third.loop.outcome()["bitwise_promised"] is False, "it stays withdrawn, back on the first machine too"
    assert "no longer promised" in (run.folder / names.PROGRESS).read_text()


def test_a_loss_that_is_not_finite_ends_the_run_and_spares_the_checkpoints(workshop: Workshop) -> None:
    run = new_run(workshop)
    toy = Toy(run)
    with pytest.raises(RunFailed, match="loss is nan") as caught:
        for at in toy.loop:
            toy.loop.report(torch.tensor(float("nan") if at.step >= 17 else 1.0))
    run.finish_saving()
    assert caught.value.exit_code == names.NAN_LOSS_EXIT_CODE
    found, _ = checkpoints.newest(run.folder / names.CHECKPOINTS)
    assert found is not None and found.step == 10


def test_a_resume_after_the_last_step_only_writes_results(workshop: Workshop, uninterrupted: str) -> None:
    run = new_run(workshop)
    first = Toy(run)
    first.train()
    again = Toy(run)
    again.loop.resume()
    assert again.train() == uninterrupted
    assert again.loop.loss == first.loop.loss


def test_the_learning_rate_is_a_function_of_step_and_horizon() -> None:
    rates = [learning_rate(step, 100, peak=0.1, warmup_steps=10) for step in range(100)]
    assert rates[0] == pytest.approx(0.01) and max(rates) <= 0.1
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert min(rates) > 0
    assert learning_rate(0, 100, peak=0.1, warmup_steps=0) == 0.1


def test_the_average_is_no_second_name_for_the_weights() -> None:
    model = nn.Linear(2, 2)
    ema = Ema(model, 0.9)
    with torch.no_grad():
        model.weight.add_(1.0)
    before = ema.state_dict()["weight"].clone()
    ema.update(model)
    assert torch.allclose(ema.state_dict()["weight"], before + 0.1)
