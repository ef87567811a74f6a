"""A lock on a file that the system itself releases when its holder dies, on POSIX and on Windows."""

from __future__ import annotations

import json
import os
import stat
import sys
from pathlib import Path
from typing import Any

_TEXT_AT = 1  # Windows lets nobody else read the locked first byte


def take(path: Path) -> int | None:
    """The descriptor that holds the lock, to be closed by the caller; None when another process has it."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        _lock(fd)
    except OSError:
        os.close(fd)
        return None
    return fd


def describe(fd: int, values: dict[str, Any]) -> None:
    """Write into the lock file, whose lock `fd` holds, who that is. It stays there when the holder is killed."""
    os.ftruncate(fd, 0)
    os.lseek(fd, 0, os.SEEK_SET)
    os.write(fd, b" " * _TEXT_AT + json.dumps(values).encode())


def described(path: Path) -> Any | None:
    """What the last holder wrote with `describe`; None when there is nothing to read."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # a FIFO would hang us
            return None
        with path.open("rb", buffering=0) as handle:
            handle.seek(_TEXT_AT)
            return json.loads(handle.read())
    except (OSError, ValueError, RecursionError):
        return None


if sys.platform == "win32":
    import msvcrt

    def _lock(fd: int) -> None:
        msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)

else:
    import fcntl

    def _lock(fd: int) -> None:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
