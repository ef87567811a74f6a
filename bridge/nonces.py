"""Nonces that were already used: each is good once, also across restarts of the bridge.

Two files take turns. A request is good for at most two skew windows after it was first seen, so a file that has been
the older one for that long holds nothing that still matters and is emptied. Records are 16 bytes (a cut-off hash), so
a record that a killed process left half-written is recognised and skipped.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from pathlib import Path

from bridgehead import signing

NONCES_FILE = "nonces"
_RECORD_BYTES = 16
_TURN_S = 2 * signing.SKEW_S + 10


class NonceStore:
    """`use` answers True the first time only. Not thread-safe: the event loop alone calls it."""

    def __init__(self, folder: Path, *, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        newer, older = sorted((folder / f"{NONCES_FILE}-{turn}" for turn in "ab"), key=_modified, reverse=True)
        self._paths = (newer, older)
        self._seen = (self._load(newer), self._load(older))
        self._fd = self._open(newer)
        self._turned = clock()

    def use(self, nonce: str) -> bool:
        """Remember `nonce`; False when it was used before."""
        if abs(self._clock() - self._turned) > _TURN_S:
            self._take_turns()
        record = hashlib.sha256(nonce.encode()).digest()[:_RECORD_BYTES]
        if record in self._seen[0] or record in self._seen[1]:
            return False
        self._seen[0].add(record)
        os.write(self._fd, record)  # no fsync: a killed process loses nothing, and a power cut outlasts the window
        return True

    def close(self) -> None:
        os.close(self._fd)

    def _take_turns(self) -> None:
        os.close(self._fd)
        self._paths = (self._paths[1], self._paths[0])
        self._seen = (set(), self._seen[0])
        self._paths[0].unlink(missing_ok=True)
        self._fd = self._open(self._paths[0])
        self._turned = self._clock()

    def _load(self, path: Path) -> set[bytes]:
        if abs(self._clock() - _modified(path)) > _TURN_S:
            path.unlink(missing_ok=True)
            return set()
        data = path.read_bytes()
        whole = len(data) - len(data) % _RECORD_BYTES
        if whole < len(data):
            os.truncate(path, whole)
        return {data[start : start + _RECORD_BYTES] for start in range(0, whole, _RECORD_BYTES)}

    @staticmethod
    def _open(path: Path) -> int:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0), 0o600)


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
