"""Each thing that a resume restores, left out in turn: a real pretraining must then end with other bits.

These are why the tests that compare bits can fail at all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from bridgehead import checkpoints, names, torch_state
from bridgehead.run import Run
from bridgehead.torch_state import tensors_sha256
from stage_support import STRIDE, Workshop, results
from stages import pretrain, training

# 4 steps an epoch; `shake` draws from all three generators in each of them.
CONFIG = {"clips": 64, "epochs": 4, "batch": 16, "width": 8, "stride": STRIDE, "measure_memory": False, "shake": 0.5}
KILLED_AT = 10  # while epoch 2 is under way, after the checkpoint of step 7 in the middle of epoch 1
Patch = Callable[[pytest.MonkeyPatch], None]

_names = iter(range(1000))


class Killed(BaseException):
    """Stands in for SIGKILL inside this process."""


def _new(workshop: Workshop) -> Run:
    name = f"pretrain-{next(_names):04d}-abc{next(_names):03d}"
    return workshop.run(names.PRETRAIN, name, CONFIG, checkpoint_every_epochs=0, checkpoint_every_steps=7)


def _weights(run: Run) -> tuple[str, str]:
    record = torch.load(run.folder / names.ARTIFACTS / names.ENCODER_WEIGHTS, weights_only=True)
    return tensors_sha256(record["raw"]), tensors_sha256(record["ema"])


def _killed(workshop: Workshop, kill_at: int = KILLED_AT) -> Run:
    run, done = _new(workshop), 0
    loss = pretrain.contrastive_loss

    def dies(*args: Any) -> torch.Tensor:
        nonlocal done
        run.finish_saving()  # or it would be chance which checkpoint the kill leaves
        done += 1
        if done > kill_at:
            raise Killed
        return loss(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pretrain, "contrastive_loss", dies)
        with pytest.raises(Killed):
            workshop.here(pretrain.pretrain, run)
    return Run(run.folder, run.record)


def _finished(workshop: Workshop, run: Run, *patches: Patch) -> tuple[str, str]:
    with pytest.MonkeyPatch.context() as patch:
        for apply in patches:
            apply(patch)
        assert workshop.here(pretrain.pretrain, run) == 0
    return _weights(run)


@pytest.fixture(scope="module")
def uninterrupted(workshop: Workshop) -> tuple[str, str]:
    return _finished(workshop, _new(workshop))


def _without(function: str) -> Patch:
    return lambda patch: patch.setattr(torch_state, function, lambda *_: None)


def _without_part(left_out: str) -> Patch:
    restore = torch_state._restore_part

    def apply(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(
            torch_state, "_restore_part", lambda name, *rest: None if name == left_out else restore(name, *rest)
        )

    return apply


def _since_the_resume(loop: training.Loop) -> int:
    return loop.step - (loop.resumed_from_step or 0)


def _schedule_anew(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(training.Loop, "_schedule_position", _since_the_resume)


def _samples_anew(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        training.Loop, "_sample_position", lambda loop: divmod(_since_the_resume(loop), loop.plan.steps_per_epoch)
    )


def _epoch_anew(patch: pytest.MonkeyPatch) -> None:
    """What most loaders do: the epoch goes on, at its first sample."""
    patch.setattr(
        training.Loop,
        "_sample_position",
        lambda loop: (
            loop.step // loop.plan.steps_per_epoch,
            _since_the_resume(loop) % loop.plan.steps_per_epoch,
        ),
    )


MUTANTS: dict[str, Patch] = {
    "model": _without_part("encoder"),
    "projector": _without_part("projector"),
    "optimizer": _without_part("optimizer"),
    "ema": _without_part("ema"),
    "schedule position": _schedule_anew,
    "sample position": _samples_anew,
    "place in the epoch": _epoch_anew,
    "torch's generator": _without("_restore_torch_rng"),
    "numpy's generator": _without("_restore_numpy_rng"),
    "python's generator": _without("_restore_python_rng"),
}


@pytest.mark.parametrize("kill_at", [3, 8, KILLED_AT, 15])
def test_with_everything_restored_the_bits_are_equal(
    workshop: Workshop, uninterrupted: tuple[str, str], kill_at: int
) -> None:
    run = _killed(workshop, kill_at)
    assert _finished(workshop, run) == uninterrupted
    assert results(run)["resumed_from_step"] == (kill_at // 7 * 7 or None)


@pytest.mark.parametrize("lost", MUTANTS)
def test_with_one_thing_not_restored_the_bits_differ(
    workshop: Workshop, uninterrupted: tuple[str, str], lost: str
) -> None:
    assert _finished(workshop, _killed(workshop), MUTANTS[lost]) != uninterrupted


def _damage(run: Run) -> None:
    """Flip one bit in the middle of the newest state file: of a weight or a moment, which no loader notices."""
    newest, _ = checkpoints.newest(run.folder / names.CHECKPOINTS)
    assert newest is not None
    path = newest.path(torch_state.STATE_FILE)
    state = torch.load(path, weights_only=True)
    weight = state["parts"]["encoder"]["conv2.weight"].numpy().tobytes()
    data = bytearray(path.read_bytes())
    data[data.index(weight) + 2] ^= 0x40
    path.write_bytes(data)


def _unchecked(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(checkpoints, "_check_file", lambda *_: None)


def test_a_damaged_checkpoint_is_passed_over_and_without_the_hash_check_it_would_show(
    workshop: Workshop, uninterrupted: tuple[str, str]
) -> None:
    for patches, resumed_from, equal in (((), 7, True), ((_unchecked,), 14, False)):
        run = _killed(workshop, 15)
        _damage(run)
        assert (_finished(workshop, run, *patches) == uninterrupted) is equal
        assert results(run)["resumed_from_step"] == resumed_from
