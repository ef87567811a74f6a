"""The three daemons as processes: start, take over, stop.

A daemon holds its lock file from before it exists until it is gone: the spawner takes the lock and hands the open file
on. So two cells, or a cell and a forgotten daemon, never make two of one, and a stale pid file misleads nobody.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from bridgehead import files, names, processes
from vm_daemons.home import VmHome

CELL_MARK = "cell.json"  # touched by the cell's heartbeat
CONTACT_MARK = "contact"  # touched when the laptop answered: at boot, and at each heartbeat
GOODBYE_MARK = "goodbye"  # touched when it answered a heartbeat that says that this VM gives itself back
STOP_GRACE_S = 10.0
_SCRUBBED_PREFIXES = ("JPY_", "COLAB_")
_SCRUBBED = ("MPLBACKEND", names.ENV_PAIRING)
_children: dict[int, subprocess.Popen[bytes]] = {}  # so that one that died is reaped and not taken for alive


def ensure(home: VmHome) -> dict[str, str]:
    """Start what does not run; replace what runs from another ship. Daemon name → what was found or done."""
    return {name: _ensure_one(home, name) for name in names.DAEMONS}


def stop(home: VmHome) -> None:
    """SIGTERM, and after STOP_GRACE_S SIGKILL. Stages go on."""
    for name in names.DAEMONS:
        _stop_one(home, name)


def running(home: VmHome, name: str) -> dict[str, Any] | None:
    """The pid record of a live daemon, None when it does not run."""
    _reap()
    record = files.read_json(pid_file(home, name))
    if isinstance(record, dict) and record.get("boot_id") == processes.boot_id():
        if processes.is_alive(int(record.get("pid", 0)), int(record.get("start_ticks", 0))):
            return record
    return _unrecorded(home, name)


def pid_file(home: VmHome, name: str) -> Path:
    return home.state / f"{name}.pid.json"


def log_file(home: VmHome, name: str) -> Path:
    return home.state / f"{name}.log"


def environment(home: VmHome, ship: Path) -> dict[str, str]:
    """What a daemon starts with: the kernel's own settings would break matplotlib and IPython in its children."""
    kept = {
        key: value
        for key, value in os.environ.items()
        if key not in _SCRUBBED and not key.startswith(_SCRUBBED_PREFIXES)
    }
    return {**kept, names.ENV_HOME: str(home.root), "PYTHONPATH": str(ship), "PYTHONSAFEPATH": "1"}


def _unrecorded(home: VmHome, name: str) -> dict[str, Any] | None:
    """A daemon whose spawner was killed before it could write the pid file."""
    for pid in processes.tagged(names.ENV_HOME, str(home.root)):
        if f"-m {_module(name)}" in processes.command_line(pid):
            return {"pid": pid, "start_ticks": processes.start_ticks(pid)}
    return None


def _ensure_one(home: VmHome, name: str) -> str:
    ship_sha256 = str(home.record().get("ship_sha256", ""))
    lock = _try_lock(home, name)
    said = "started"
    if lock is None:
        record = running(home, name)
        if record is not None and record.get("ship_sha256") == ship_sha256:
            return "running"
        _stop_one(home, name)
        lock, said = _wait_for_lock(home, name), "restarted because the ship changed"
        if lock is None:
            return "still held by another process"
    try:
        _spawn(home, name, ship_sha256, lock)
    finally:
        os.close(lock)
    return said


def _spawn(home: VmHome, name: str, ship_sha256: str, lock: int) -> None:
    with log_file(home, name).open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", _module(name)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=home.root,
            env=environment(home, home.ship(ship_sha256)),
            start_new_session=True,  # survives interrupt, restart, shutdown and SIGKILL of the kernel
            pass_fds=(lock,),
        )
    _children[process.pid] = process
    files.write_json(
        pid_file(home, name),
        {
            "v": names.RECORD_VERSION,
            "pid": process.pid,
            "start_ticks": processes.start_ticks(process.pid),
            "boot_id": processes.boot_id(),
            "ship_sha256": ship_sha256,
            "started": time.time(),
        },
    )


def _stop_one(home: VmHome, name: str) -> None:
    record = running(home, name)
    if record is None:
        return
    pid, ticks = int(record["pid"]), int(record["start_ticks"])
    processes.send(pid, signal.SIGTERM, started_ticks=ticks)
    if not _wait_gone(pid, ticks, STOP_GRACE_S):
        processes.send(pid, signal.SIGKILL, started_ticks=ticks)
        _wait_gone(pid, ticks, STOP_GRACE_S)


def _wait_gone(pid: int, ticks: int, timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while processes.is_alive(pid, ticks):
        _reap()
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    _reap()
    return True


def _try_lock(home: VmHome, name: str) -> int | None:
    """The open, locked lock file, or None when a live process holds it."""
    fd = os.open(home.state / f"{name}.lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd


def _wait_for_lock(home: VmHome, name: str) -> int | None:
    deadline = time.monotonic() + STOP_GRACE_S
    while (lock := _try_lock(home, name)) is None and time.monotonic() < deadline:
        time.sleep(0.02)
    return lock


def _module(name: str) -> str:
    return f"vm_daemons.{name}"


def _reap() -> None:
    for pid in [pid for pid, process in _children.items() if process.poll() is not None]:
        del _children[pid]
