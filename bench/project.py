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

[stages.flood]
command = "python flood.py"
cpus = 0.1

[stages.steps]
command = "python steps.py"
cpus = 0.3

[stages.steps.config]
marks = {marks}
"""
_STAMP = "date +%s.%N >> {stamps}\n"
_LINES = """\
import time
for number in range(200):
    print(f"{number} {time.time():.6f}", flush=True)
    time.sleep(0.05)
"""
FLOOD = """\
import sys, time
import bridgehead
run = bridgehead.current_run()
rate, seconds = int(run.config.get("rate", 10_000)), float(run.config.get("seconds", 10))
begin, n = time.monotonic(), 0
while time.monotonic() - begin < seconds and not run.should_stop:
    due = int((time.monotonic() - begin) * rate)
    sys.stdout.write("".join(f"flood line {number}\\n" for number in range(n, due)))
    sys.stdout.flush()
    n = max(n, due)
    time.sleep(0.05)
print(f"FLOOD-END {n}", flush=True)
if run.should_stop:
    run.exit_stopped()
run.results({"lines": float(n)})
"""
# With AdamW's two moments 12 MiB.
BUILD = """\
import torch
torch.set_num_threads(1)
model = torch.nn.Sequential(*[torch.nn.Linear(512, 512, bias=False) for _ in range(4)])
optimizer = torch.optim.AdamW(model.parameters())
"""
# Each process marks its steps in a file of its own, outside of the VM.
_STEPS = """\
import os, pathlib, time
import bridgehead
from bridgehead import torch_state
run = bridgehead.current_run()
parts = {"model": model, "optimizer": optimizer}
saved = run.latest_checkpoint()
step = torch_state.load(saved, parts) if saved else 0
marks = pathlib.Path(run.config["marks"], f"{time.time():.6f}-{os.getpid()}").open("w", buffering=1)
while not run.should_stop:
    optimizer.zero_grad()
    model(torch.ones(1, 512)).square().sum().backward()
    optimizer.step()
    step += 1
    marks.write(f"{step} {time.time():.6f}\\n")
    if step % 50 == 0:
        with run.checkpoint(step) as folder:
            torch_state.save(folder, parts, position=step)
        run.progress(step=step)
    time.sleep(0.02)
run.exit_stopped()
"""


@dataclass(frozen=True)
class BenchProject:
    root: Path
    stamps: Path  # one time per started `stamp` stage
    marks: Path  # a folder: one file per process of a `steps` stage, one line per step

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
    project = BenchProject(root, root / "stamps", root / "marks")
    try:
        project.command("init", str(root))
        project.marks.mkdir()
        (root / names.PROJECT_FILE).write_text(_TOML.format(marks=json.dumps(str(project.marks))))
        (root / "stamp.sh").write_text(_STAMP.format(stamps=project.stamps))
        (root / "lines.py").write_text(_LINES)
        (root / "flood.py").write_text(FLOOD)
        (root / "steps.py").write_text(BUILD + _STEPS)
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
