"""One writer at a time among processes; the system itself releases the lock when its holder dies."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from bridgehead.errors import BridgeheadError

_TIMEOUT_S = 20.0
_PAUSE_S = 0.01
_here = threading.RLock()  # the system's lock is per open file on POSIX and per process on Windows


@contextlib.contextmanager
def held(path: Path) -> Iterator[None]:
    """Hold the lock file `path`. Raises BridgeheadError when another process keeps it for 20 s."""
    with _here:
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            _wait(fd, path)
            yield
        finally:
            os.close(fd)


def _wait(fd: int, path: Path) -> None:
    deadline = time.monotonic() + _TIMEOUT_S
    while True:
        try:
            _lock(fd)
            return
        except OSError:
            if time.monotonic() > deadline:
                raise BridgeheadError(f"another process keeps {path.name}", hint="try again") from None
            time.sleep(_PAUSE_S)


if sys.platform == "win32":
    import msvcrt

    def _lock(fd: int) -> None:
        msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)

else:
    import fcntl

    def _lock(fd: int) -> None:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
