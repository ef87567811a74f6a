"""What equality bit for bit also depends on: the image and the machine that a run is computed on.

Measured: another thread count, another CPU capability or another setting of the maths library gives other bits.
Torch is not loaded for this: where a process has it, it is asked, elsewhere only its version is looked up.
"""

from __future__ import annotations

import functools
import importlib.metadata
import os
import platform
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# Shown when they differ, but they take no part in the arithmetic.
INFORMATIVE = ("platform", "cpu_count")
_ENVIRONMENT = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_CBWR",
    "MKL_ENABLE_INSTRUCTIONS",
    "ATEN_CPU_CAPABILITY",
    "ONEDNN_MAX_CPU_ISA",
    "CUBLAS_WORKSPACE_CONFIG",
    "NVIDIA_TF32_OVERRIDE",
)
_NVIDIA = Path("/proc/driver/nvidia")


def fingerprint() -> dict[str, Any]:
    """Python, platform, CPU, versions, GPUs and the environment's settings; thread count and capability from torch."""
    facts = {**_machine(), **{name: os.environ.get(name) for name in _ENVIRONMENT}}
    return {**facts, **_of_torch()} if "torch" in sys.modules else facts


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """What differs, in words: first that which ends the promise of equal bits, then the rest.

    Only what both know is compared.
    """
    differing = [key for key in sorted(set(old) & set(new)) if old[key] != new[key]]
    told = {key: f"{key}: {old[key]!r} then, {new[key]!r} now" for key in differing}
    return (
        [text for key, text in told.items() if key not in INFORMATIVE],
        [text for key, text in told.items() if key in INFORMATIVE],
    )


@functools.cache
def _machine() -> dict[str, Any]:
    """What stays as it is while the process lives."""
    gpus = _gpus()
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "machine": platform.machine(),
        "cpu": _cpu_model(),
        "cpu_count": os.cpu_count(),
        "torch": _version("torch"),
        "numpy": _version("numpy"),
        "driver": _driver(),
        "gpu": gpus[0] if gpus else None,
        "gpu_count": len(gpus),
    }


def _of_torch() -> dict[str, Any]:
    import torch

    cuda = torch.cuda.is_available()
    return {
        "torch": str(torch.__version__),
        "threads": torch.get_num_threads(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "cuda": torch.version.cuda if cuda else None,
        "cudnn": torch.backends.cudnn.version() if cuda else None,  # type: ignore[no-untyped-call]
        "gpu": torch.cuda.get_device_name(0) if cuda else None,
        "gpu_count": torch.cuda.device_count() if cuda else 0,
    }


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cpu_model() -> str | None:
    for line in _lines(Path("/proc/cpuinfo")):
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.processor() or None


def _driver() -> str | None:
    """The kernel module's version, e.g. 580.82.07."""
    for line in _lines(_NVIDIA / "version"):
        words = line.split()
        if "NVRM" in line and "Module" in words[:-1]:
            return next((word for word in words[words.index("Module") + 1 :] if word[0].isdigit()), None)
    return None


def _gpus() -> list[str]:
    found = []
    for path in sorted(_NVIDIA.glob("gpus/*/information")):
        found += [line.partition(":")[2].strip() for line in _lines(path) if line.startswith("Model:")]
    return found


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(errors="replace").splitlines()
    except OSError:
        return []
