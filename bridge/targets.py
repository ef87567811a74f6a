"""Where an upload ends up below `in/`: folders made, no link on the way, and no name that another system can't hold.

Names are checked by `bridgehead.paths`, whatever system this is. Two names that differ only in upper and lower case are
one file on Windows and macOS, so the second of them is refused everywhere: what arrived can be carried to any laptop.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from bridgehead import paths
from bridgehead.errors import UsageError


def prepare_target(root: Path, path: str) -> Path:
    """`root / path` with its folders made. Raises UsageError for a link on the way, or when it is no plain file."""
    target = paths.inside(root, path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise UsageError("a file is where a folder is needed") from None
    target = paths.inside(root, path)  # again: the folders exist now
    try:
        mode = target.lstat().st_mode
    except FileNotFoundError:
        return target
    if not stat.S_ISREG(mode):
        raise UsageError("there is something there that is not a plain file")
    return target


def check_spelling(root: Path, path: str) -> None:
    """Raises UsageError when a folder or file on the way is there already, spelled in another case."""
    folder = root
    for segment in path.split("/"):
        try:
            there = os.listdir(folder)
        except (FileNotFoundError, NotADirectoryError):
            return
        check_case(segment, {name.casefold(): name for name in there})
        folder = folder / segment


def check_case(name: str, there: dict[str, str]) -> None:
    """`there` has the names of a folder by their case-folded form. Raises UsageError."""
    other = there.get(name.casefold(), name)
    if other != name:
        raise UsageError(
            f"{name!r} and {other!r} differ only in upper and lower case", hint="one file on Windows and macOS: rename"
        )
