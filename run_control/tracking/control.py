"""Starting, finding and stopping the process that tells the sinks; and what `status` says of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

from bridgehead import files, names, processes
from run_control import locks
from run_control.bridge_control import detached_environment
from run_control.project import Project
from run_control.tracking.spec import TrackingSpec, missing

UNTRACKED: Final = "runs are not told to"  # how each line about a sink begins
STOP_TIMEOUT_S: Final = 12.0
_MODULE = "run_control.tracking.follower"


def folder(project: Project) -> Path:
    return project.private / names.TRACKING


def lock_path(project: Project) -> Path:
    """Held while somebody tells the sinks; says who."""
    return folder(project) / "follower.lock"


def record_path(project: Project) -> Path:
    """{"v", "sinks": {name: {"trouble", "next"}}}; there from the follower's start to its end in order."""
    return folder(project) / "follower.json"


def ensure(project: Project, spec: TrackingSpec) -> list[str]:
    """Start the follower when sinks are named and none lives. Never raises: what is wrong comes back as lines."""
    if not spec.sinks:
        return []
    lines = [
        f"{UNTRACKED} {kind}: the package {kind} is not installed. next: {command}"
        for kind in spec.sinks
        if (command := missing(kind))
    ]
    if live(project):
        return lines
    try:
        _spawn(project)
    except OSError as error:
        return [*lines, f"{UNTRACKED} {', '.join(spec.sinks)}: the follower can't be started: {error.strerror}"]
    return lines


def live(project: Project) -> int:
    """The follower's pid; 0 when none lives."""
    pid, start = _holder(project)
    return pid if processes.is_alive(pid, start) else 0


def stop(project: Project) -> bool:
    """End the follower and the processes of its sinks. Returns whether there was one."""
    pid, start = _holder(project)
    if not processes.is_alive(pid, start):
        return False
    below = {child: processes.start_ticks(child) for child in processes.descendants(pid)}
    processes.send(pid, signal.SIGTERM, started_ticks=start)
    deadline = time.monotonic() + STOP_TIMEOUT_S
    while processes.is_alive(pid, start) and time.monotonic() < deadline:
        time.sleep(0.02)
    for child, ticks in {pid: start, **below}.items():
        processes.send(child, processes.KILL, started_ticks=ticks)
    record_path(project).unlink(missing_ok=True)
    return True


def troubles(project: Project) -> list[str]:
    """A line for each sink that is not told, with what to do; the runs themselves take no notice."""
    record = files.read_json(record_path(project))
    sinks = record.get("sinks") if isinstance(record, dict) else None
    if not isinstance(sinks, dict) or not sinks:
        return []
    if not live(project):
        return [f"{UNTRACKED} {', '.join(map(str, sinks))}: the follower has ended. next: bridgehead up"]
    return [_line(str(name), found) for name, found in sinks.items() if isinstance(found, dict) and found["trouble"]]


def _line(name: str, found: dict[str, Any]) -> str:
    return f"{UNTRACKED} {name}: {found['trouble']}" + (f". next: {found['next']}" if found.get("next") else "")


def _holder(project: Project) -> tuple[int, int]:
    """Pid and start of the one that has written itself into the lock file, or that is on its way there."""
    holder = _process(locks.described(lock_path(project)))
    return holder if processes.is_alive(*holder) else _process(files.read_json(_started_path(project)))


def _process(values: Any) -> tuple[int, int]:
    """(0, 0) for one of another boot, and for what is none."""
    if not isinstance(values, dict) or values.get("boot_id") != processes.boot_id():
        return 0, 0
    pid, start = values.get("pid"), values.get("start")
    return (pid, start) if type(pid) is int and type(start) is int else (0, 0)


def _started_path(project: Project) -> Path:
    """The process that `up` has started: it may be told to end before it has its lock."""
    return folder(project) / "started.json"


def _spawn(project: Project) -> None:
    """Waits for nothing. Raises OSError."""
    folder(project).mkdir(mode=0o700, parents=True, exist_ok=True)
    log = os.open(folder(project) / "follower.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        pid = subprocess.Popen(
            [sys.executable, "-m", _MODULE, str(project.root)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=project.root,
            env=detached_environment(),
            start_new_session=True,
        ).pid
    finally:
        os.close(log)
    record = {
        "v": names.RECORD_VERSION,
        "pid": pid,
        "start": processes.start_ticks(pid),
        "boot_id": processes.boot_id(),
    }
    files.write_json(_started_path(project), record, mode=0o600)
