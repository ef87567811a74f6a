"""How the VM is: memory, disk, load and GPUs, read from /proc and nvidia-smi."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

GPU_EVERY_S = 10.0
_GPU_TIMEOUT_S = 8.0
_QUERY = "name,memory.total,memory.used,utilization.gpu"


class Gauges:
    """`snapshot()` never blocks: nvidia-smi runs in a thread of its own, since a sick driver can hang it for good."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._gpus: list[dict[str, Any]] = []
        self._stop = threading.Event()
        self._smi = shutil.which("nvidia-smi")

    def start(self) -> None:
        if self._smi is not None:
            threading.Thread(target=self._watch_gpus, args=(self._smi,), name="gpus", daemon=True).start()

    def stop(self) -> None:
        self._stop.set()

    def snapshot(self) -> dict[str, Any]:
        """The gauge fields of a Heartbeat."""
        total_bytes, free_bytes = memory()
        disk_total_bytes, disk_free_bytes = disk(self._folder)
        return {
            "cpu_count": os.cpu_count() or 0,
            "load": round(os.getloadavg()[0], 2),
            "memory_total_bytes": total_bytes,
            "memory_free_bytes": free_bytes,
            "disk_total_bytes": disk_total_bytes,
            "disk_free_bytes": disk_free_bytes,
            "gpus": self._gpus,
        }

    def _watch_gpus(self, smi: str) -> None:
        while True:
            self._gpus = read_gpus(smi)
            if self._stop.wait(GPU_EVERY_S):
                return


def memory() -> tuple[int, int]:
    """Total and available bytes; (0, 0) where /proc does not tell."""
    values: dict[str, int] = {}
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            name, _, rest = line.partition(":")
            if name in ("MemTotal", "MemAvailable"):
                values[name] = int(rest.split()[0]) * 1024
    except (OSError, ValueError, IndexError):
        return 0, 0
    return values.get("MemTotal", 0), values.get("MemAvailable", 0)


def disk(folder: Path) -> tuple[int, int]:
    """Total and free bytes of the disk that holds `folder`."""
    try:
        stat = os.statvfs(folder)
    except OSError:
        return 0, 0
    return stat.f_blocks * stat.f_frsize, stat.f_bavail * stat.f_frsize


def read_gpus(smi: str, timeout_s: float = _GPU_TIMEOUT_S) -> list[dict[str, Any]]:
    """One record per GPU; empty when nvidia-smi fails."""
    command = [smi, f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout_s, stdin=subprocess.DEVNULL, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return [gpu for line in done.stdout.splitlines() if (gpu := _gpu(line)) is not None]


def _gpu(line: str) -> dict[str, Any] | None:
    fields = [field.strip() for field in line.rsplit(",", 3)]
    if len(fields) != 4:
        return None
    name, *numbers = fields
    # "[N/A]" stands where a card or a driver does not tell.
    total, used, use = (float(number) if number.replace(".", "", 1).isdigit() else 0.0 for number in numbers)
    return {"name": name, "memory_total_mb": int(total), "memory_used_mb": int(used), "use": round(use / 100, 2)}


def age_s(path: Path) -> float | None:
    """Seconds since `path` was touched; None when it is not there."""
    try:
        return max(0.0, time.time() - path.stat().st_mtime)
    except OSError:
        return None
