"""The undisturbed run that every round is compared with: the same stage of the same code, with nothing around it."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bridgehead import files, names
from bridgehead.records import RunRecord, StageSpec
from chaos import snapshot, workload

_TIMEOUT_S = 180


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
    digests = artifact_digests(run_dir)
    if digests is None:
        raise RuntimeError(f"the undisturbed {names.PRETRAIN} left no weights in {run_dir}")
    dice = StageSpec(workload.DICE, "", config=workload.DICE_CONFIG)
    run_dir = _run(code, pool, folder, dice, [str(folder / "dice.py")])
    results: dict[str, Any] = json.loads((run_dir / names.RESULTS).read_text())
    return Reference(digests, {"weights": results["weights_sha256"]})


def artifact_digests(run_dir: Path) -> dict[str, str] | None:
    """Digests of the weights that a finished run left, raw and averaged; None when there are none that can be read.

    Without torch, which takes seconds to start: a saved state is a zip with one member for each tensor's bytes.
    """
    path = run_dir / names.ARTIFACTS / names.ENCODER_WEIGHTS
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(path) as archive:
            members = [name for name in archive.namelist() if name.rpartition("/")[0].endswith("/data")]
            for name in sorted(members, key=lambda name: int(name.rpartition("/")[2])):
                digest.update(archive.read(name))
        results = json.loads((run_dir / names.RESULTS).read_bytes())
    except (OSError, ValueError, zipfile.BadZipFile):
        return None
    return {"tensors": digest.hexdigest(), "weights": str(results.get("weights_sha256"))} if members else None


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
