"""Run folders and stage runners for tests: real processes on a VM home in a temp folder."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import bridgehead
from bridgehead import files, names, processes
from bridgehead.records import ExitRecord, RunRecord, StageSpec
from support import wait_until
from vm_daemons import launch
from vm_daemons.home import VmHome

SHIP = "5" * 64


def vm_home(root: Path, *, store: Path | None = None) -> VmHome:
    """A home as boot leaves it: folders, vm.json, and the API folder that user code gets on its path."""
    home = VmHome(root)
    home.create()
    home.update_record(project="demo", ship_sha256=SHIP, store=str(store or ""))
    home.api(SHIP).mkdir(parents=True)
    (home.api(SHIP) / "bridgehead").symlink_to(Path(bridgehead.__file__).parent)
    return home


def python(code: str) -> str:
    """A stage's command line that runs this Python text."""
    return f"python -c {shlex.quote(code)}"


def run_folder(
    home: VmHome,
    command: str,
    *,
    run_id: str = "train-0001-abc123",
    stage: str = "train",
    attempt: int = 1,
    **spec: object,
) -> Path:
    """A run folder with run.json, ready to be started."""
    run_dir = home.run(run_id)
    run_dir.mkdir(parents=True, exist_ok=True)
    stage_spec = StageSpec(stage, command, **spec)  # type: ignore[arg-type]
    vm_id = str(home.record()["vm_id"])
    record = RunRecord(run_id, stage, "demo", "c" * 32, attempt, vm_id, time.time(), stage_spec, ship_sha256=SHIP)
    files.write_json(run_dir / names.RUN_RECORD, record.to_json())
    return run_dir


@contextlib.contextmanager
def runner(home: VmHome, run_dir: Path, *, adopt: bool = False) -> Iterator[subprocess.Popen[bytes]]:
    """A started stage runner; it and all it started are gone afterwards."""
    process = launch.start(home, run_dir, {}, adopt=adopt)
    assert process is not None, "another runner holds the lock"
    try:
        yield process
    finally:
        process.kill()
        process.wait(100)
        kill_tagged(run_dir)


def run_to_the_end(home: VmHome, run_dir: Path, timeout_s: float = 20.0) -> ExitRecord:
    with runner(home, run_dir) as process:
        assert process.wait(timeout_s) == 0, log_of(run_dir)
        return exit_of(run_dir)


def exit_of(run_dir: Path) -> ExitRecord:
    return ExitRecord.from_json(files.read_json(run_dir / names.EXIT))


def wait_for_stage(run_dir: Path) -> int:
    """The stage's pid, once its process is there."""
    wait_until(lambda: launch.stage_lives(run_dir), what="the stage's process")
    record = launch.process_record(run_dir)
    assert record is not None
    return record.stage_pid


def wait_for_log(run_dir: Path, text: str, timeout_s: float = 10.0) -> None:
    wait_until(lambda: text in log_of(run_dir), timeout_s, what=f"{text!r} in the log")


def log_of(run_dir: Path) -> str:
    path = run_dir / names.LOG
    return path.read_bytes().decode(errors="replace") if path.exists() else ""


def kill_tagged(run_dir: Path) -> None:
    for pid in processes.tagged(names.ENV_RUN_DIR, str(run_dir)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def is_gone(pid: int) -> bool:
    return processes.start_ticks(pid) == 0
