"""The clip encoder and its heads. Raw clips go in; the normalisation is part of the model, so ONNX has it too.

Names of weights are plain module paths and never change with the way a model was trained or wrapped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bridgehead import files, names
from bridgehead.errors import VerificationError
from bridgehead.torch_state import tensors_sha256

KERNEL = 5
PROJECTION = 32
PROJECTION_DROPOUT = 0.1


class Encoder(nn.Module):
    """Three strided 1-d convolutions and a mean over time: clips (B, 100, 6) to embeddings (B, width)."""

    mean: Tensor
    std: Tensor

    def __init__(self, width: int, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        channels = len(mean)
        self.width = width
        self.register_buffer("mean", torch.tensor(mean, dtype=torch.float32))
        self.register_buffer("std", torch.tensor(std, dtype=torch.float32))
        self.conv1 = nn.Conv1d(channels, width, KERNEL, stride=2, padding=KERNEL // 2)
        self.norm1 = nn.GroupNorm(4, width)
        self.conv2 = nn.Conv1d(width, width, KERNEL, stride=2, padding=KERNEL // 2)
        self.norm2 = nn.GroupNorm(4, width)
        self.conv3 = nn.Conv1d(width, width, KERNEL, stride=2, padding=KERNEL // 2)
        self.norm3 = nn.GroupNorm(4, width)

    def forward(self, clips: Tensor) -> Tensor:
        x = ((clips - self.mean) / self.std).transpose(1, 2)
        x = nn.functional.relu(self.norm1(self.conv1(x)))
        x = nn.functional.relu(self.norm2(self.conv2(x)))
        x = nn.functional.relu(self.norm3(self.conv3(x)))
        return x.mean(dim=2)


class Projector(nn.Module):
    """The head that the contrastive loss sees; thrown away after pretraining."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(width, width)
        self.dropout = nn.Dropout(PROJECTION_DROPOUT)
        self.out = nn.Linear(width, PROJECTION)

    def forward(self, embeddings: Tensor) -> Tensor:
        projected: Tensor = self.out(self.dropout(nn.functional.relu(self.hidden(embeddings))))
        return projected


class Classifier(nn.Module):
    """What ships: logits and the embedding of each clip. The head sees embeddings of mean 0 and deviation 1."""

    shift: Tensor
    scale: Tensor

    def __init__(self, encoder: Encoder, classes: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.register_buffer("shift", torch.zeros(encoder.width))
        self.register_buffer("scale", torch.ones(encoder.width))
        self.head = nn.Linear(encoder.width, classes)

    def classify(self, embeddings: Tensor) -> Tensor:
        logits: Tensor = self.head((embeddings - self.shift) / self.scale)
        return logits

    def forward(self, clips: Tensor) -> tuple[Tensor, Tensor]:
        embedding: Tensor = self.encoder(clips)
        return self.classify(embedding), embedding


def new_encoder(width: int, mean: Sequence[float], std: Sequence[float], *, seed: int) -> Encoder:
    """A fresh encoder whose weights depend on `seed` alone; the global random state stays as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Encoder(width, mean, std)


def save_weights(path: Path, record: Mapping[str, Any]) -> str:
    """Write tensors, numbers and text with torch.save; return the file's SHA-256."""
    with files.atomic_writer(path) as handle:
        torch.save(dict(record), handle)
    return files.sha256_file(path)


def load_weights(path: Path, stage: str) -> dict[str, Any]:
    """What save_weights wrote. Raises VerificationError when it is missing, cut, or not the file that `stage` named."""
    results = files.read_json(path.parent.parent / names.RESULTS) or {}
    if not path.is_file():
        raise VerificationError(f"{stage} left no {path.name}", hint=f"queue run:{stage} again")
    if results.get("artifact_sha256") != files.sha256_file(path):
        raise VerificationError(f"{path.name} is not the file that {stage}'s {names.RESULTS} names")
    record: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    return record


def encoder_from(record: Mapping[str, Any], weights: str) -> Encoder:
    """The encoder of a loaded encoder.pt; `weights` is "raw" or "ema"."""
    state = record[weights]
    encoder = Encoder(record["width"], state["mean"].tolist(), state["std"].tolist())
    encoder.load_state_dict(state)
    return encoder


def classifier_from(record: Mapping[str, Any], weights: str) -> Classifier:
    """The classifier of a loaded classifier.pt, in evaluation mode."""
    state = record[weights]
    encoder = Encoder(record["width"], state["encoder.mean"].tolist(), state["encoder.std"].tolist())
    classifier = Classifier(encoder, len(record["labels"]))
    classifier.load_state_dict(state)
    return classifier.eval()


def weights_sha256(module: nn.Module) -> str:
    return tensors_sha256(module.state_dict())
