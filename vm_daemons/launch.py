"""Starting, finding and ending stage runners from outside.

A runner holds the lock on `runner.lock` of its run folder from before it is spawned until it is gone: the daemon takes
the lock and the runner inherits the open file. So a daemon that was killed and started again can tell a run that is
running from one that never started, at whatever moment it died.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from bridgehead import files, names, processes
from bridgehead.errors import UsageError
from bridgehead.records import ProcessRecord
from vm_daemons.home import VmHome

SHIP = Path(__file__).resolve().parent.parent  # the folder that holds our packages
ADOPT = "--adopt"
GPU_FILES = "/dev/nvidia"
_LOCK_WAIT_S = 2.0  # somebody who only looks whether the lock is held holds it for a moment


def start(
    home: VmHome, run_dir: Path, inputs: Mapping[str, Path], *, adopt: bool = False
) -> subprocess.Popen[bytes] | None:
    """Start the runner of a run folder that holds run.json; None when a live one has it already. Raises OSError."""
    fd = _take_lock(run_dir / names.RUNNER_LOCK)
    if fd is None:
        return None
    log = os.open(run_dir / names.LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        return subprocess.Popen(
            [sys.executable, "-m", "vm_daemons.stage_runner", *([ADOPT] if adopt else []), str(run_dir)],
            cwd=run_dir,
            env=_environment(home, inputs),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=(fd,),
            start_new_session=True,
        )
    finally:
        os.close(log)
        os.close(fd)


def is_running(run_dir: Path) -> bool:
    """Whether a live runner holds the run folder's lock."""
    try:
        fd = os.open(run_dir / names.RUNNER_LOCK, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(fd)


def process_record(run_dir: Path) -> ProcessRecord | None:
    """process.json when it is from this boot of the machine; an older one tells nothing about live pids."""
    data = files.read_json(run_dir / names.PROCESS)
    try:
        record = ProcessRecord.from_json(data)
    except UsageError:
        return None
    return record if record.boot_id == processes.boot_id() else None


def stage_lives(run_dir: Path) -> bool:
    """Whether the stage's own process lives, with or without its runner."""
    record = process_record(run_dir)
    return record is not None and processes.is_alive(record.stage_pid, record.stage_start)


def request_stop(run_dir: Path, why: str = "") -> bool:
    """Ask a stage to save and leave; asked a second time, its runner kills it.

    `why`: what asks, where that is no person. It is there before the signal is, so that a stop which a person asks for
    meanwhile is known to be the first of a person. False when the runner has not said yet who it is: ask again then.
    """
    record = process_record(run_dir)
    if record is None or not processes.is_alive(record.runner_pid, record.runner_start):
        return False
    if why:
        with contextlib.suppress(OSError):
            (run_dir / names.STOP_REQUEST).write_text(why + "\n", encoding="utf-8")
    (run_dir / names.STOP_REQUEST).touch()
    return processes.send(record.runner_pid, signal.SIGTERM, started_ticks=record.runner_start)


def kill(run_dir: Path) -> bool:
    """SIGKILL the runner first, so that it writes no exit record, then all that belongs to the run.

    False when something lives on: a runner that was just spawned has not said yet who it is. Call it again then.
    """
    record = process_record(run_dir)
    if record is not None:
        processes.send(record.runner_pid, signal.SIGKILL, started_ticks=record.runner_start)
    # While its leader lives, a session's number can't belong to anybody else.
    session = record.session if record is not None and stage_lives(run_dir) else 0
    for _ in range(3):  # a process that was forking may have left a child behind the first sweep
        for pid in members(run_dir, session):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    return not is_running(run_dir) and not members(run_dir, 0)


def members(run_dir: Path, session: int) -> list[int]:
    """Live processes that belong to a run: started with its folder in their environment, or in its session."""
    found = set(processes.tagged(names.ENV_RUN_DIR, str(run_dir)))
    found |= {pid for pid in processes.all_pids() if _is_runner(pid, run_dir)}
    if session > 0:
        found |= {pid for pid in processes.all_pids() if processes.session_of(pid) == session}
    found.discard(os.getpid())
    return sorted(pid for pid in found if processes.start_ticks(pid))


def gpu_holders(prefix: str = "") -> list[int]:
    """Live processes that have a GPU open, other than this one; those that we may not look into are not seen."""
    return [pid for pid in processes.all_pids() if pid != os.getpid() and _has_open(pid, prefix or GPU_FILES)]


def is_of_a_run(pid: int) -> bool:
    """Whether it was started with a run folder in its environment: a stage of ours, this run's or another's."""
    try:
        return f"\0{names.ENV_RUN_DIR}=".encode() in b"\0" + Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False


def _has_open(pid: int, prefix: str) -> bool:
    try:
        for entry in os.scandir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):  # closed this moment
                if os.readlink(entry.path).startswith(prefix):
                    return True
    except OSError:  # gone, or another user's
        pass
    return False


def _is_runner(pid: int, run_dir: Path) -> bool:
    """Whether it is a runner of this folder; its record and its lock may have been removed with the folder."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return b"vm_daemons.stage_runner" in words and os.fsencode(run_dir) in words


def _take_lock(path: Path) -> int | None:
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    for _ in _until(time.monotonic() + _LOCK_WAIT_S):
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return fd
    os.close(fd)
    return None


def _until(deadline: float) -> Iterator[None]:
    while True:
        yield
        if time.monotonic() > deadline:
            return
        time.sleep(0.02)


def _environment(home: VmHome, inputs: Mapping[str, Path]) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": str(SHIP),
        "PYTHONSAFEPATH": "1",
        names.ENV_HOME: str(home.root),
        names.ENV_INPUTS: json.dumps({stage: str(folder) for stage, folder in inputs.items()}),
    }
