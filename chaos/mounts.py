"""Disks that can be filled, a store that can vanish, clocks that can jump: what faults need from the machine.

Small disks are tmpfs mounts and the store is a bind mount, which only root may make; elsewhere they are plain folders
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


class Store:
    """The plain store: a folder that is bound to a mount point, and can be gone from there.

    `path` is what the VM is told, a folder inside of the mount: as on a real drive it is not there when the mount dies.
    """

    INSIDE = "MyDrive"

    def __init__(self, cloud: Path, mountpoint: Path) -> None:
        self._cloud = cloud
        self._mountpoint = mountpoint
        self._mounted = False
        self.path = mountpoint / self.INSIDE
        self.real_root = cloud / self.INSIDE  # where the campaign looks, whatever happens to the mount

    def mount(self) -> None:
        self._mountpoint.mkdir(exist_ok=True)
        self.real_root.mkdir(exist_ok=True)
        if not can_mount():
            self.path.symlink_to(self.real_root)
        elif not self._mounted:
            _run("mount", "--bind", str(self._cloud), str(self._mountpoint))
        self._mounted = True

    def unmount(self) -> None:
        """The mount dies: the mount point is an ordinary empty folder."""
        if not self._mounted:
            return
        self._mounted = False
        if can_mount():
            _run("umount", "-l", str(self._mountpoint), check=False)
        else:
            self.path.unlink(missing_ok=True)

    def own_pids(self) -> list[int]:
        return []


def _run(*argv: str, check: bool = True) -> None:
    subprocess.run(argv, check=check, capture_output=True, timeout=20)
