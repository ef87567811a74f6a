"""A throw-away project with a local notebook VM, driven by the public commands alone."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bridgehead import names

_TOML = """\
[project]
name = "bench"

[payload]
include = ["*.sh", "*.py"]

[vm]
requirements = []

[stages.stamp]
command = "sh stamp.sh"
cpus = 0.1

[stages.lines]
command = "python lines.py"
cpus = 0.1
"""
_STAMP = "date +%s.%N >> {stamps}\n"
_LINES = """\
import time
for number in range(200):
    print(f"{number} {time.time():.6f}", flush=True)
    time.sleep(0.05)
"""


@dataclass(frozen=True)
class BenchProject:
    root: Path
    stamps: Path  # one time per started `stamp` stage

    def command(self, *args: str) -> dict[str, Any]:
        """Run a public command with --json and return its data."""
        argv = [sys.executable, "-m", "run_control.cli", "--project", str(self.root), *args, "--json"]
        result = subprocess.run(argv, capture_output=True, text=True, timeout=180)
        if result.returncode != 0:
            raise RuntimeError(f"{' '.join(args)} exited {result.returncode}: {result.stdout}{result.stderr}")
        answer: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
        data: dict[str, Any] = answer["data"]
        return data

    def queue(self, line: str) -> float:
        """Append a line to queue.txt as a person's editor would; return when it was written."""
        with (self.root / names.QUEUE_FILE).open("a") as handle:
            handle.write(line + "\n")
        return time.time()

    def vm_home(self) -> Path:
        """The working folder of the one live local VM."""
        place = f"{names.PRIVATE_FOLDER}/vms/*/content/bridgehead/{names.VM_STATE}/{names.VM_RECORD}"
        until(lambda: list(self.root.glob(place)), 60, "the VM's boot")
        (record,) = self.root.glob(place)
        return record.parents[1]


@contextlib.contextmanager
def bench_project() -> Iterator[BenchProject]:
    """Bridge and VM up; both gone afterwards, whatever happens in between."""
    root = Path(tempfile.mkdtemp(prefix="bridgehead-bench-"))
    project = BenchProject(root, root / "stamps")
    try:
        project.command("init", str(root))
        (root / names.PROJECT_FILE).write_text(_TOML)
        (root / "stamp.sh").write_text(_STAMP.format(stamps=project.stamps))
        (root / "lines.py").write_text(_LINES)
        project.command("up", "--runtime", "local", "--tunnel", "none", "--port", "0")
        yield project
    finally:
        project.command("down")
        shutil.rmtree(root, ignore_errors=True)


def until(predicate: Callable[[], Any], timeout_s: float, what: str) -> Any:
    """Poll every 2 ms; RuntimeError after the deadline."""
    deadline = time.monotonic() + timeout_s
    while not (value := predicate()):
        if time.monotonic() > deadline:
            raise RuntimeError(f"waited {timeout_s} s for {what}")
        time.sleep(0.002)
    return value


def quantile(values: list[float], fraction: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(fraction * len(ordered)))]
