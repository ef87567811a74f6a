"""What this machine has for stages to share."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass

from vm_daemons import gauges


@dataclass(frozen=True)
class Capacity:
    cpus: float
    memory_gb: float
    gpu_memory_gb: float


def machine() -> Capacity:
    """Asks nvidia-smi where there is one, which takes up to a few seconds."""
    smi = shutil.which("nvidia-smi")
    gpu_mb = sum(gpu["memory_total_mb"] for gpu in gauges.read_gpus(smi)) if smi else 0
    return Capacity(float(len(os.sched_getaffinity(0))), gauges.memory()[0] / 2**30, gpu_mb / 1024)
