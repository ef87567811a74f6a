"""A signed payload manifest has the shape that it must have; the signature proves who made it, not that it is sound."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from bridgehead import paths
from bridgehead.errors import VerificationError

_SHA256 = re.compile(r"[0-9a-f]{64}\Z")
_TEXTS = ("project", "ship_sha256", "payload_sha256")
_HINT = "bridge and VM differ: run the bootstrap cell again"


def entries_of(manifest: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Path → entry of each file. Raises VerificationError for a manifest that can't be followed, UsageError for an
    unsafe path."""
    if not all(isinstance(manifest.get(name), str) for name in _TEXTS):
        raise _unsound("lacks the project or a hash")
    requirements = manifest.get("requirements")
    if not isinstance(requirements, list) or not all(isinstance(name, str) for name in requirements):
        raise _unsound("has no list of requirements")
    if not isinstance(manifest.get("store"), dict) or not isinstance(manifest.get("vm"), dict):
        raise _unsound("lacks what it says of the store or the VM")
    listed = manifest.get("files")
    if not isinstance(listed, list):
        raise _unsound("has no list of files")
    entries: dict[str, dict[str, Any]] = {}
    for entry in listed:
        path = _checked_path(entry)
        if path in entries:
            raise _unsound(f"names {path} twice")
        entries[path] = entry
    folders: set[str] = set()
    for path in entries:
        folder = path.rpartition("/")[0]
        while folder and folder not in folders:
            if folder in entries:
                raise _unsound(f"names {folder} as a file and as a folder")
            folders.add(folder)
            folder = folder.rpartition("/")[0]
    return entries


def _checked_path(entry: object) -> str:
    if not isinstance(entry, dict) or not isinstance(entry.get("path"), str):
        raise _unsound("has an entry without a path")
    path = paths.check_relative(entry["path"])
    size, mode = entry.get("size"), entry.get("mode", 0o644)
    if type(size) is not int or size < 0 or type(mode) is not int or not _SHA256.match(str(entry.get("sha256"))):
        raise _unsound(f"has no usable size, hash or mode for {path}")
    return path


def _unsound(why: str) -> VerificationError:
    return VerificationError(f"the payload's manifest {why}", hint=_HINT)
