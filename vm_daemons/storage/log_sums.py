"""How much of a growing file in the store is what its VM put there.

Each copy of a log replaces the one before it and begins with it. So the size and the SHA-256 of every copy that was put
tell, of what is there now, how far it can be believed: a drive may have zeroed a block of it, or cut it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bridgehead import files, names
from bridgehead.errors import VerificationError
from vm_daemons.storage.objects import ObjectStore, Stored

KEPT = 64  # copies of each file: with damage before the oldest of them nothing is believed
_MAX_BYTES = 1 << 20
_COPY_BYTES = 1 << 20
Sums = dict[str, list[list[Any]]]  # file → [size in bytes, SHA-256] of copies that were put, oldest first


def read(store: ObjectStore, folder: str) -> Sums:
    """Empty where there are none, or what lies there is not ours. Raises StoreError."""
    try:
        told = json.loads(store.read(f"{folder}/{names.LOG_SUMS}", _MAX_BYTES) or b"{}")
    except (ValueError, RecursionError, VerificationError):
        return {}
    return {name: _checked(listed) for name, listed in told.items()} if isinstance(told, dict) else {}


def note(store: ObjectStore, folder: str, sums: Sums, sent: dict[str, Stored], names_put: Iterable[str]) -> None:
    """Add what was just put to `sums` and to the store, when anything is new."""
    changed = False
    for name in names_put:
        stored = sent.get(name)
        entry = [stored.size, stored.sha256] if stored is not None and stored.sha256 else None
        known = sums.setdefault(name, [])
        if entry is not None and entry not in known:
            known.append(entry)
            del known[:-KEPT]
            changed = True
    if changed:
        store.put_bytes(f"{folder}/{names.LOG_SUMS}", files.canonical_json(sums))


def good_bytes(path: Path, listed: list[list[Any]]) -> int:
    """The length of the longest beginning of a file that is one of the copies put; 0 when none is."""
    wanted = {int(size): str(sha256) for size, sha256 in listed}
    digest, at, good = hashlib.sha256(), 0, 0
    with path.open("rb") as reader:
        for size in sorted(wanted):
            while at < size and (piece := reader.read(min(_COPY_BYTES, size - at))):
                digest.update(piece)
                at += len(piece)
            if at < size:
                break
            if digest.hexdigest() == wanted[size]:
                good = size
    return good


def _checked(listed: object) -> list[list[Any]]:
    entries = listed if isinstance(listed, list) else []
    return [
        entry
        for entry in entries
        if isinstance(entry, list) and len(entry) == 2 and type(entry[0]) is int and entry[0] >= 0
        and isinstance(entry[1], str)
    ]  # fmt: skip
