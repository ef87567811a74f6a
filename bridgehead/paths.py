"""One grammar for every relative path that crosses the wire, refused rather than repaired."""

from __future__ import annotations

import os
import re
from pathlib import Path

from bridgehead.errors import UsageError

SEGMENT_MAX = 128
PATH_MAX = 1024
_SEGMENT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+=@-]*\Z")
_STRANGE = re.compile(r"[^A-Za-z0-9._+=@-]")
_RULE = (
    f"a name that every store and system takes: up to {SEGMENT_MAX} letters, digits and ._+=@-, a letter, digit or _"
    " first, no dot last. Rename it, or pack the files into one archive"
)
_WINDOWS_DEVICES = frozenset(
    ["con", "prn", "aux", "nul", "conin$", "conout$"]
    + [f"{name}{digit}" for name in ("com", "lpt") for digit in "0123456789"]
)
_RUN_ID = re.compile(r"[a-z][a-z0-9_-]{0,63}-\d{4,9}-[0-9a-f]{6}\Z")


def check_relative(text: str) -> str:
    """Return `text` when it is a safe relative path, in the form it is to be used.

    Segments hold letters, digits and `._+=@-`, start with neither dot nor dash, end without a dot, and are
    no Windows device name, so one path means one file on every system. Raises UsageError.
    """
    if not text or len(text) > PATH_MAX:
        raise UsageError(f"a path must have 1 to {PATH_MAX} characters; this has {len(text)}")
    for segment in text.split("/"):
        _check_segment(segment, text)
    return text


def is_run_id(text: str) -> bool:
    """Run ids look like `pretrain-0001-3fa9c1`: stage, sequence of its line, part of its uuid."""
    return _RUN_ID.match(text) is not None


def _check_segment(segment: str, whole: str) -> None:
    shown = repr(_short(segment, 40)) + (f" in {_short(whole, 100)!r}" if segment != whole else "")
    if len(segment) > SEGMENT_MAX:
        raise UsageError(f"a name in a path is longer than {SEGMENT_MAX} characters: {shown}", hint=_RULE)
    if not _SEGMENT.match(segment) or segment.endswith("."):
        raise UsageError(f"not a safe name in a path: {shown} {_fault(segment)}", hint=_RULE)
    if segment.split(".", 1)[0].lower() in _WINDOWS_DEVICES:
        raise UsageError(f"a name that Windows reserves: {shown}", hint=_RULE)


def _fault(segment: str) -> str:
    strange = sorted(set(_STRANGE.findall(segment)))
    if strange:
        return f"holds {' '.join(map(repr, strange[:8]))}"
    if not segment:
        return "is empty"
    return f"begins with {segment[0]!r}" if not _SEGMENT.match(segment) else "ends with a dot"


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else text[:most] + "…"


def inside(root: Path, relative: str) -> Path:
    """`root / relative` with no link on the way below `root`; the target itself need not exist.

    Raises UsageError for an unsafe path or one that goes through a link.
    """
    check_relative(relative)
    path = root
    for segment in relative.split("/"):
        path = path / segment
        if path.is_symlink():
            raise UsageError(f"goes through a link: {relative!r}")
    return path


def open_inside(root: Path, relative: str, flags: int = os.O_RDONLY) -> int:
    """Open a file below `root` segment by segment without following any link, and return the fd.

    Each folder is opened relative to its parent's descriptor (dir_fd, O_NOFOLLOW), so a link put in place
    during the walk is refused too. Raises UsageError for an unsafe path and OSError (ELOOP, ENOENT, …).
    """
    check_relative(relative)
    nofollow = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
    if os.open not in os.supports_dir_fd:
        return os.open(inside(root, relative), flags | getattr(os, "O_BINARY", 0))
    *folders, name = relative.split("/")
    parent = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for folder in folders:
            child = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | nofollow, dir_fd=parent)
            os.close(parent)
            parent = child
        return os.open(name, flags | nofollow, 0o644, dir_fd=parent)
    finally:
        os.close(parent)
