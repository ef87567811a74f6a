"""Who a process is: a pid alone says little, since pids are reused.

VMs are Linux, and everything here works there from /proc. Laptops need `is_alive` and `send` alone, which also
work without /proc: on macOS through `ps`, on Windows through its own call.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import zlib
from collections.abc import Iterable
from pathlib import Path

_PROC = Path("/proc")
KILL = getattr(signal, "SIGKILL", signal.SIGTERM)  # Windows knows no other way to end a process


def boot_id() -> str:
    """The kernel's id of this boot; changes when the machine restarts."""
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return "no-boot-id"


def start_ticks(pid: int) -> int:
    """When `pid` started, in clock ticks since boot; 0 when there is no such process or it is a zombie.

    Without /proc another number that stays the same while the process lives.
    """
    if not _PROC.is_dir():
        return _windows_start(pid) if os.name == "nt" else _ps_start(pid)
    try:
        text = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return 0
    fields = text.rpartition(")")[2].split()
    return 0 if fields[0] in ("Z", "X") else int(fields[19])


def session_of(pid: int) -> int:
    """The session id of `pid`, 0 when it is gone."""
    try:
        return int((_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[3])
    except (OSError, IndexError):
        return 0


def is_alive(pid: int, started_ticks: int) -> bool:
    """Whether the very process (pid and start time) still lives."""
    return pid > 0 and started_ticks > 0 and start_ticks(pid) == started_ticks


def all_pids() -> list[int]:
    """Every process; none where there is no /proc."""
    if not _PROC.is_dir():
        return []
    return [int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit()]


def descendants(root: int) -> set[int]:
    """Live children of `root`, their children, and so on."""
    parents: dict[int, list[int]] = {}
    for pid in all_pids():
        with contextlib.suppress(OSError, IndexError):
            fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
            if fields[0] not in ("Z", "X"):
                parents.setdefault(int(fields[1]), []).append(pid)
    found: set[int] = set()
    waiting = [root]
    while waiting:
        fresh = [pid for pid in parents.get(waiting.pop(), []) if pid not in found]
        found.update(fresh)
        waiting += fresh
    return found


def environment_has(pid: int, name: str, value: str) -> bool:
    """Whether the environment that `pid` was started with holds name=value."""
    try:
        block = (_PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return False
    return f"{name}={value}".encode() in block.split(b"\0")


def tagged(name: str, value: str, *, but_not: Iterable[int] = ()) -> list[int]:
    """All live processes of ours that were started with name=value in their environment."""
    skip = {os.getpid(), *but_not}
    return [pid for pid in all_pids() if pid not in skip and start_ticks(pid) and environment_has(pid, name, value)]


def command_line(pid: int) -> str:
    """Short text for a report; never more than 120 characters."""
    try:
        raw = (_PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return "?"
    return raw.replace(b"\0", b" ").decode(errors="replace").strip()[:120]


def send(pid: int, sig: signal.Signals, *, started_ticks: int) -> bool:
    """Signal the very process; False when it is gone or the pid now belongs to another."""
    if not is_alive(pid, started_ticks):
        return False
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, sig)
        return True
    return False


def _ps_start(pid: int) -> int:
    """From `ps`: a number made of the start time that it prints."""
    argv = ["ps", "-o", "stat=", "-o", "lstart=", "-p", str(pid)]
    shown = subprocess.run(
        argv, capture_output=True, text=True, timeout=10, check=False, env={**os.environ, "LC_ALL": "C"}
    )
    state, _, started = shown.stdout.strip().partition(" ")
    return 0 if not started or state.startswith("Z") else zlib.crc32(started.strip().encode()) + 1


if sys.platform == "win32":
    import ctypes

    _QUERY_LIMITED_INFORMATION = 0x1000

    def _windows_start(pid: int) -> int:
        """The creation time that Windows keeps, in 100 ns units. Not tried on a real Windows yet."""
        kernel32 = ctypes.windll.kernel32
        handle = kernel32.OpenProcess(_QUERY_LIMITED_INFORMATION, 0, pid)
        if not handle:
            return 0
        try:
            times = [ctypes.c_ulonglong() for _ in range(4)]  # creation, exit, kernel, user
            if not kernel32.GetProcessTimes(handle, *(ctypes.byref(item) for item in times)):
                return 0
            return 0 if times[1].value else times[0].value
        finally:
            kernel32.CloseHandle(handle)

else:

    def _windows_start(pid: int) -> int:
        return 0
