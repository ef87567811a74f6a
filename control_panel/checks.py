"""What checks of bundles have found, kept on the laptop: a new kernel knows it too, and says since when.

A record holds good as long as the bundle is the one that was checked: the digest of its manifest, the sum of its files'
sizes, their number and the newest time of a change. Whoever wants more than that presses Verify again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bridgehead import files, names
from control_panel.shapes import Artifact, HashState
from run_control.live_view import Cached

NAME: Final = "checks.json"  # in the private folder
KEPT_MAX: Final = 500
_KEPT_STATES: Final = (HashState.VERIFIED, HashState.BAD)


@dataclass(frozen=True)
class Seal:
    """By which a bundle is known again. `size` in bytes; `mtime_ns` of the newest file or folder in it."""

    digest: str
    size: int
    mtime_ns: int
    files: int


def seal(bundle: Path) -> Seal | None:
    """None of what is no whole bundle, or can't be read just now."""
    size = newest = count = 0
    try:
        digest = hashlib.sha256((bundle / names.BUNDLE_MANIFEST).read_bytes()).hexdigest()
        for folder, _, entries in os.walk(bundle):
            newest = max(newest, os.lstat(folder).st_mtime_ns)
            for entry in entries:
                found = os.lstat(os.path.join(folder, entry))
                size, newest, count = size + found.st_size, max(newest, found.st_mtime_ns), count + 1
    except OSError:
        return None
    return Seal(digest, size, newest, count)


class Checks:
    """Safe from several threads; other panels may write to the same file. A disk that can't take it stops no check."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME
        self._lock = threading.Lock()
        self._file = Cached(self._path, self._load)
        self._own: dict[str, dict[str, Any]] = {}  # of this kernel, on the disk or not
        self._shown: dict[str, tuple[Artifact, dict[str, Any], Artifact]] = {}

    def note(self, run: str, path: str, state: HashState, text: str, at: float, sealed: Seal | None) -> None:
        """What a check has found at `at` (seconds since 1970). `sealed`: of the bundle, before it and after it."""
        if sealed is None:
            return
        record = {**dataclasses.asdict(sealed), "at": at, "state": str(state), "note": text}
        with self._lock:
            self._own[f"{run}/{path}"] = record
            known = {**self._load(), f"{run}/{path}": record}
            newest = sorted(known.items(), key=lambda item: item[1]["at"])[-KEPT_MAX:]
            with contextlib.suppress(OSError):
                files.write_json(self._path, {"v": names.RECORD_VERSION, "checks": dict(newest)}, mode=0o600)

    def shown(self, items: list[Artifact], bundle: dict[str, Path]) -> list[Artifact]:
        """The artifacts with what is known of them. `bundle`: run -> its bundle's folder. From one thread."""
        with self._lock:
            known = dict(self._file.get())
            known |= {key: one for key, one in self._own.items() if one["at"] >= known.get(key, one)["at"]}
        return [self._one(item, known.get(f"{item.run}/{item.path}"), bundle.get(item.run)) for item in items]

    def _one(self, item: Artifact, record: dict[str, Any] | None, bundle: Path | None) -> Artifact:
        if record is None or bundle is None or item.kind != "bundle":
            return item
        key = f"{item.run}/{item.path}"
        before = self._shown.get(key)
        if before is not None and before[0] is item and before[1] == record:
            return before[2]
        now = seal(bundle)
        told = item
        if now is not None and dataclasses.asdict(now) == {name: record[name] for name in vars(now)}:
            state = HashState(record["state"])
            told = dataclasses.replace(item, hash_state=state, note=record["note"], checked_at=record["at"])
        self._shown[key] = item, record, told
        return told

    def _load(self) -> dict[str, dict[str, Any]]:
        """What of the file can be used."""
        found = None
        with contextlib.suppress(OSError):
            found = files.read_json(self._path)
        checks = found.get("checks") if isinstance(found, dict) else None
        return {key: one for key, one in checks.items() if _fits(one)} if isinstance(checks, dict) else {}


def _fits(record: object) -> bool:
    wanted: dict[str, Any] = {"digest": str, "size": int, "mtime_ns": int, "files": int, "at": int | float, "note": str}
    return (
        isinstance(record, dict)
        and record.get("state") in _KEPT_STATES
        and all(isinstance(record.get(name), kind) for name, kind in wanted.items())
    )
