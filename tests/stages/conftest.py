"""A small pool of the real data, and the whole pipeline run once on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from bridgehead import names
from bridgehead.run import Run
from stage_support import SMALL, Workshop
from stages import export, finetune, gate, pretrain


@pytest.fixture(scope="session", autouse=True)
def torch_as_it_was() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.use_deterministic_algorithms(mode=False)
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    made = Workshop(tmp_path_factory.mktemp("vm"))
    assert len(made.pool) == 4677
    return made


SHORT = {"clips": 900, "validation_clips": 200, "probe_epochs": 6, "tune_epochs": 6}


@pytest.fixture(scope="session")
def pipeline(workshop: Workshop) -> Workshop:
    """pretrain, finetune and gate have run, and export too; `inputs` holds their folders."""
    made = workshop.with_inputs()
    steps: list[tuple[str, Callable[[Run], int], dict[str, Any]]] = [
        (names.PRETRAIN, pretrain.pretrain, SMALL),
        (names.FINETUNE, finetune.finetune, SHORT),
        (names.GATE, gate.gate, {"min_effect": 0.0, "confidence": 0.6, "resamples": 1000}),
        (names.EXPORT, export.export_bundle, {"name": "tiny", "parity_clips": 64, "sample_clips": 5}),
    ]
    for stage, body, config in steps:
        run = made.run(stage, f"{stage}-0001-abcdef", config)
        assert made.here(body, run) == 0, f"{stage} failed"
        made.inputs[stage] = run.folder
    return made
