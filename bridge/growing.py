"""Opening a growing file so that what is appended shows up under its own name alone."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from bridgehead import files, paths

_FLAGS = os.O_RDWR | os.O_CREAT | os.O_APPEND


def open_for_append(root: Path, relative: str) -> int:
    """The descriptor of the file, made when it is not there; the caller closes it.

    A file with a second name (a backup made of hard links, or one planted there) is copied first and goes on as the
    copy: the other name keeps what it had. Raises UsageError and OSError as `paths.open_inside`.
    """
    fd = paths.open_inside(root, relative, _FLAGS)
    if os.fstat(fd).st_nlink <= 1:
        return fd
    with os.fdopen(fd, "rb") as shared, files.atomic_writer(paths.inside(root, relative)) as own:
        shutil.copyfileobj(shared, own, 1 << 20)
    return paths.open_inside(root, relative, _FLAGS)
