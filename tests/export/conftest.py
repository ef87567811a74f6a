"""One small bundle of a module made up here, written once; each test gets a copy to spoil."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from export import bundle, bundle_writer, parity, to_onnx
from export.to_onnx import OnnxInfo

SHAPE = (20, 3)
OUTPUTS = ["logits", "embedding"]


class Small(nn.Module):
    """Normalises, convolves, and holds a dropout that must not be active in the graph."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor([1.0, -2.0, 0.5]))
        self.conv = nn.Conv1d(3, 8, 5, stride=2)
        self.dropout = nn.Dropout(0.5)
        self.head = nn.Linear(8, 4)

    def forward(self, clips: Tensor) -> tuple[Tensor, Tensor]:
        embedding = self.dropout(torch.relu(self.conv((clips - self.mean).transpose(1, 2)))).mean(dim=2)
        return self.head(embedding), embedding


@dataclass(frozen=True)
class Exported:
    module: Small
    model: Path
    info: OnnxInfo
    clips: np.ndarray
    parity: parity.Parity
    bundle: Path


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    folder = tmp_path_factory.mktemp("export")
    torch.manual_seed(0)
    module = Small()
    clips = np.random.default_rng(0).normal(size=(70, *SHAPE)).astype(np.float32)
    model = folder / "small.onnx"
    info = to_onnx.export_onnx(module, SHAPE, OUTPUTS, model)
    measured = parity.check_parity(module, model, clips, OUTPUTS)
    expected = zip(OUTPUTS, parity.reference(module, clips[:4]), strict=True)
    samples = {to_onnx.INPUT: clips[:4], **{bundle.EXPECTED_PREFIX + name: values for name, values in expected}}
    content = bundle_writer.BundleContent(
        name="small", run_id="export-0001-abcdef", origin={}, preprocess={"window": 20}, labels=list("abcd"),
        gate={"verdict": "pass"}, license="MIT\n", notice="none\n", model_card="# small\n",
    )  # fmt: skip
    bundle_writer.write_bundle(folder / "bundle", model, info, measured, content, samples)
    return Exported(module, model, info, clips, measured, folder / "bundle")


@pytest.fixture
def good(exported: Exported, tmp_path: Path) -> Path:
    """A bundle folder of one's own."""
    shutil.copytree(exported.bundle, tmp_path / "bundle")
    return tmp_path / "bundle"
