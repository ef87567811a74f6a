"""The same CPU-bound script bare and under the stage runner, in turn: the runner must stay out of its way."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bridgehead import files, names
from bridgehead.records import RunRecord, StageSpec
from vm_daemons.home import VmHome

GOAL = 0.99
_PAIRS = 6
_SCRIPT = """\
import time
start = time.perf_counter()
total = 0
for number in range(400):
    total += sum(i * i for i in range(100_000))
    print("step", number, flush=True)
print("seconds", time.perf_counter() - start)
"""


def speed() -> Iterator[dict[str, Any]]:
    """Alternates bare and supervised runs and takes the best of each: noise only ever slows a run down."""
    with tempfile.TemporaryDirectory(prefix="bridgehead-bench-") as name:
        home = Path(name)
        VmHome(home).create()
        script = home / names.VM_PAYLOAD / "work.py"
        script.write_text(_SCRIPT)
        bare, supervised = [], []
        for number in range(_PAIRS):
            bare.append(_bare(script, home / "bare.log"))
            supervised.append(_supervised(home, number + 1))
    ratio = min(bare) / min(supervised)
    yield {
        "bench": "a stage under the runner against the same script bare",
        "bare_s": round(min(bare), 3),
        "under_runner_s": round(min(supervised), 3),
        "ratio": round(ratio, 4),
        "goal": f">= {GOAL} of its speed",
        "holds": ratio >= GOAL,
    }


def _bare(script: Path, log: Path) -> float:
    with log.open("wb") as handle:
        subprocess.run([sys.executable, str(script)], stdout=handle, check=True, timeout=120)
    return _seconds(log)


def _supervised(home: Path, number: int) -> float:
    folder = home / names.VM_RUNS / f"work-{number:04d}-abcdef"
    folder.mkdir(parents=True)
    spec = StageSpec("work", "python work.py")
    record = RunRecord(folder.name, "work", "bench", "c", 1, "vm-bench", time.time(), spec)
    files.write_json(folder / names.RUN_RECORD, record.to_json())
    env = {**os.environ, names.ENV_HOME: str(home), "PYTHONPATH": str(Path(__file__).parents[1])}
    argv = [sys.executable, "-m", "vm_daemons.stage_runner", str(folder)]
    subprocess.run(argv, env=env, check=True, timeout=120)
    return _seconds(folder / names.LOG)


def _seconds(log: Path) -> float:
    return float(log.read_text().split()[-1])
