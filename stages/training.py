"""The training kit: a loop that can be killed at any moment and ends with the very same bits.

The learning rate is a function of (step, horizon), the position is one integer, and everything else that has a state
is in `parts`: there is no scheduler or loader object that could be restored wrongly. A checkpoint can fall on any step.
"""

from __future__ import annotations

import math
import os
import random
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bridgehead import checkpoints, image, names, torch_state
from bridgehead.errors import RunFailed, VerificationError
from bridgehead.run import Run

PROGRESS_EVERY_S = 0.3
STOP_TRIES = 3  # a stop's save is the last one: it is tried again at once


class LossNotFinite(RunFailed):
    """The run has blown up: trying again would end the same way."""

    exit_code = names.NAN_LOSS_EXIT_CODE


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

    Call `report` in each step, and `run.declare` before `resume`. `notes` are numbers that the checkpoints carry along.
    """

    def __init__(self, run: Run, plan: Plan, parts: Mapping[str, Any]) -> None:
        self.run = run
        self.plan = plan
        self.parts = parts
        self.step = 0
        self.resumed_from_step: int | None = None
        self.notes: dict[str, float] = {}
        self._snapshot = torch_state.Snapshot(parts)
        self._loss: Tensor | float = math.nan
        self._reported_at = 0.0
        self._room: bool | None = None  # for copies; None: not asked yet

    @property
    def loss(self) -> float:
        """Of the last step, also when that step was before a resume."""
        return float(self._loss)

    def resume(self) -> None:
        """Restore the newest checkpoint that verifies, if there is one. Call it last: it also sets the generators."""
        checkpoints.sweep(self.run.folder / names.CHECKPOINTS)
        saved = self.run.latest_checkpoint()
        if saved is None:
            return
        self.step = torch_state.load(saved, self.parts) // self.plan.batch
        self.resumed_from_step = self.step
        self.notes = dict(saved.meta.get("notes") or {})
        self._loss = float(saved.meta.get("loss", math.nan))
        self.run.message(f"resumed from step {self.step} of {self.plan.horizon}")

    def __iter__(self) -> Iterator[Position]:
        if self.run.saves_only_at_the_end:
            self.run.message(
                "no checkpoint is due on the way (every interval is 0): what ends this run costs all of it"
            )
        while self.step < self.plan.horizon:
            if self.run.should_stop:
                self._stop()
            yield Position(self._schedule_position(), *self._sample_position())
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
            "fingerprint": image.fingerprint(),
            "drift": self.run.drift,
            "bitwise_promised": not self.run.drift,
        }

    # --- where it is; a test breaks each of the two in turn -----------------------------------------

    def _schedule_position(self) -> int:
        return self.step

    def _sample_position(self) -> tuple[int, int]:
        """Epoch, and place in the epoch."""
        return divmod(self.step, self.plan.steps_per_epoch)

    # --- between steps --------------------------------------------------------------------------------

    def _after_step(self) -> None:
        epoch, rest = divmod(self.step, self.plan.steps_per_epoch)
        if self.step == self.plan.horizon:
            self._save_last()
        elif self.run.checkpoint_due(epoch, self.step):
            self._save_behind()
        now = time.monotonic()
        if rest == 0 or now - self._reported_at >= PROGRESS_EVERY_S:
            self._tell(epoch, ended=rest == 0, now=now)

    def _tell(self, epoch: int, *, ended: bool, now: float) -> None:
        self._check_loss()
        if ended:
            self.run.say(f"epoch {epoch}/{self.plan.epochs} step {self.step} loss {self.loss:.4f}")
        if now - self._reported_at < PROGRESS_EVERY_S and self.step < self.plan.horizon:
            return
        self._reported_at = now
        total = self.plan.horizon
        self.run.progress(
            step=self.step, total_steps=total, epoch=epoch, total_epochs=self.plan.epochs, loss=self.loss, **self.notes
        )

    def _check_loss(self) -> None:
        """A run that has blown up ends before it replaces a good checkpoint."""
        if self.step > 0 and not math.isfinite(self.loss):
            raise LossNotFinite(
                f"the loss is {self.loss} at step {self.step}", hint="lower the learning rate and queue the stage again"
            )

    # --- saving -----------------------------------------------------------------------------------------

    def _save_behind(self) -> None:
        """Copy the state and go on; it is written while the next steps run. Without room for copies: wait for it."""
        self._check_loss()
        take = self._snapshot.take if self._copies() else self._in_place
        self.run.checkpoint_async(self.step, lambda: take(position=self._position), epoch=self._epoch, **self._meta())
        if not self._copies():
            self.run.finish_saving()

    def _in_place(self, *, position: int) -> Callable[[Path], None]:
        return lambda folder: torch_state.save(folder, self.parts, position=position)

    def _copies(self) -> bool:
        """Whether there is memory for copies; said once, with how much they take."""
        if self._room is not None:
            return self._room
        self._room = self._snapshot.has_room()
        size = f"{self._snapshot.size_bytes / 2**20:.1f} MiB"
        self.run.message(
            f"checkpoints are written while training goes on, from copies of {size} in host memory"
            if self._room
            else f"host memory has no room for copies of {size}: training waits while a checkpoint is written"
        )
        return self._room

    def _save_last(self) -> None:
        """After the last step. What was trained is there: a disk that can't take the checkpoint must not lose it."""
        self._check_loss()
        self._settle()
        if self.run.saved_step != self.step and (why := self._try_to_save()):
            self.run.message(why)

    def _stop(self) -> None:
        """Save, now and while the process waits, and leave."""
        self._check_loss()
        self._settle()
        why = ""
        for _ in range(STOP_TRIES):
            if self.step == 0 or self.run.saved_step == self.step:
                self.run.exit_stopped()
            why = self._try_to_save()
        if why:
            raise RunFailed(f"stopped, and {why}", hint="the next start resumes from the checkpoint before")
        self.run.exit_stopped()

    def _settle(self) -> None:
        """None is in flight any more. That one failed is no reason not to try the one that counts."""
        try:
            self.run.finish_saving()
        except RunFailed as error:
            self.run.message(error.message)

    def _try_to_save(self) -> str:
        """Empty when it is saved; else why it is not."""
        try:
            with self.run.checkpoint(self.step, epoch=self._epoch, **self._meta()) as folder:
                torch_state.save(folder, self.parts, position=self._position)
        except (OSError, RuntimeError) as error:  # torch tells of a full disk by a RuntimeError
            why = getattr(error, "strerror", None) or " ".join(str(error).split())[:200]
            return f"checkpoint {self.step} could not be written: {why}"
        return ""

    @property
    def _epoch(self) -> int:
        return self.step // self.plan.steps_per_epoch

    @property
    def _position(self) -> int:
        """In samples."""
        return self.step * self.plan.batch

    def _meta(self) -> dict[str, Any]:
        return {"notes": dict(self.notes), "loss": self.loss}
