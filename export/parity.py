"""Does the ONNX graph compute what the torch module computes? Measured per batch size, on real clips."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from numpy.typing import NDArray
from torch import nn

from bridgehead.errors import VerificationError

BATCH_SIZES = (1, 2, 7, 64)
ATOL = 1e-5
RTOL = 1.3e-6  # both are torch.testing's own for float32

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class BatchParity:
    """Largest differences over one batch; `agreement` is the share of clips with the same label."""

    batch: int
    max_abs: float
    max_rel: float
    agreement: float
    ok: bool


@dataclass(frozen=True)
class Parity:
    atol: float
    rtol: float
    clips: int
    batches: list[BatchParity] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return bool(self.batches) and all(batch.ok for batch in self.batches)

    @property
    def max_abs(self) -> float:
        return max(batch.max_abs for batch in self.batches)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "ok": self.ok, "max_abs": self.max_abs, "verdict": "pass" if self.ok else "fail"}


def check_parity(module: nn.Module, model: Path, clips: Floats, output_names: list[str]) -> Parity:
    """Compare every output for each of BATCH_SIZES, over all `clips`. Raises VerificationError when they differ.

    The first output holds the logits.
    """
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    batches = [_at_batch(module, session, clips, output_names, size) for size in BATCH_SIZES]
    parity = Parity(ATOL, RTOL, len(clips), batches)
    if not parity.ok:
        bad = next(batch for batch in batches if not batch.ok)
        raise VerificationError(
            f"ONNX and torch differ by {parity.max_abs:.2e} (batch {bad.batch}, labels agree {bad.agreement:.1%})",
            hint="check the versions of torch, onnxscript and onnxruntime against constraints.txt",
        )
    return parity


@torch.no_grad()
def reference(module: nn.Module, clips: Floats) -> list[Floats]:
    """torch's own outputs for one batch."""
    return [output.numpy() for output in module(torch.from_numpy(clips))]


def _at_batch(
    module: nn.Module, session: onnxruntime.InferenceSession, clips: Floats, output_names: list[str], size: int
) -> BatchParity:
    max_abs = max_rel = 0.0
    agreed, ok = 0, True
    for first in range(0, len(clips), size):
        part = clips[first : first + size]
        wanted = reference(module, part)
        got = session.run(output_names, {session.get_inputs()[0].name: part})
        for one, other in zip(wanted, got, strict=True):
            gap = np.abs(one - other)
            max_abs = max(max_abs, float(gap.max()))
            max_rel = max(max_rel, float((gap / np.maximum(np.abs(one), ATOL)).max()))
            ok = ok and bool(np.allclose(other, one, atol=ATOL, rtol=RTOL))
        agreed += int((wanted[0].argmax(axis=1) == got[0].argmax(axis=1)).sum())
    return BatchParity(size, max_abs, max_rel, agreed / len(clips), ok)
