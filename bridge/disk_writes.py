"""Writing on the laptop's disk: all of it or nothing, and without a heap of work for the last fsync."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from typing import Final

WRITE_BACK_BYTES: Final = 8 * 2**20


def append(fd: int, part: Sequence[bytes], *, durable: bool) -> None:
    """Write and close; after an error (disk full) the file is as long as before."""
    try:
        size = os.fstat(fd).st_size
        try:
            for piece in part:
                write_all(fd, piece)
            if durable:
                os.fsync(fd)
        except OSError:
            os.ftruncate(fd, size)
            raise
    finally:
        os.close(fd)


def write_all(fd: int, piece: bytes | memoryview) -> None:
    view = memoryview(piece)
    while view:
        view = view[os.write(fd, view) :]


def start_write_back(fd: int, start: int, count: int) -> None:
    """Let the disk begin with what was written, so that the fsync of the whole finds little left to do."""
    if hasattr(os, "posix_fadvise"):
        with contextlib.suppress(OSError):  # no more than a hint
            os.posix_fadvise(fd, start, count, os.POSIX_FADV_DONTNEED)
