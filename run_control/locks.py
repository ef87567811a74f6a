"""A lock on a file that the system itself releases when its holder dies, on POSIX and on Windows."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def take(path: Path) -> int | None:
    """The descriptor that holds the lock, to be closed by the caller; None when another process has it."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        _lock(fd)
    except OSError:
        os.close(fd)
        return None
    return fd


if sys.platform == "win32":
    import msvcrt

    def _lock(fd: int) -> None:
        msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)

else:
    import fcntl

    def _lock(fd: int) -> None:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
