"""A stage that declares its pool is refused when the run was pinned to another one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bridgehead.checkpoints import CheckpointRefused
from bridgehead.records import Pins, RunRecord, StageSpec
from bridgehead.run import Run

HERE, OTHER = "ab" * 32, "cd" * 32


def _run(folder: Path, data: object) -> Run:
    spec = StageSpec("train", "python x", pins=Pins(spec={"data": data}))
    return Run(folder, RunRecord("train-0001-abcdef", "train", "p", "", 1, "vm", 0.0, spec))


def test_another_pool_is_refused_before_a_step_is_made(tmp_path: Path) -> None:
    run = _run(tmp_path, {"fingerprint": HERE})
    run.declare(pool=HERE)
    with pytest.raises(CheckpointRefused, match="another than the run was pinned to") as caught:
        run.declare(pool=OTHER)
    assert caught.value.hint


# Of data that has a place the fingerprint is compared there: a pool that the stage makes of it has one of its own.
@pytest.mark.parametrize("data", [{}, None, {"fingerprint": HERE, "vm_path": "/x"}, {"fingerprint": HERE, "path": "x"}])
def test_what_was_not_pinned_by_its_fingerprint_alone_is_let_through(tmp_path: Path, data: Any) -> None:
    _run(tmp_path, data).declare(pool=OTHER)
