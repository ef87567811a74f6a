"""The graph: it computes what torch does for any batch, and keeps its origin to itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from bridgehead.errors import VerificationError
from export import parity, to_onnx


@pytest.mark.parametrize("batch", [1, 2, 7, 64])
def test_any_batch_gives_what_torch_gives(exported: Any, batch: int) -> None:
    session = onnxruntime.InferenceSession(exported.model, providers=["CPUExecutionProvider"])
    clips = exported.clips[:batch]
    got = session.run(None, {to_onnx.INPUT: clips})
    for one, other in zip(parity.reference(exported.module, clips), got, strict=True):
        assert np.allclose(one, other, atol=parity.ATOL, rtol=parity.RTOL)


def test_the_normalisation_is_inside_the_graph(exported: Any) -> None:
    """Raw clips with the mean taken off beforehand must give something else."""
    session = onnxruntime.InferenceSession(exported.model, providers=["CPUExecutionProvider"])
    raw = session.run(None, {to_onnx.INPUT: exported.clips})[0]
    twice = session.run(None, {to_onnx.INPUT: exported.clips - exported.module.mean.numpy()})[0]
    assert np.abs(raw - twice).max() > 0.1


def test_the_record_describes_the_graph(exported: Any) -> None:
    info = exported.info
    assert info.input_shape == [to_onnx.BATCH_AXIS, 20, 3]
    assert info.output_shapes == {"logits": [to_onnx.BATCH_AXIS, 4], "embedding": [to_onnx.BATCH_AXIS, 8]}
    assert info.opset == to_onnx.OPSET


def test_no_path_and_no_stack_trace_is_in_the_file(exported: Any) -> None:
    raw = exported.model.read_bytes()
    here = str(Path(__file__).parent)
    for trace in (here, "/tmp/", "/home/", "/root/", "site-packages", "stack_trace", ".py", "Small"):
        assert trace.encode() not in raw, f"the model holds {trace}"


def test_everything_is_in_the_one_file(exported: Any) -> None:
    model = onnx.load(exported.model, load_external_data=False)
    assert not [tensor.name for tensor in model.graph.initializer if tensor.external_data]


def test_the_same_module_gives_the_same_bytes(exported: Any, tmp_path: Path) -> None:
    to_onnx.export_onnx(exported.module, (20, 3), ["logits", "embedding"], tmp_path / "again.onnx")
    assert (tmp_path / "again.onnx").read_bytes() == exported.model.read_bytes()


def test_parity_is_told_per_batch_size(exported: Any) -> None:
    told = exported.parity.to_json()
    assert [batch["batch"] for batch in told["batches"]] == list(parity.BATCH_SIZES)
    assert told["verdict"] == "pass" and 0 <= told["max_abs"] < 1e-5
    assert all(batch["agreement"] == 1.0 for batch in told["batches"])


def test_a_graph_of_other_weights_fails_parity(exported: Any) -> None:
    torch.manual_seed(1)
    other = type(exported.module)().eval()
    with pytest.raises(VerificationError, match="ONNX and torch differ"):
        parity.check_parity(other, exported.model, exported.clips, ["logits", "embedding"])
