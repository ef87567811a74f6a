"""`python -m export.trial`: the whole export on a tiny model, to learn whether this machine's packages can do it.

Prints one line of JSON, {"ok", "part", "error"}: `part` is the module that can't be imported, "" when the fault is
another. Exits 0 when a graph was written, checked, run, and gave what torch gives; else 1.
"""

from __future__ import annotations

import importlib
import json
import signal
import sys
import tempfile
from pathlib import Path

LIMIT_S = 600  # its caller waits for less; this ends it when the caller was killed
_PARTS = ("onnx", "onnx_ir", "onnxscript", "onnxruntime")
_SHAPE = (32, 3)  # of one sample: time steps and channels
_OUTPUTS = ("logits", "embedding")
_SAMPLES = 8
_SAID_MAX = 300


def main() -> int:
    signal.alarm(LIMIT_S)
    try:
        with tempfile.TemporaryDirectory() as folder:
            attempt(Path(folder) / "tiny.onnx")
    except ImportError as error:
        return _say(part=error.name or "", error=str(error))
    except Exception as error:  # noqa: BLE001 - process edge: an exporter raises what it likes, and all of it is told
        return _say(error=f"{type(error).__name__}: {error}")
    return _say()


def attempt(target: Path) -> None:
    """Export, check and run a model of the kinds of layer that the shipped one has. Raises what the export raises."""
    for part in _PARTS:  # before torch, which takes the longest
        importlib.import_module(part)
    import numpy as np
    import torch
    from torch import Tensor, nn

    from export import parity, to_onnx

    class Tiny(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv1d(_SHAPE[1], 4, 5, stride=2)
            self.norm = nn.BatchNorm1d(4)
            self.head = nn.Linear(4, 2)

        def forward(self, clips: Tensor) -> tuple[Tensor, Tensor]:
            embedding = torch.relu(self.norm(self.conv(clips.transpose(1, 2)))).mean(dim=2)
            return self.head(embedding), embedding

    torch.manual_seed(0)
    module = Tiny()
    info = to_onnx.export_onnx(module, _SHAPE, _OUTPUTS, target)
    clips = np.random.default_rng(0).standard_normal((_SAMPLES, *_SHAPE)).astype(np.float32)
    parity.check_parity(module, target, clips, info.output_names)


def _say(*, part: str = "", error: str = "") -> int:
    told = {"ok": not error, "part": part, "error": " ".join(error.split())[:_SAID_MAX]}
    sys.stdout.write(json.dumps(told) + "\n")
    sys.stdout.flush()
    return 0 if told["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
