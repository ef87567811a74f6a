"""Disks that can be filled, folders that can be bound elsewhere, clocks that can jump: what faults need of the machine.

Small disks are tmpfs mounts, which only root may make; elsewhere they are plain folders
and the faults that need them say so.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path

BALLAST = ".ballast"
CLOCK = "CHAOS_CLOCK"
CLOCK_LIBRARY = "clock.so"


def can_mount() -> bool:
    return os.name == "posix" and os.geteuid() == 0


def compiler() -> str:
    """A C compiler for the clock that can jump; empty where there is none."""
    return shutil.which("cc") or shutil.which("gcc") or ""


def build_clock(target: Path) -> None:
    """Compile the library that makes a process see another time of day. Raises CalledProcessError."""
    _run(compiler(), "-shared", "-fPIC", "-O2", "-o", str(target), str(Path(__file__).with_name("clock.c")))


def clock_environment(library: Path, file: Path) -> dict[str, str]:
    """Environment in which the time of day is as wrong as `file` says, and elapsed time is true."""
    return {"LD_PRELOAD": str(library), CLOCK: str(file)} if library.exists() else {}


def set_clock(file: Path, offset_s: float) -> None:
    """From now on the clocks that follow `file` are wrong by that much."""
    with file.open("r+b" if file.exists() else "wb") as handle:
        handle.write(struct.pack("=d", offset_s))


@dataclass
class Disk:
    """A folder with little room, where we may mount one."""

    path: Path
    size_mb: int
    mounted: bool = False

    def mount(self) -> None:
        if can_mount():
            _run("mount", "-t", "tmpfs", "-o", f"size={self.size_mb}m", "tmpfs", str(self.path))
            self.mounted = True

    def unmount(self) -> None:
        if self.mounted:
            self.empty()
            _run("umount", "-l", str(self.path), check=False)
            self.mounted = False

    def fill(self, leave_bytes: int = 0) -> None:
        """Take all room but `leave_bytes`."""
        ballast = self.path / BALLAST
        piece = b"\0" * 65536
        with contextlib.suppress(OSError), ballast.open("ab", buffering=0) as handle:
            while True:
                room = os.statvfs(self.path)
                free = room.f_bavail * room.f_frsize - leave_bytes
                if free <= 0:
                    return
                handle.write(piece[: min(len(piece), free)])

    def empty(self) -> None:
        with contextlib.suppress(OSError):
            (self.path / BALLAST).unlink()


def bind(source: Path, target: Path) -> None:
    _run("mount", "--bind", str(source), str(target))


def unbind(target: Path) -> None:
    _run("umount", "-l", str(target), check=False)


def _run(*argv: str, check: bool = True) -> None:
    subprocess.run(argv, check=check, capture_output=True, timeout=20)
