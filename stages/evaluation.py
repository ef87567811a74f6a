"""Embeddings, predictions and accuracies; nothing here draws from a generator or leaves a gradient."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from stages.clips_pool import ClipPool, Positions
from stages.model import Classifier

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


def accuracy(classifier: Classifier, pool: ClipPool, positions: Positions, device: torch.device) -> float:
    return float((predict(classifier, pool, positions, device) == pool.labels(positions)).mean())


def _parts(positions: Positions) -> list[Positions]:
    return [positions[first : first + _BATCH] for first in range(0, len(positions), _BATCH)]


def _clips(pool: ClipPool, positions: Positions, device: torch.device) -> Tensor:
    return torch.from_numpy(pool.read(positions)).to(device)
