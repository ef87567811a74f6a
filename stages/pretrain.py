"""Stage pretrain: a clip encoder from unlabelled clips, by telling pairs of views apart (SimCLR)."""

from __future__ import annotations

import random
import sys
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bridgehead import names
from bridgehead.run import Run
from stages import augment, clips_pool, pool_memory, sampling, training
from stages.clips_pool import ClipPool, Positions
from stages.config import NEUTRAL, read_config, require
from stages.entry import run_stage
from stages.model import Encoder, Projector, new_encoder, save_weights, weights_sha256

FULL = "full"
_SAME_CLIP = -1e9  # a view is never its own partner


@dataclass(frozen=True)
class PretrainConfig:
    """[stages.pretrain.config] of bridgehead.toml."""

    clips: int | str = 4000  # so many of a seeded permutation of the training subjects' clips, or "full"
    epochs: int = 40
    batch: int = 96
    learning_rate: float = 3e-3
    weight_decay: float = 1e-4
    warmup_steps: int = 50
    temperature: float = 0.2
    width: int = 32
    ema_decay: float = 0.99
    shake: float = 0.0  # noise from the global generators, in the pool's deviations: shows that a resume restores them
    seed: int = 0
    subset_seed: int = 0  # apart from `seed`, so that runs of several seeds can share a subset
    threads: int = 1
    stride: int = clips_pool.DEFAULT_STRIDE
    measure_memory: bool = True


def main() -> int:
    return run_stage(pretrain)


def pretrain(run: Run) -> int:
    config = read_config(PretrainConfig, run.config, names.PRETRAIN)
    _check(config)
    device = training.prepare(config.seed, config.threads)
    pool = clips_pool.open_pool(clips_pool.data_folder(run), stride=config.stride)
    subset = choose(pool, config)
    encoder = new_encoder(config.width, pool.mean, pool.std, seed=config.seed).to(device)
    ema = training.Ema(encoder, config.ema_decay)
    loop = train(run, config, pool, subset, encoder, ema)
    results = _results(run, config, pool, subset, encoder, ema, loop)
    if config.measure_memory:
        results["full_pool_memory"] = pool_memory.measure(pool.folder)
    run.results(results)
    run.message(f"pretrain done: loss {loop.loss:.4f}, weights {results['weights_sha256'][:16]}")
    return 0


def choose(pool: ClipPool, config: PretrainConfig) -> Positions:
    """The clips to train on: the first of a seeded permutation, so that a larger subset holds a smaller one."""
    train = pool.of_subjects(clips_pool.TRAIN_SUBJECTS)
    count = len(train) if config.clips == FULL else int(config.clips)
    require(config.batch <= count <= len(train), names.PRETRAIN, f"clips must be {config.batch} to {len(train)}")
    return train[sampling.subset(pool.clip_ids(train), count, config.subset_seed)]


def train(
    run: Run, config: PretrainConfig, pool: ClipPool, subset: Positions, encoder: Encoder, ema: training.Ema
) -> training.Loop:
    """Train `encoder` and its average in place, from the newest checkpoint on."""
    device = encoder.mean.device
    projector = Projector(config.width).to(device)
    weights = [*encoder.parameters(), *projector.parameters()]
    optimizer = torch.optim.AdamW([{"params": weights, "name": "all"}], weight_decay=config.weight_decay)
    plan = training.Plan(config.epochs, len(subset) // config.batch, config.batch)
    parts = {"encoder": encoder, "projector": projector, "optimizer": optimizer, "ema": ema}
    run.declare(config=asdict(config), neutral=NEUTRAL, pool=pool.fingerprint)
    loop = training.Loop(run, plan, parts)
    subset_ids = pool.clip_ids(subset)
    order, ordered_epoch = subset, -1
    loop.resume()
    for at in loop:
        if at.epoch != ordered_epoch:
            order, ordered_epoch = subset[sampling.epoch_order(subset_ids, config.seed, at.epoch)], at.epoch
        batch = order[at.index * config.batch : (at.index + 1) * config.batch]
        clips = shaken(torch.from_numpy(pool.read(batch)).to(device), config.shake, encoder.std)
        views = augment.two_views(clips, pool.clip_ids(batch), config.seed, at.epoch, encoder.std)
        peak, warmup = config.learning_rate, config.warmup_steps
        rate = training.learning_rate(at.step, plan.horizon, peak=peak, warmup_steps=warmup)
        training.set_learning_rates(optimizer, {"all": rate})
        loss = contrastive_loss(projector(encoder(torch.cat(views))), config.temperature)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        ema.update(encoder)
        loop.report(loss)
    return loop


def shaken(clips: Tensor, strength: float, std: Tensor) -> Tensor:
    """Python's generator says how much noise, numpy's to which clips, torch's is the noise itself."""
    if strength == 0:
        return clips
    amount = strength * random.random()
    chosen = torch.from_numpy(np.random.rand(len(clips)) < 0.5).to(clips.device)
    return clips + amount * chosen[:, None, None] * std * torch.randn_like(clips)


def contrastive_loss(projected: Tensor, temperature: float) -> Tensor:
    """NT-Xent over 2B rows, of which row i and row i+B are views of one clip."""
    unit = nn.functional.normalize(projected, dim=1)
    rows = unit.shape[0]
    own = torch.eye(rows, dtype=torch.bool, device=unit.device)
    similarity = (unit @ unit.T / temperature).masked_fill(own, _SAME_CLIP)
    partner = torch.arange(rows, device=unit.device).roll(rows // 2)
    return nn.functional.cross_entropy(similarity, partner)


def _results(
    run: Run,
    config: PretrainConfig,
    pool: ClipPool,
    subset: Positions,
    encoder: Encoder,
    ema: training.Ema,
    loop: training.Loop,
) -> dict[str, Any]:
    """Write encoder.pt and say what was done."""
    raw = {name: value.cpu() for name, value in encoder.state_dict().items()}
    averaged = {name: value.cpu() for name, value in ema.state_dict().items()}
    digest = weights_sha256(encoder)
    record = {
        "width": config.width,
        "raw": raw,
        "ema": averaged,
        "pool_fingerprint": pool.fingerprint,
        "stride": pool.stride,
        "train_subjects": list(clips_pool.TRAIN_SUBJECTS),
        "weights_sha256": digest,
        "run_id": run.run_id,
    }
    return {
        **loop.outcome(),
        "weights_sha256": digest,
        "artifact_sha256": run.with_room(lambda: save_weights(run.artifact(names.ENCODER_WEIGHTS), record)),
        "pool": clips_pool.describe(pool),
        "clips_used": len(subset),
        "classes": sampling.histogram(pool.labels(subset)),
        "subjects": sampling.histogram(pool.subjects(subset)),
        "config": asdict(config),
    }


def _check(config: PretrainConfig) -> None:
    require(isinstance(config.clips, int) or config.clips == FULL, names.PRETRAIN, f'clips is a number or "{FULL}"')
    require(min(config.epochs, config.threads, config.stride) >= 1, names.PRETRAIN, "epochs, threads, stride: from 1")
    require(config.batch >= 2, names.PRETRAIN, "batch must be at least 2: a clip is told apart from others")
    require(config.width >= 4 and config.width % 4 == 0, names.PRETRAIN, "width must be a multiple of 4")
    require(0 <= config.shake, names.PRETRAIN, "shake must be 0 or more")
    require(0 < config.temperature, names.PRETRAIN, "temperature must be above 0")


if __name__ == "__main__":
    sys.exit(main())
