"""Embeddings, predictions and metrics; nothing here draws from a generator or leaves a gradient."""

from __future__ import annotations

from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from stages.clips_pool import ClipPool, Positions
from stages.judging import Direction, Floats
from stages.model import Classifier

ACCURACY: Final = "accuracy"
LOG_LOSS: Final = "log_loss"  # nats: minus the logarithm of what the right label was given
BRIER: Final = "brier"  # sum of squared differences to the right answer, 0 to 2
METRICS: Final = {ACCURACY: Direction.HIGHER, LOG_LOSS: Direction.LOWER, BRIER: Direction.LOWER}
Measured = dict[str, Floats]  # each metric for each clip
_BATCH = 1024


@torch.no_grad()
def embed(encoder: nn.Module, pool: ClipPool, positions: Positions, device: torch.device) -> Tensor:
    """Embeddings of these clips, on `device`."""
    return torch.cat([encoder(_clips(pool, part, device)) for part in _parts(positions)])


@torch.no_grad()
def predict(classifier: Classifier, pool: ClipPool, positions: Positions, device: torch.device) -> NDArray[np.int64]:
    """The most likely label of each clip."""
    parts = [classifier(_clips(pool, part, device))[0].argmax(dim=1).cpu() for part in _parts(positions)]
    return np.asarray(torch.cat(parts).numpy(), dtype=np.int64)


@torch.no_grad()
def measure(classifier: Classifier, pool: ClipPool, positions: Positions, device: torch.device) -> Measured:
    """All metrics of each of these clips, in double precision."""
    parts = [classifier(_clips(pool, part, device))[0].cpu() for part in _parts(positions)]
    return metrics(np.asarray(torch.cat(parts).numpy(), dtype=np.float64), pool.labels(positions))


def metrics(logits: Floats, labels: NDArray[np.int64]) -> Measured:
    """From logits (clips × classes). A clip whose logits are no numbers has no metric either: NaN."""
    with np.errstate(invalid="ignore", over="ignore"):
        shifted = logits - logits.max(axis=1, keepdims=True)
        logs = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
        truth = np.eye(logits.shape[1])[labels]
        right = (logits.argmax(axis=1) == labels).astype(np.float64)
        right[~np.isfinite(logits).all(axis=1)] = np.nan
        return {
            ACCURACY: right,
            LOG_LOSS: -np.take_along_axis(logs, labels[:, None], axis=1)[:, 0],
            BRIER: ((np.exp(logs) - truth) ** 2).sum(axis=1),
        }


def accuracy(classifier: Classifier, pool: ClipPool, positions: Positions, device: torch.device) -> float:
    return float((predict(classifier, pool, positions, device) == pool.labels(positions)).mean())


def _parts(positions: Positions) -> list[Positions]:
    return [positions[first : first + _BATCH] for first in range(0, len(positions), _BATCH)]


def _clips(pool: ClipPool, positions: Positions, device: torch.device) -> Tensor:
    return torch.from_numpy(pool.read(positions)).to(device)
