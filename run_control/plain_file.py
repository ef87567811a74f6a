"""Files that a person writes and we read whole: a pipe or a device in such a place would be read for ever."""

from __future__ import annotations

import stat
from pathlib import Path

from bridgehead.errors import ProjectError


def size_bytes(path: Path) -> int:
    """Of the file, or the folder, that `path` leads to. Raises FileNotFoundError, and ProjectError for neither."""
    found = path.stat()
    if not (stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)):
        raise ProjectError(f"{path.name} is a pipe or a device, and no file", hint="put a file in its place")
    return found.st_size
