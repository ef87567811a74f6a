"""Runs stages in tests: in this process, or as the stage runner would in one of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from bridgehead import files, names
from bridgehead.records import RunRecord, StageSpec
from bridgehead.run import Run
from stages import clips_pool
from stages.clips_pool import ClipPool

ROOT = Path(__file__).parents[1]
STRIDE = 50
TINY = {"clips": 256, "epochs": 10, "batch": 16, "width": 16, "stride": STRIDE, "measure_memory": False}
SMALL = {"clips": 900, "epochs": 14, "batch": 60, "stride": STRIDE, "measure_memory": False}


@dataclass
class Workshop:
    """A VM's home for stages: run folders, and the one pool that they share."""

    home: Path
    inputs: dict[str, Path] = field(default_factory=dict)

    def run(self, stage: str, name: str, config: dict[str, Any], **spec: Any) -> Run:
        folder = self.home / "runs" / name
        folder.mkdir(parents=True, exist_ok=True)
        described = StageSpec(stage, f"{names.SHIPPED_COMMAND_PREFIX}{stage}", config=config, **spec)
        record = RunRecord(name, stage, "project", "command", 1, "vm-test", time.time(), described)
        files.write_json(folder / names.RUN_RECORD, record.to_json())
        return Run(folder, record)

    def environment(self, run: Run) -> dict[str, str]:
        return {
            names.ENV_RUN_DIR: str(run.folder),
            names.ENV_HOME: str(self.home),
            names.ENV_INPUTS: json.dumps({stage: str(folder) for stage, folder in self.inputs.items()}),
        }

    def here(self, body: Callable[[Run], int], run: Run) -> int:
        """Run a stage in this process."""
        with pytest.MonkeyPatch.context() as patch:
            for name, value in self.environment(run).items():
                patch.setenv(name, value)
            return body(run)

    def start(self, run: Run) -> subprocess.Popen[str]:
        """Run a stage in a process of its own, as the stage runner does."""
        command = [sys.executable, "-m", f"stages.{run.stage}"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONSAFEPATH": "1", **self.environment(run)}
        with (run.folder / names.LOG).open("ab") as log:
            return subprocess.Popen(
                command, env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL, text=True
            )

    def with_inputs(self, **inputs: Path) -> Workshop:
        return Workshop(self.home, {**self.inputs, **inputs})

    @property
    def pool(self) -> ClipPool:
        return clips_pool.open_pool(self.home / "data", stride=STRIDE)


def results(run: Run | Path) -> dict[str, Any]:
    folder = run if isinstance(run, Path) else run.folder
    found: dict[str, Any] = json.loads((folder / names.RESULTS).read_text())
    return found
