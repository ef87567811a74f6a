"""A log that got too long: what is there becomes `log.1`, and `log` begins anew with a line that says so."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

from bridgehead import files, names

_LINE_MAX_BYTES: Final = 16 * 2**20  # for the end of a line it waits so long


def is_due(target: Path, max_bytes: int) -> bool:
    """Whether `target` is a run's log, longer than that (0: never), and at the end of a line."""
    if target.name != names.LOG or not max_bytes:
        return False
    found = files.plain_stat(target)
    if found is None or found.st_size <= max_bytes:
        return False
    if found.st_size > max_bytes + _LINE_MAX_BYTES:
        return True
    with target.open("rb") as handle:
        handle.seek(-1, os.SEEK_END)
        return handle.read(1) == b"\n"


def turn(target: Path, inode: int, max_bytes: int) -> int:
    """Rename the file that has this inode, unless that was done already; return the length of the new one.

    May be repeated after a kill at any point. Raises OSError.
    """
    older = target.with_name(names.LOG_BEFORE)
    found = files.plain_stat(target)
    if found is not None and found.st_ino == inode:
        files.replace(target, older)
        found = None
    if found is None:
        passed = f"--- this log passed {max_bytes >> 20} MiB"
        text = f"{passed}: what came before is in {names.LOG_BEFORE}, and what was in there is gone\n"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
        with contextlib.suppress(FileExistsError), os.fdopen(os.open(target, flags, 0o644), "wb") as handle:
            handle.write(text.encode())
        files.fsync_folder(target.parent)
    return target.stat().st_size
