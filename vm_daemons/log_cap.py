"""A runaway log must not fill the VM's disk, and to stop or slow the stage for it is no way out.

The stage writes on in the same file; what lies early in it is given back to the disk as a hole (it reads as zeros, and
every offset stays what it was). First goes what the laptop has already. Only when the laptop is away for so long that
the rest alone is over the cap, the middle of what it lacks goes too: the log's last half stays. A line in the log says
what went. Where the file system makes no holes (some network mounts), the log is left to grow.
"""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_BLOCK: Final = 4096
_KEEP_SIZE: Final = 1
_PUNCH_HOLE: Final = 2


@dataclass(frozen=True)
class Relief:
    """What was given back to the disk, and how much of it the laptop will never get."""

    freed_bytes: int
    lost_bytes: int

    def line(self, cap_bytes: int) -> str:
        passed = f"--- this log passed {cap_bytes >> 20} MiB on the VM's disk"
        if self.lost_bytes:
            return (
                f"{passed} while the laptop was away: {self.lost_bytes >> 20} MiB of it were dropped, the newest stays"
            )
        return f"{passed}: its beginning lies on the laptop alone now"


def relieve(path: Path, arrived_to: int, cap_bytes: int) -> Relief | None:
    """Bring the disk space of the file at `path` below the cap; None when there was no need or no way.

    `arrived_to`: the laptop has every byte before this one. Raises OSError.
    """
    stat = path.stat()
    if not cap_bytes or _used(stat) <= cap_bytes:
        return None
    keep_from = _down(stat.st_size - cap_bytes // 2)
    fd = os.open(path, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0))
    try:
        shipped = min(_down(arrived_to), keep_from)
        if not _punch(fd, 0, shipped):
            return None
        lost_to = 0
        if _used(os.fstat(fd)) > cap_bytes and keep_from > shipped:
            _punch(fd, shipped, keep_from)
            lost_to = keep_from
        freed = max(0, _used(stat) - _used(os.fstat(fd)))
    finally:
        os.close(fd)
    return Relief(freed, max(0, lost_to - arrived_to)) if freed else None


def first_hole(fd: int, start: int, end: int) -> tuple[int, int]:
    """Where the first hole from `start` on begins, at most `end`, and where data begins again after it."""
    if not hasattr(os, "SEEK_HOLE"):
        return end, end
    try:
        hole = min(end, os.lseek(fd, start, os.SEEK_HOLE))
        return hole, (os.lseek(fd, hole, os.SEEK_DATA) if hole < end else end)
    except OSError:  # the file system doesn't tell, or there is no data after the hole yet
        return end, end


def _used(stat: os.stat_result) -> int:
    return stat.st_blocks * 512


def _down(offset: int) -> int:
    return max(0, offset) // _BLOCK * _BLOCK


def _punch(fd: int, start: int, end: int) -> bool:
    """Give the blocks from `start` to `end` back. False where the file system or the C library can't."""
    if end <= start:
        return True
    try:
        fallocate = ctypes.CDLL(None, use_errno=True).fallocate64
    except (OSError, AttributeError):
        return False
    fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    return bool(fallocate(fd, _PUNCH_HOLE | _KEEP_SIZE, start, end - start) == 0)
