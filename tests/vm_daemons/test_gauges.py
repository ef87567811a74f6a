"""Gauges: what nvidia-smi prints, and that a sick one holds up nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from support import wait_until
from vm_daemons.gauges import Gauges, read_gpus


def _smi(folder: Path, script: str) -> str:
    path = folder / "nvidia-smi"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def test_each_gpu_is_a_record(tmp_path: Path) -> None:
    smi = _smi(tmp_path, "echo 'Tesla T4, 15360, 1024, 37'; echo 'NVIDIA A100, 40960, [N/A], [N/A]'")
    assert read_gpus(smi) == [
        {"name": "Tesla T4", "memory_total_mb": 15360, "memory_used_mb": 1024, "use": 0.37},
        {"name": "NVIDIA A100", "memory_total_mb": 40960, "memory_used_mb": 0, "use": 0.0},
    ]


@pytest.mark.parametrize("script", ["exit 9", "echo 'NVIDIA-SMI has failed'"])
def test_a_failing_nvidia_smi_means_no_gpus(tmp_path: Path, script: str) -> None:
    assert read_gpus(_smi(tmp_path, script)) == []


def test_a_snapshot_does_not_wait_for_a_hung_nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _smi(tmp_path, f"touch {tmp_path}/began; exec sleep 30")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr("vm_daemons.gauges._GPU_TIMEOUT_S", 1.0)  # then it is killed
    gauges = Gauges(tmp_path)
    gauges.start()
    wait_until((tmp_path / "began").exists, what="nvidia-smi to begin")
    assert gauges.snapshot()["gpus"] == []
    gauges.stop()
