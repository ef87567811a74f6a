"""The training kit: a loop that can be killed at any moment and ends with the very same bits.

The learning rate is a function of (step, horizon), the position is one integer, and everything else that has a state
is in `parts`: there is no scheduler or loader object that could be restored wrongly.
"""

from __future__ import annotations

import math
import os
import random
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bridgehead import checkpoints, names, torch_state
from bridgehead.errors import RunFailed, VerificationError
from bridgehead.run import Run

PROGRESS_EVERY_S = 0.3


def prepare(seed: int, threads: int) -> torch.device:
    """Seed every generator, fix the thread count, ask for deterministic algorithms; return the device to use."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read at the first CUDA call
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(mode=True)
    torch.backends.cudnn.benchmark = False
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
    return device()


def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def learning_rate(step: int, horizon: int, *, peak: float, warmup_steps: int) -> float:
    """Linear warm-up, then a cosine that would reach 0 at `horizon`; above 0 for every step before it."""
    warmup = min(1.0, (step + 1) / warmup_steps) if warmup_steps > 0 else 1.0
    return peak * warmup * 0.5 * (1.0 + math.cos(math.pi * step / horizon))


def set_learning_rates(optimizer: torch.optim.Optimizer, rates: Mapping[str, float]) -> None:
    """Give each parameter group the rate of its name."""
    for group in optimizer.param_groups:
        group["lr"] = rates[group["name"]]


class Ema:
    """A running average of a module's weights, kept apart from the raw ones."""

    def __init__(self, module: nn.Module, decay: float) -> None:
        self.decay = decay
        self._average = {name: value.detach().clone() for name, value in module.state_dict().items()}

    def update(self, module: nn.Module) -> None:
        for name, value in module.state_dict().items():
            self._average[name].lerp_(value.detach(), 1.0 - self.decay)

    def state_dict(self) -> dict[str, Tensor]:
        return dict(self._average)

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        if set(state) != set(self._average):
            raise VerificationError("the checkpoint's averaged weights are of another model")
        for name, value in state.items():
            self._average[name].copy_(value)


@dataclass(frozen=True)
class Plan:
    """How long it goes on."""

    epochs: int
    steps_per_epoch: int
    batch: int

    @property
    def horizon(self) -> int:
        return self.epochs * self.steps_per_epoch


@dataclass(frozen=True)
class Position:
    """One step: its number, its epoch and its place in the epoch, all from 0."""

    step: int
    epoch: int
    index: int


class Loop:
    """Iterating gives every step that is left; in between it reports, saves when due, and stops when asked.

    Call `report` in each step. `notes` are numbers to carry along in the checkpoints.
    """

    def __init__(self, run: Run, plan: Plan, parts: Mapping[str, Any], must_match: Mapping[str, object]) -> None:
        self.run = run
        self.plan = plan
        self.parts = parts
        self.must_match = must_match
        self.step = 0
        self.resumed_from_step: int | None = None
        self.drift: list[str] = []  # why equality bit for bit is no longer promised
        self.notes: dict[str, float] = {}
        self._fingerprint = torch_state.fingerprint()
        self._loss: Tensor | float = math.nan
        self._saved_step = 0  # nothing to save before the first step
        self._reported_at = 0.0

    @property
    def loss(self) -> float:
        """Of the last step, also when that step was before a resume."""
        return float(self._loss)

    def resume(self) -> None:
        """Restore the newest checkpoint that verifies, if there is one. Call it last: it also sets the generators."""
        checkpoints.sweep(self.run.folder / names.CHECKPOINTS)
        saved = self.run.latest_checkpoint(self.must_match)
        if saved is None:
            return
        self.step = torch_state.load(saved, self.parts) // self.plan.batch
        self.resumed_from_step = self._saved_step = self.step
        self.notes = dict(saved.meta["notes"])
        self._loss = float(saved.meta["loss"])
        new = torch_state.fingerprint_drift(saved.meta["fingerprint"], self._fingerprint)
        self.drift = [*saved.meta["drift"], *new]
        self.run.message(f"resumed from step {self.step} of {self.plan.horizon}")
        if self.drift:
            self.run.message(f"equality bit for bit is no longer promised: {'; '.join(self.drift)}")

    def __iter__(self) -> Iterator[Position]:
        while self.step < self.plan.horizon:
            if self.run.should_stop:
                if self.step != self._saved_step:
                    self._save()
                self.run.exit_stopped()
            epoch, index = divmod(self.step, self.plan.steps_per_epoch)
            yield Position(self.step, epoch, index)
            self.step += 1
            self._after_step()

    def report(self, loss: Tensor) -> None:
        """The loss of this step. It stays on the device until somebody is told."""
        self._loss = loss.detach()

    def outcome(self) -> dict[str, Any]:
        """What every training stage's results say about its run."""
        return {
            "steps": self.step,
            "epochs": self.plan.epochs,
            "loss": self.loss,
            "resumed_from_step": self.resumed_from_step,
            "fingerprint": self._fingerprint,
            "drift": self.drift,
            "bitwise_promised": not self.drift,
        }

    def _after_step(self) -> None:
        epoch, rest = divmod(self.step, self.plan.steps_per_epoch)
        last = self.step == self.plan.horizon
        if rest == 0 and (last or self.run.checkpoint_due(epoch)):
            self._save()
        now = time.monotonic()
        if rest == 0 or now - self._reported_at >= PROGRESS_EVERY_S:
            self._tell(epoch, ended=rest == 0, now=now)

    def _tell(self, epoch: int, *, ended: bool, now: float) -> None:
        self._check_loss()
        if ended:
            print(f"epoch {epoch}/{self.plan.epochs} step {self.step} loss {self.loss:.4f}", flush=True)
        if now - self._reported_at < PROGRESS_EVERY_S and self.step < self.plan.horizon:
            return
        self._reported_at = now
        total = self.plan.horizon
        self.run.progress(
            step=self.step, total_steps=total, epoch=epoch, total_epochs=self.plan.epochs, loss=self.loss, **self.notes
        )

    def _save(self) -> None:
        self._check_loss()
        epoch = self.step // self.plan.steps_per_epoch
        meta = {
            **self.must_match,
            "fingerprint": self._fingerprint,
            "drift": self.drift,
            "notes": self.notes,
            "loss": self.loss,
        }
        with self.run.checkpoint(self.step, epoch=epoch, **meta) as folder:
            torch_state.save(folder, self.parts, position=self.step * self.plan.batch)
        self._saved_step = self.step

    def _check_loss(self) -> None:
        """A run that has blown up ends before it replaces a good checkpoint."""
        if self.step > 0 and not math.isfinite(self.loss):
            raise RunFailed(
                f"the loss is {self.loss} at step {self.step}", hint="lower the learning rate and queue the stage again"
            )
