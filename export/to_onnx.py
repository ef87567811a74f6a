"""torch to one ONNX file: dynamic batch, no external data, and nothing in it that tells where it was built."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx
import torch
from torch import nn

from bridgehead.errors import VerificationError

OPSET = 20
EXAMPLE_BATCH = 3  # at least 2: an example batch of 1 gets baked into the graph
INPUT = "clips"
BATCH_AXIS = "batch"


@dataclass(frozen=True)
class OnnxInfo:
    """What bundle.json says about the graph."""

    input_name: str
    input_shape: list[str | int]
    output_names: list[str]
    output_shapes: dict[str, list[str | int]]
    opset: int
    ir_version: int


def export_onnx(module: nn.Module, shape: Sequence[int], outputs: Sequence[str], target: Path) -> OnnxInfo:
    """Write `module`, in evaluation mode, to `target`; `shape` is one sample's, without the batch axis.

    Raises VerificationError when the graph lost the dynamic batch or does not pass ONNX's own check.
    """
    module.eval()
    example = torch.zeros(EXAMPLE_BATCH, *shape)
    with _quiet():
        program = torch.onnx.export(
            module,
            (example,),
            input_names=[INPUT],
            output_names=list(outputs),
            dynamo=True,
            opset_version=OPSET,
            dynamic_shapes=({0: torch.export.Dim(BATCH_AXIS)},),
            external_data=False,
            verbose=False,
        )
    assert program is not None  # dynamo=True always gives one
    model = program.model_proto
    strip_origin(model)
    onnx.checker.check_model(model, full_check=True)
    target.write_bytes(model.SerializeToString(deterministic=True))
    info = _info(model)
    if info.input_shape[0] != BATCH_AXIS:
        raise VerificationError(f"the exported graph has a fixed batch of {info.input_shape[0]}")
    return info


def strip_origin(model: onnx.ModelProto) -> None:
    """Remove metadata and doc strings: the exporter writes source paths and stack traces into each node."""
    model.doc_string = ""
    model.producer_version = ""
    del model.metadata_props[:]
    for function in model.functions:
        function.doc_string = ""
        del function.metadata_props[:]
        _strip_nodes(function.node)
    _strip_graph(model.graph)


def _strip_graph(graph: onnx.GraphProto) -> None:
    graph.doc_string = ""
    del graph.metadata_props[:]
    for value in [*graph.input, *graph.output, *graph.value_info, *graph.initializer]:
        value.doc_string = ""
        del value.metadata_props[:]
    _strip_nodes(graph.node)


def _strip_nodes(nodes: Sequence[onnx.NodeProto]) -> None:
    for node in nodes:
        node.doc_string = ""
        del node.metadata_props[:]
        for attribute in node.attribute:
            for graph in [attribute.g, *attribute.graphs] if attribute.HasField("g") else attribute.graphs:
                _strip_graph(graph)


def _info(model: onnx.ModelProto) -> OnnxInfo:
    shapes = {value.name: _shape(value) for value in [*model.graph.input, *model.graph.output]}
    name = model.graph.input[0].name
    outputs = [value.name for value in model.graph.output]
    return OnnxInfo(
        input_name=name,
        input_shape=shapes[name],
        output_names=outputs,
        output_shapes={output: shapes[output] for output in outputs},
        opset=next(item.version for item in model.opset_import if item.domain == ""),
        ir_version=model.ir_version,
    )


def _shape(value: onnx.ValueInfoProto) -> list[str | int]:
    return [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """The exporter warns of its own insides and of torchvision, which nobody here uses."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
