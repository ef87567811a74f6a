"""What checkpoints cost the training, each time against the same work without them in the same run."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import random
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from bridgehead import checkpoints, names, torch_state
from bridgehead.records import RunRecord, StageSpec
from bridgehead.run import Run

STEP_GOAL = 1.01
HOLD_GOAL = 0.25
VERIFY_GOAL = 1.15  # of reading and hashing the same bytes: what the checking adds on top
_EVERY = 5
_EPOCHS = 76  # 75 turns: each place between two checkpoints 15 times
_RESAMPLES, _TAILS = 400, 0.05
_PRETRAIN: dict[str, Any] = {"clips": 3936, "batch": 96, "epochs": _EPOCHS, "stride": 25, "measure_memory": False}
_SAVES = 7
_LAYERS, _WIDTH = 8, 1024  # with AdamW's two moments 96 MiB


def costs() -> Iterator[dict[str, Any]]:
    """Needs torch and the clips' package, which a VM has; where they are missing there is nothing to measure."""
    with tempfile.TemporaryDirectory(prefix="bridgehead-bench-") as name:
        yield _step_time(Path(name))
        yield _hold(Path(name))
        yield _verification(Path(name))


def _step_time(home: Path) -> dict[str, Any]:
    """The shipped pretraining with and without, side by side and an epoch each in turn: a busy machine slows both.

    A turn is from the middle of an epoch to the middle of the next, so that a checkpoint and what goes on behind it
    fall into one. Of each place between two checkpoints the median difference of the two neighbouring turns counts.
    `between`: the middle 90 % of what the same gives for resampled rounds (bootstrap), so how sure the ratio is.
    `cpu_ratio` is the same of the process's CPU time, the saving thread's included: what it costs where no core is
    free, and hardly moved by what else the machine does. It holds when even the upper end of what the CPU time may be,
    and the ratio of the wall times as it was found, keep to the goal: on a machine that others use too the wall times
    alone are sure to some per cent only.
    """
    os.environ[names.ENV_HOME] = str(home)
    turns = _Turns(2)
    pool = _pool(home)
    loops = [
        threading.Thread(target=_pretrain, args=(home, pool, turns, number, every))
        for number, every in ((0, 0), (1, _EVERY))
    ]
    with contextlib.redirect_stdout(io.StringIO()):
        for loop in loops:
            loop.start()
        for loop in loops:
            loop.join()
    wall = _rounds(turns.wall_s)
    ratio, without_s = _ratio(wall)
    cpu = _rounds(turns.cpu_s)
    low, high = _between(wall)
    cpu_low, cpu_high = _between(cpu)
    return {
        "bench": f"step time with checkpoints every {_EVERY} epochs against none",
        "with_s": round(ratio * without_s, 3),
        "without_s": round(without_s, 3),
        "ratio": round(ratio, 4),
        "between": [round(low, 4), round(high, 4)],
        "cpu_ratio": round(_ratio(cpu)[0], 4),
        "cpu_between": [round(cpu_low, 4), round(cpu_high, 4)],
        "goal": f"< {STEP_GOAL}",
        "holds": ratio < STEP_GOAL and cpu_high < STEP_GOAL,
    }


Pair = tuple[float, float]  # seconds without and with, of two turns one right after the other


def _rounds(taken: Sequence[Sequence[float]]) -> list[list[Pair]]:
    """The turns from one checkpoint to the next, each beside its neighbour."""
    pairs = list(zip(*taken, strict=True))
    return [[(pair[0], pair[1]) for pair in pairs[at : at + _EVERY]] for at in range(0, len(pairs), _EVERY)]


def _ratio(rounds: Sequence[Sequence[Pair]]) -> tuple[float, float]:
    """(with against without, seconds without) of one round."""
    places = list(zip(*rounds, strict=True))
    without_s = sum(statistics.median(pair[0] for pair in place) for place in places)
    extra_s = sum(statistics.median(pair[1] - pair[0] for pair in place) for place in places)
    return 1.0 + extra_s / without_s, without_s


def _between(rounds: Sequence[Sequence[Pair]]) -> tuple[float, float]:
    """Where the ratio may well lie, by resampling whole rounds."""
    chance = random.Random(0)
    found = sorted(_ratio(chance.choices(rounds, k=len(rounds)))[0] for _ in range(_RESAMPLES))
    return found[int(_TAILS * _RESAMPLES)], found[int((1 - _TAILS) * _RESAMPLES)]


class _Turns:
    """Lets one thread work at a time, in turn, and keeps how long each turn took and what CPU time it cost."""

    def __init__(self, count: int) -> None:
        self.wall_s: list[list[float]] = [[] for _ in range(count)]
        self.cpu_s: list[list[float]] = [[] for _ in range(count)]
        self._may = [threading.Semaphore(1 if number == 0 else 0) for number in range(count)]
        self._since = (0.0, 0.0)

    def begin(self, number: int) -> None:
        self._may[number].acquire()
        self._since = (time.perf_counter(), time.process_time())

    def end(self, number: int) -> None:
        self.wall_s[number].append(time.perf_counter() - self._since[0])
        self.cpu_s[number].append(time.process_time() - self._since[1])
        self._may[(number + 1) % len(self._may)].release()


