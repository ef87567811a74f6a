"""From a saved queue line to a started process, and from a log line on the VM to the laptop."""

from __future__ import annotations

import functools
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench.project import BenchProject, quantile, until
from bridgehead import names

QUEUE_GOAL_S = 0.3  # median
LOG_GOAL_S = 0.5  # p95
_ROUNDS = 20


def queue_line_to_process(project: BenchProject) -> Iterator[dict[str, Any]]:
    """Each round waits for the process before; the baseline spawns the same script from here."""
    waits = []
    for number in range(_ROUNDS):
        written = project.queue("run:stamp")
        started = until(functools.partial(_stamps, project.stamps, number + 1), 30, "the stage to start")[-1]
        waits.append(started - written)
    bare = [_bare_spawn(project) for _ in range(_ROUNDS)]
    median = quantile(waits, 0.5)
    yield {
        "bench": "queue line -> stage process started",
        "median_s": round(median, 4),
        "p95_s": round(quantile(waits, 0.95), 4),
        "bare_spawn_median_s": round(quantile(bare, 0.5), 4),
        "ratio": round(median / quantile(bare, 0.5), 1),
        "goal": f"median < {QUEUE_GOAL_S} s",
        "holds": median < QUEUE_GOAL_S,
    }


def log_line_to_laptop(project: BenchProject) -> Iterator[dict[str, Any]]:
    """Lines carry the time they were written; the baseline reads the very file on the VM in the same way."""
    project.queue("run:lines")
    seen_local = _Tail(lambda: _newest(project.vm_home() / names.VM_RUNS))
    seen_laptop = _Tail(lambda: _newest(project.root / names.IN_FOLDER))
    deadline = time.monotonic() + 60
    while len(seen_laptop.delays) < 200 and time.monotonic() < deadline:
        seen_local.read()
        seen_laptop.read()
        time.sleep(0.002)
    p95, bare = quantile(seen_laptop.delays, 0.95), quantile(seen_local.delays, 0.95)
    yield {
        "bench": "log line written -> readable on the laptop",
        "lines": len(seen_laptop.delays),
        "median_s": round(quantile(seen_laptop.delays, 0.5), 4),
        "p95_s": round(p95, 4),
        "bare_tail_p95_s": round(bare, 4),
        "goal": f"p95 < {LOG_GOAL_S} s, no line missing",
        "holds": p95 < LOG_GOAL_S and len(seen_laptop.delays) == 200,
    }


class _Tail:
    """Reads what was added to a log and notes how old each stamped line is by then."""

    def __init__(self, find: Callable[[], Path | None]) -> None:
        self.find = find
        self.path: Path | None = None
        self.offset, self.rest = 0, b""
        self.delays: list[float] = []

    def read(self) -> None:
        self.path = self.path or self.find()
        if self.path is None:
            return
        with self.path.open("rb") as handle:
            handle.seek(self.offset)
            data = handle.read()
        now = time.time()
        self.offset += len(data)
        *lines, self.rest = (self.rest + data).split(b"\n")
        for line in lines:
            words = line.split()
            if len(words) == 2 and words[0].isdigit():
                self.delays.append(now - float(words[1]))


def _newest(folder: Path) -> Path | None:
    found = list(folder.glob(f"lines-*/{names.LOG}"))
    return found[-1] if found else None


def _stamps(path: Path, count: int) -> list[float]:
    lines = path.read_text().split() if path.exists() else []
    return [float(line) for line in lines] if len(lines) >= count else []


def _bare_spawn(project: BenchProject) -> float:
    before = time.time()
    subprocess.run(["sh", "stamp.sh"], cwd=project.root, check=True, timeout=30)
    return float(project.stamps.read_text().split()[-1]) - before
