"""The linear probe: a head on a frozen encoder. finetune's first phase, and all of the gate's baseline."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from bridgehead import names
from stages import clips_pool, evaluation, sampling, training
from stages.clips_pool import ClipPool, Positions
from stages.config import require
from stages.model import Classifier, Encoder

_SMALLEST_SCALE = 1e-6


@dataclass(frozen=True)
class ProbeRecipe:
    """All that decides a probe, given encoder and clips. Kept with the classifier: the gate repeats it exactly."""

    epochs: int
    batch: int
    learning_rate: float
    weight_decay: float
    seed: int

    def rate(self, step: int, clips: int) -> float:
        """The head's learning rate at `step`."""
        horizon = self.epochs * (clips // self.batch)
        return training.learning_rate(step, horizon, peak=self.learning_rate, warmup_steps=0)


def labelled_clips(pool: ClipPool, subjects: Sequence[int], count: int, seed: int) -> Positions:
    """The first `count` of a seeded permutation of these training subjects' clips."""
    outside = sorted(set(subjects) - set(clips_pool.TRAIN_SUBJECTS))
    require(not outside, names.FINETUNE, f"label_subjects {outside} are kept for validation and the gate")
    found = pool.of_subjects(subjects)
    require(0 < count <= len(found), names.FINETUNE, f"clips must be 1 to {len(found)} for these subjects")
    return found[sampling.subset(pool.clip_ids(found), count, seed)]


def clips_sha256(pool: ClipPool, positions: Positions) -> str:
    """Which clips these are, whatever their order."""
    return hashlib.sha256(np.sort(pool.clip_ids(positions)).astype("<i8").tobytes()).hexdigest()


def head_on(encoder: Encoder, embeddings: Tensor, seed: int) -> Classifier:
    """A classifier with a fresh head, its input scaled to these embeddings' mean and deviation."""
    device = embeddings.device
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        classifier = Classifier(encoder, len(clips_pool.LABELS))
    classifier = classifier.to(device)
    classifier.shift.copy_(embeddings.mean(dim=0))
    classifier.scale.copy_(embeddings.std(dim=0).clamp(min=_SMALLEST_SCALE))
    return classifier


def head_loss(classifier: Classifier, embeddings: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.cross_entropy(classifier.classify(embeddings), labels)


def fit_probe(encoder: Encoder, pool: ClipPool, positions: Positions, recipe: ProbeRecipe) -> Classifier:
    """A probe trained in one go: the same steps as finetune's first phase, which can also be resumed."""
    device = encoder.mean.device
    embeddings = evaluation.embed(encoder, pool, positions, device)
    labels = torch.from_numpy(pool.labels(positions)).to(device)
    classifier = head_on(encoder, embeddings, recipe.seed)
    groups = [{"params": list(classifier.head.parameters()), "name": "head"}]
    optimizer = torch.optim.AdamW(groups, weight_decay=recipe.weight_decay)
    steps = len(positions) // recipe.batch
    for step in range(recipe.epochs * steps):
        epoch, index = divmod(step, steps)
        batch = probe_batch(pool, positions, recipe, epoch, index, device)
        training.set_learning_rates(optimizer, {"head": recipe.rate(step, len(positions))})
        loss = head_loss(classifier, embeddings[batch], labels[batch])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return classifier


def probe_batch(
    pool: ClipPool, positions: Positions, recipe: ProbeRecipe, epoch: int, index: int, device: torch.device
) -> Tensor:
    """Places in `positions` of one batch, a pure function of (seed, epoch, index)."""
    order = sampling.epoch_order(pool.clip_ids(positions), recipe.seed, epoch)
    return torch.from_numpy(order[index * recipe.batch : (index + 1) * recipe.batch]).to(device)
