"""The undisturbed run that every round is compared with: the same stage of the same code, with nothing around it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bridgehead import files, names
from bridgehead.records import RunRecord, StageSpec
from chaos import snapshot, workload

_TIMEOUT_S = 180
# Run apart, because it needs torch: the digests of the raw and of the averaged weights.
_DIGESTS = """\
import json, sys
import torch
from bridgehead import torch_state
record = torch.load(sys.argv[1], weights_only=True)
print(json.dumps({part: torch_state.tensors_sha256(record[part]) for part in ("raw", "ema")}))
"""


@dataclass(frozen=True)
class Reference:
    """Name -> SHA-256 of what an undisturbed run ends with."""

    pretrain: dict[str, str]
    dice: dict[str, str]

    def to_json(self) -> dict[str, dict[str, str]]:
        return {names.PRETRAIN: self.pretrain, workload.DICE: self.dice}

    @classmethod
    def from_json(cls, told: dict[str, dict[str, str]]) -> Reference:
        return cls(told[names.PRETRAIN], told[workload.DICE])


def compute(code: Path, pool: Path, folder: Path) -> Reference:
    """Run both stages once with the packages in `code`, making the pool on the way. Raises RuntimeError."""
    folder.mkdir(parents=True)
    workload.write_project(folder)
    pretrain = StageSpec(names.PRETRAIN, "", config=workload.PRETRAIN_CONFIG, checkpoint_every_epochs=2)
    run_dir = _run(code, pool, folder, pretrain, ["-m", f"stages.{names.PRETRAIN}"])
    digests = artifact_digests(code, run_dir)
    if digests is None:
        raise RuntimeError(f"the undisturbed {names.PRETRAIN} left no weights in {run_dir}")
    dice = StageSpec(workload.DICE, "", config=workload.DICE_CONFIG)
    run_dir = _run(code, pool, folder, dice, [str(folder / "dice.py")])
    results: dict[str, Any] = json.loads((run_dir / names.RESULTS).read_text())
    return Reference(digests, {"weights": results["weights_sha256"]})


def artifact_digests(code: Path, run_dir: Path) -> dict[str, str] | None:
    """Digests of the weights in a finished run's artifacts; None when they can't be loaded."""
    path = run_dir / names.ARTIFACTS / names.ENCODER_WEIGHTS
    result = subprocess.run(
        [sys.executable, "-c", _DIGESTS, str(path)],
        env=snapshot.environment(code),
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
    )
    if result.returncode != 0:
        return None
    found: dict[str, str] = json.loads(result.stdout)
    return found


def _run(code: Path, pool: Path, folder: Path, spec: StageSpec, words: list[str]) -> Path:
    run_dir = folder / spec.name
    run_dir.mkdir()
    record = RunRecord("reference", spec.name, workload.PROJECT, "", 1, "", time.time(), spec)
    files.write_json(run_dir / names.RUN_RECORD, record.to_json())
    result = subprocess.run(
        [sys.executable, *words],
        env={
            **snapshot.environment(code),
            "OMP_NUM_THREADS": "1",
            names.ENV_RUN_DIR: str(run_dir),
            names.ENV_HOME: str(pool.parent),
        },
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
    )
    if result.returncode != 0:
        raise RuntimeError(f"the undisturbed {spec.name} ended with {result.returncode}: {result.stderr[-500:]}")
    return run_dir