def _pool(home: Path) -> Any:
    from stages import clips_pool

    return clips_pool.open_pool(home / "data", stride=_PRETRAIN["stride"])


def _pretrain(home: Path, pool: Any, turns: _Turns, number: int, every: int) -> None:
    from stages import pretrain, training
    from stages.config import read_config
    from stages.model import new_encoder

    run = _run(home, f"{names.PRETRAIN}-{number:04d}-abcdef", checkpoint_every_epochs=every)
    config = read_config(pretrain.PretrainConfig, _PRETRAIN, names.PRETRAIN)
    per_epoch = _PRETRAIN["clips"] // _PRETRAIN["batch"]
    due = run.checkpoint_due

    def in_turn(epoch: int = 0, step: int = 0) -> bool:
        if step % per_epoch == per_epoch // 2:
            turns.end(number)
            turns.begin(number)
        return due(epoch, step)

    run.checkpoint_due = in_turn  # type: ignore[method-assign,assignment]
    turns.begin(number)
    training.prepare(config.seed, config.threads)
    encoder = new_encoder(config.width, pool.mean, pool.std, seed=config.seed)
    ema = training.Ema(encoder, config.ema_decay)
    pretrain.train(run, config, pool, pretrain.choose(pool, config), encoder, ema)
    turns.end(number)
    for taken in (turns.wall_s[number], turns.cpu_s[number]):
        del taken[0], taken[-1]  # what comes before the first step and after the last one


def _hold(home: Path) -> dict[str, Any]:
    """How long a step is held by a checkpoint in the background, against a blocking save of the same state."""
    import torch

    torch.set_num_threads(1)
    model = torch.nn.Sequential(*[torch.nn.Linear(_WIDTH, _WIDTH, bias=False) for _ in range(_LAYERS)])
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, _WIDTH)).sum().backward()
    optimizer.step()
    parts = {"model": model, "optimizer": optimizer}
    run, snapshot = _run(home, "hold-0001-abcdef"), torch_state.Snapshot(parts)
    held, blocked = [], []
    for step in range(_SAVES):
        blocked.append(_seconds(lambda: _blocking_save(parts, home / torch_state.STATE_FILE)))
        held.append(_seconds(lambda step=step: run.checkpoint_async(step, lambda: snapshot.take(position=step))))  # type: ignore[misc]
        run.finish_saving()
    ratio = statistics.median(held[1:]) / statistics.median(blocked[1:])
    return {
        "bench": "a background checkpoint's hold of the step against torch.save + fsync of the same state",
        "state_mib": round(snapshot.size_bytes / 2**20, 1),
        "hold_s": round(statistics.median(held[1:]), 4),
        "first_hold_s": round(held[0], 4),  # its buffers are new
        "blocking_s": round(statistics.median(blocked[1:]), 4),
        "ratio": round(ratio, 3),
        "goal": f"<= {HOLD_GOAL}",
        "holds": ratio <= HOLD_GOAL,
    }


def _verification(home: Path) -> dict[str, Any]:
    """The checkpoints that `_hold` left, all in the page cache: reading alone, reading and hashing, verifying."""
    root = home / names.VM_RUNS / "hold-0001-abcdef" / names.CHECKPOINTS
    found, _ = checkpoints.newest(root)
    assert found is not None
    path = found.path(torch_state.STATE_FILE)
    ways: list[Callable[[], object]] = [
        lambda: _read(path, lambda _: None),
        lambda: _read(path, hashlib.sha256().update),
        lambda: checkpoints.verify(found.folder),
    ]
    rounds = [[_seconds(way) for way in ways] for _ in range(_SAVES)]
    read_s, hash_s, verify_s = map(min, zip(*rounds, strict=True))
    return {
        "bench": "verifying a checkpoint against reading its file alone",
        "read_s": round(read_s, 4),
        "read_and_hash_s": round(hash_s, 4),
        "verify_s": round(verify_s, 4),
        "ratio": round(verify_s / read_s, 2),
        "goal": f"verifying <= {VERIFY_GOAL} of reading and hashing",
        "holds": verify_s <= VERIFY_GOAL * hash_s,
    }


def _run(home: Path, name: str, **spec: Any) -> Run:
    folder = home / names.VM_RUNS / name
    folder.mkdir(parents=True)
    described = StageSpec("bench", "", **{"checkpoint_every_epochs": 0, **spec})
    return Run(folder, RunRecord(name, "bench", "bench", "c", 1, "vm-bench", time.time(), described))


def _blocking_save(parts: dict[str, Any], path: Path) -> None:
    torch_state.save(path.parent, parts, position=0)
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _read(path: Path, use: Callable[[bytes], object]) -> None:
    with path.open("rb") as handle:
        while piece := handle.read(1 << 20):
            use(piece)


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
