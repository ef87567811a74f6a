"""What the VM side costs: a boot without installs, and two daemons with nothing to do."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.project import BenchProject, until
from bridgehead import names, processes

BOOT_GOAL_S = 5.0
CPU_GOAL = 0.01  # of a core, both daemons together
MEMORY_GOAL_BYTES = 80e6
_SETTLE_S = 5.0
_IDLE_S = 30.0


def boot(project: BenchProject) -> Iterator[dict[str, Any]]:
    """Kill the VM and start the next one; from kernel ready to both daemons started, as the cell itself says."""
    project.command("vm", "kill")
    before = time.time()
    project.command("up", "--runtime", "local", "--tunnel", "none")
    total_s = time.time() - before
    until(lambda: len(_daemon_pids(project)) == len(names.DAEMONS), 30, "both daemons")
    cell = _kernel_start(project)
    started = [_started_at(pid) for pid in _daemon_pids(project)]
    boot_s = max(started) - cell
    yield {
        "bench": "boot without installs: kernel started -> both daemons started",
        "seconds": round(boot_s, 2),
        "with_kernel_and_cli_s": round(total_s, 2),
        "goal": f"< {BOOT_GOAL_S} s",
        "holds": boot_s < BOOT_GOAL_S,
    }


def idle(project: BenchProject) -> Iterator[dict[str, Any]]:
    """CPU over half a minute and PSS of both daemons, nothing queued, bridge up."""
    pids = _daemon_pids(project)
    time.sleep(_SETTLE_S)  # their own start-up is not idling
    before = sum(_cpu_s(pid) for pid in pids)
    time.sleep(_IDLE_S)
    share = (sum(_cpu_s(pid) for pid in pids) - before) / _IDLE_S
    memory = sum(_pss_bytes(pid) for pid in pids)
    yield {
        "bench": "both daemons idle",
        "core_share": round(share, 4),
        "pss_mb": round(memory / 1e6, 1),
        "goal": f"< {CPU_GOAL} of a core, < {MEMORY_GOAL_BYTES / 1e6:.0f} MB",
        "holds": share < CPU_GOAL and memory < MEMORY_GOAL_BYTES,
    }


def _daemon_pids(project: BenchProject) -> list[int]:
    home = project.vm_home()
    found = []
    for pid in processes.tagged(names.ENV_HOME, str(home)):
        words = processes.command_line(pid).split()
        if "-m" in words and words[-1] in [f"vm_daemons.{name}" for name in names.DAEMONS]:
            found.append(pid)
    return found


def _kernel_start(project: BenchProject) -> float:
    home = project.vm_home()
    kernels = [pid for pid in processes.tagged(names.ENV_HOME, str(home)) if "ipykernel" in processes.command_line(pid)]
    return min(_started_at(pid) for pid in kernels)


def _started_at(pid: int) -> float:
    boot_time = time.time() - float(Path("/proc/uptime").read_text().split()[0])
    return boot_time + processes.start_ticks(pid) / os.sysconf("SC_CLK_TCK")


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _pss_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0
