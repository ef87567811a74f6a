"""The checks of the preflight that are about the machine: room on its disks, memory, and the GPU."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bridgehead import names
from bridgehead.records import RunRecord
from vm_daemons import gauges
from vm_daemons.findings import PASS, REFUSE, WARN, Finding
from vm_daemons.home import VmHome

GB = 10**9
_LOW_BYTES = 2 * GB
_LOW_SHM_BYTES = 64 * 2**20  # Docker's default, at which data loaders with workers die
_MEMINFO = Path("/proc/meminfo")
_SHM = Path("/dev/shm")
_HALVES = ("bf16", "bfloat16")
_BEFORE_BF16 = ("T4", "V100", "P100", "P4", "K80", "RTX 20", "RTX20", "TITAN V")  # compute capability under 8.0


def disks(record: RunRecord, _home: VmHome, run_dir: Path) -> Iterator[Finding]:
    """Free bytes of the very folders that a stage writes into: statvfs of each, or of the nearest that is there."""
    cache = os.environ.get("HF_HOME") or os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    fresh = record.attempt == 1  # a later attempt may have its checkpoints here already
    output_bytes = max(_LOW_BYTES, record.spec.pins.stored_gb * GB if fresh else 0)
    yield _disk("output", run_dir, output_bytes)
    yield _disk("temp", Path(tempfile.gettempdir()), _LOW_BYTES)
    yield _disk("cache", Path(cache), _LOW_BYTES)
    if _SHM.is_dir():
        yield _disk("shm", _SHM, _LOW_SHM_BYTES, hint="num_workers=0 in data loaders")


def _disk(name: str, folder: Path, low_bytes: float, *, hint: str = "make room") -> Finding:
    there = next((place for place in (folder, *folder.parents) if place.is_dir()), Path("/"))
    free_bytes = shutil.disk_usage(there).free
    if free_bytes >= low_bytes:
        return Finding(f"disk {name}", PASS, f"{folder} has {free_bytes / GB:.1f} GB free")
    return Finding(f"disk {name}", WARN, f"{folder} has {free_bytes / 2**20:.0f} MiB free", hint)


def memory(record: RunRecord, _home: VmHome, _run_dir: Path) -> Iterator[Finding]:
    wanted_bytes = record.spec.needs.memory_gb * GB
    for line in _MEMINFO.read_text().splitlines():
        if line.startswith("MemAvailable:"):
            free_bytes = int(line.split()[1]) * 1024
            text = f"{free_bytes / GB:.1f} GB of memory are free"
            if free_bytes < wanted_bytes:
                text += f", and the stage declares {wanted_bytes / GB:.1f}"
                yield Finding("memory", WARN, text, "a high-memory VM, or smaller batches")
            else:
                yield Finding("memory", PASS, text)


def gpu(record: RunRecord, _home: VmHome, _run_dir: Path) -> Iterator[Finding]:
    """Its name against the one that the run was priced for, its memory, and bf16 when the config asks for it."""
    wanted_gb = record.spec.needs.gpu_memory_gb
    name = str((record.spec.pins.spec.get("resources") or {}).get("gpu") or "")
    smi = shutil.which("nvidia-smi")
    gpus = gauges.read_gpus(smi) if smi else []
    if not gpus and not wanted_gb and not name:
        yield Finding("gpu", PASS, "none is here, and none was asked for")
    elif not gpus:
        local = bool(os.environ.get(names.ENV_LOCAL_VM))
        text = f"no GPU is here, and the run is for {name or f'{wanted_gb:g} GB of one'}"
        yield Finding("gpu", WARN if local else REFUSE, text, "choose a GPU runtime, and run the cell again")
    else:
        yield from _of_these(gpus, name, wanted_gb, record.spec.config)


def _of_these(gpus: list[dict[str, Any]], name: str, wanted_gb: float, config: dict[str, Any]) -> Iterator[Finding]:
    have = [str(gpu.get("name", "")) for gpu in gpus]
    told = ", ".join(have)
    if name and not any(_plain(name) in _plain(text) for text in have):
        yield Finding("gpu", WARN, f"the run was priced for {name}, and this is {told}", "another price holds")
    else:
        yield Finding("gpu", PASS, told)
    largest_gb = max(float(gpu.get("memory_total_mb") or 0) for gpu in gpus) * 2**20 / GB
    if largest_gb < wanted_gb:
        text = f"{largest_gb:.1f} GB, and the stage declares {wanted_gb:g}"
        yield Finding("gpu memory", REFUSE, text, "a larger GPU")
    else:
        yield Finding("gpu memory", PASS, f"{largest_gb:.1f} GB")
    if not _asks_for_bf16(config):
        return
    if all(any(_plain(old) in _plain(text) for old in _BEFORE_BF16) for text in have):
        yield Finding("bf16", WARN, f"{told} has no bf16 of its own: it is emulated, slowly", "fp16 instead")
    else:
        yield Finding("bf16", PASS, f"{told} has it")


def _asks_for_bf16(config: dict[str, Any]) -> bool:
    return any(value in _HALVES for value in config.values()) or any(config.get(name) is True for name in _HALVES)


def _plain(text: str) -> str:
    return text.lower().replace(" ", "").replace("-", "")
