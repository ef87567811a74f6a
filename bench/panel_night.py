"""A project in the middle of a busy night: some VMs and runs in its ledger and in in/, and what they go on saying.

Written through the ledger's own methods and into the files that the bridge would write, so that whoever looks at the
project (the panel) does all the work that it does on a real one.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from bridge.ledger import Ledger
from bridge.ledger_rows import CommandRow
from bridgehead import names
from bridgehead.names import Ack, CheckpointLevel, RunState
from bridgehead.records import AckRecord, Heartbeat, Status
from run_control import project_file
from run_control.project import Project

TICK_S: Final = 0.25
LINES_PER_TICK: Final = 10
GIB: Final = 2**30
_TICKS_PER_BEAT: Final = 4  # a VM beats every five seconds, and there are five
_TOML = '[project]\nname = "night"\n\n[vm]\nlost_after_s = 3600\n\n[stages.train]\ncommand = "python train.py"\n'
_TOTAL_STEPS: Final = 60_000
_CURVE_POINTS: Final = 260
# Of each ten runs: six at work, two done, one that failed and one that waits.
_STATES: Final = (
    RunState.DONE, RunState.FAILED, RunState.DONE, RunState.RUNNING, RunState.RUNNING,
    RunState.RUNNING, RunState.RUNNING, RunState.RUNNING, RunState.RUNNING, RunState.QUEUED,
)  # fmt: skip


class Night:
    """`tick` says what a quarter of a second brings; `going` does that by itself. Close it when done."""

    def __init__(self, root: Path, *, vms: int = 5, runs: int = 20, log_lines: int = 10_000) -> None:
        """Makes the project in `root`, with `log_lines` lines in its logs together."""
        self.project = Project(root)
        self.vm_ids = [f"night-{number}" for number in range(1, vms + 1)]
        self._began = time.time()
        self._ticks = 0
        self._steps: dict[str, int] = {}
        self._make_files()
        self._ledger = Ledger(self.project.ledger)
        for number in range(vms):
            self._beat(number)
        rows = self._taken(runs)
        self.run_ids = [row.run_id for row in rows]
        self.running = [row for at, row in enumerate(rows) if _STATES[at % len(_STATES)] is RunState.RUNNING]
        for at, row in enumerate(rows):
            self._past(row, _STATES[at % len(_STATES)], log_lines // runs)

    def tick(self) -> None:
        """Ten lines of one run, a step and a status of one, progress of half; each second a VM's heartbeat."""
        now = self._ticks
        self._ticks += 1
        row = self.running[now % len(self.running)]
        self._log(row, LINES_PER_TICK)
        for other in self.running[now % 2 :: 2]:
            self._steps[other.run_id] += 3
            self._progress(other, self._steps[other.run_id])
        self._status(row, RunState.RUNNING)
        if now % _TICKS_PER_BEAT == 0:
            self._beat(now // _TICKS_PER_BEAT % len(self.vm_ids))

    @contextlib.contextmanager
    def going(self) -> Iterator[None]:
        """It goes on by itself, four ticks a second."""
        ended = threading.Event()

        def work() -> None:
            due = time.monotonic()
            while not ended.wait(max(0.0, due - time.monotonic())):
                self.tick()
                due = max(due + TICK_S, time.monotonic() - 1.0)  # after a standstill no burst of all that was missed

        thread = threading.Thread(target=work, name="bench-night", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join(20)

    def close(self) -> None:
        self._ledger.close()

    # --- what there is at the beginning ---------------------------------------------------------

    def _make_files(self) -> None:
        self.project.root.mkdir(parents=True, exist_ok=True)
        self.project.file.write_text(_TOML)
        (self.project.root / "train.py").write_text("")
        self.project.make_private()
        self.project.inbox.mkdir()
        self.project.queue.touch()

    def _taken(self, runs: int) -> list[CommandRow]:
        lines = [f"@{self.vm_ids[at % len(self.vm_ids)]} run:train seed={at}" for at in range(runs)]
        rows = self._ledger.take(list(enumerate(lines, 1)), project_file.load(self.project.root))
        with self.project.queue.open("a") as queue:
            queue.write("".join(f"# {line}\n" for line in lines))
        for vm_id in self.vm_ids:
            self._ledger.deliver(vm_id, 0)
        return [self._ledger.find_run(row.run_id) for row in rows]

    def _past(self, row: CommandRow, state: RunState, log_lines: int) -> None:
        if state is RunState.QUEUED:
            return
        folder = self.project.run(row.run_id)
        folder.mkdir(parents=True)
        self._steps[row.run_id] = step = _TOTAL_STEPS if state is RunState.DONE else 41_000 + 37 * row.seq
        self._ledger.ack(row.id, AckRecord(row.vm_id, Ack.STARTED, row.attempt))
        for point in range(_CURVE_POINTS):
            self._progress(row, step * point // _CURVE_POINTS, self._began - 2 * (_CURVE_POINTS - point))
        self._log(row, log_lines)
        self._status(row, state)
        if state in names.ENDED:
            told = AckRecord(row.vm_id, Ack.FINISHED, row.attempt, exit_code=int(state is RunState.FAILED), state=state)
            self._ledger.ack(row.id, told)

    # --- what they say ---------------------------------------------------------------------------

    def _log(self, row: CommandRow, count: int) -> None:
        step = self._steps[row.run_id]
        lines = [
            f"{time.strftime('%H:%M:%S')} INFO train step={step + number} loss={_loss(step + number):.5f} lr=2.100e-04"
            f" grad_norm={1 + number / 7:.3f} clips_per_s={4800 + number}\n"
            for number in range(count)
        ]
        with (self.project.run(row.run_id) / names.LOG).open("a") as handle:
            handle.write("".join(lines))

    def _progress(self, row: CommandRow, step: int, at: float | None = None) -> None:
        event = {
            "event": "progress",
            "at": time.time() if at is None else at,
            "attempt": row.attempt,
            "step": step,
            "total_steps": _TOTAL_STEPS,
            "metrics": {"loss": _loss(step), "accuracy": 0.95 - _loss(step) / 4},
        }
        with (self.project.run(row.run_id) / names.PROGRESS).open("a") as handle:
            handle.write(json.dumps(event) + "\n")

    def _status(self, row: CommandRow, state: RunState) -> None:
        step, now = self._steps[row.run_id], time.time()
        levels = {
            str(level): {"step": step - back, "level": str(level), "at": now - back / 3, "saved_at": now - back / 3}
            for level, back in (
                (CheckpointLevel.LOCAL, 10), (CheckpointLevel.MOUNTED, 210), (CheckpointLevel.CONFIRMED, 710),
            )
        }  # fmt: skip
        status = Status(
            row.run_id, row.stage, state, row.vm_id, row.attempt, step, _TOTAL_STEPS, 7, 10,
            {"loss": _loss(step), "accuracy": 0.95 - _loss(step) / 4}, message=f"epoch 7, step {step}",
            updated=now, levels=levels, saved_at=now - 70, started=self._began - 9000, progress_at=now, interval_s=0.5,
        )  # fmt: skip
        path = self.project.run(row.run_id) / names.STATUS
        temporary = path.with_name("status.new")
        temporary.write_text(json.dumps(status.to_json()))  # without the disk's word: the bench is not about disks
        os.replace(temporary, path)

    def _beat(self, number: int) -> None:
        wave = 0.5 + 0.5 * math.sin(self._ticks / 7 + number)
        gpu: dict[str, Any] = {"name": "NVIDIA A100-SXM4-40GB", "memory_total_mb": 40_960}
        gpu |= {"memory_used_mb": int(20_000 + 19_000 * wave), "use": round(0.5 + 0.49 * wave, 2)}
        now = time.time()
        self._ledger.heartbeat(
            Heartbeat(
                self.vm_ids[number], "boot", now, started=self._began - 9000 - 600 * number, cpu_count=12,
                memory_total_bytes=83 * GIB, memory_free_bytes=int((20 + 40 * wave) * GIB),
                disk_total_bytes=235 * GIB, disk_free_bytes=int((100 + 50 * wave) * GIB), gpus=[gpu],
                store={"ok": True, "path": "/drive", "total_bytes": 15 * GIB, "free_bytes": int(2 * GIB + GIB * wave)},
                cell_age_s=3.0, lifetime={"age_s": now - self._began + 9000 + 600 * number, "cap_s": 43_200.0},
            )
        )  # fmt: skip


def _loss(step: int) -> float:
    """Falls, with an unrest that is the same each time."""
    return 0.21 + 1.6 * math.exp(-4 * step / _TOTAL_STEPS) + 0.03 * math.sin(step * 1.7) * math.cos(step * 0.63)
