"""SIGKILL at chosen and at random points of a real pretraining, inside the background save above all."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from bridgehead import checkpoints, names, torch_state
from bridgehead.run import Run
from bridgehead.torch_state import tensors_sha256
from stage_support import STRIDE, Workshop, results
from stages import pretrain
from support import wait_until

CONFIG = {"clips": 64, "epochs": 6, "batch": 16, "width": 8, "stride": STRIDE, "measure_memory": False, "shake": 0.5}
DEADLINE_S = 30.0
FRESH = "fresh"  # the file that says that the child has come to the chosen point

_names = iter(range(1000))


def _new(workshop: Workshop, **spec: Any) -> Run:
    name = f"pretrain-{next(_names):04d}-d1ed00"
    return workshop.run(
        names.PRETRAIN, name, CONFIG, checkpoint_every_epochs=0, **{"checkpoint_every_steps": 5, **spec}
    )


def _weights(run: Run) -> tuple[str, str]:
    record = torch.load(run.folder / names.ARTIFACTS / names.ENCODER_WEIGHTS, weights_only=True)
    return tensors_sha256(record["raw"]), tensors_sha256(record["ema"])


@pytest.fixture(scope="module")
def uninterrupted(workshop: Workshop) -> tuple[str, str]:
    run = _new(workshop)
    assert workshop.here(pretrain.pretrain, run) == 0
    return _weights(run)


@contextlib.contextmanager
def _child(body: Callable[[], object]) -> Iterator[int]:
    """A process of its own that need not load torch again; killed when the block ends."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            body()
            code = 0
        finally:
            os._exit(code)
    try:
        yield pid
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _held_at(owner: Any, function: str, nth: int, sign: Path, before: Callable[..., object]) -> None:
    """In the child: the nth call gives the sign and never returns; training goes on meanwhile."""
    real, calls = getattr(owner, function), 0

    def held(*args: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == nth:
            before(*args)
            sign.touch()
            time.sleep(DEADLINE_S)
        return real(*args, **named)

    setattr(owner, function, held)


def _half_a_file(_state: Any, folder: Path) -> None:
    (folder / torch_state.STATE_FILE).write_bytes(b"PK\3\4" + bytes(1000))


def _nothing(*_: Any) -> None:
    pass


POINTS: dict[str, tuple[Any, str, Callable[..., object], int]] = {
    "half a state file": (torch_state, "_write", _half_a_file, 5),
    "before fsync and hash": (checkpoints, "_sync_and_hash", _nothing, 5),
    "before the rename": (checkpoints, "_aside", _nothing, 5),
    "before the older ones go": (checkpoints, "retain", _nothing, 10),
}


@pytest.mark.parametrize("point", POINTS)
def test_killed_inside_the_background_save_it_ends_bit_for_bit_the_same(
    workshop: Workshop, uninterrupted: tuple[str, str], tmp_path: Path, point: str
) -> None:
    owner, function, before, resumes_from = POINTS[point]
    run, sign = _new(workshop), tmp_path / FRESH

    def body() -> None:
        _held_at(owner, function, 2, sign, before)
        workshop.here(pretrain.pretrain, run)

    with _child(body):
        wait_until(sign.exists, DEADLINE_S, what="the second save")
    again = Run(run.folder, run.record)
    assert workshop.here(pretrain.pretrain, again) == 0
    assert results(again)["resumed_from_step"] >= resumes_from
    assert _weights(again) == uninterrupted
    assert not list((run.folder / names.CHECKPOINTS).glob(".tmp-*")), "what the killed one left is swept"


def test_killed_at_random_points_again_and_again_it_ends_bit_for_bit_the_same(
    workshop: Workshop, uninterrupted: tuple[str, str]
) -> None:
    chance, run = random.Random(11), _new(workshop, checkpoint_every_steps=1)
    kills = 0
    while not (run.folder / names.RESULTS).exists() and kills < 8:
        again = Run(run.folder, run.record)
        with _child(lambda again=again: workshop.here(pretrain.pretrain, again)) as pid:  # type: ignore[misc]
            # The place of the kill is random by time: nothing is waited for.
            with contextlib.suppress(AssertionError):
                wait_until(lambda pid=pid: _ended(pid), chance.uniform(0.005, 0.1))  # type: ignore[misc]
        kills += 1
    last = Run(run.folder, run.record)
    assert workshop.here(pretrain.pretrain, last) == 0
    assert _weights(last) == uninterrupted


def _ended(pid: int) -> bool:
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
