""".bridgehead/address.json: where this project's bridge is now, under which number, and whether the store tells of it.

    {"v", "project", "url", "seq", "at", "store": {"seq", "told", "trouble", "hint"}}

The numbers must never go back, so each is on disk before anybody hears of it.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bridgehead import announcement, files
from bridgehead.announcement import Announcement
from bridgehead.errors import PairingError


@dataclass(frozen=True)
class Published:
    """How far the announcement `seq` has got: the stores that tell of it, and why others don't."""

    seq: int = 0
    told: list[str] = field(default_factory=list)
    trouble: str = ""
    hint: str = ""


class AddressRecord:
    """One writer, the bridge's process; any number of readers. Methods raise OSError. For several threads."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._stamp: tuple[int, int, int] | None = None
        self._newest: Announcement | None = None

    def newest(self) -> Announcement | None:
        """The newest announcement, None before the first. The file is read again only when it has changed."""
        with self._lock:
            return self._look()

    def renew(self, project: str, url: str, *, above: int = 0) -> Announcement:
        """A new announcement, numbered over all before it and over `above`; on disk when this returns."""
        with self._lock:
            before = self._look()
            last = max(above, before.seq if before is not None else 0)
            now_s = time.time()
            made = Announcement(project, url, announcement.next_seq(last, now_s), now_s)
            files.write_json(self._path, made.body(), mode=0o600)
            return made

    def note(self, published: Published) -> None:
        """Keep what came of the announcement in the store; nothing when there is a newer one by now."""
        with self._lock:
            newest = self._look()
            if newest is not None and newest.seq == published.seq:
                files.write_json(self._path, {**newest.body(), "store": dataclasses.asdict(published)}, mode=0o600)

    def published(self) -> Published:
        """What `note` kept; empty when nothing is known of the newest announcement."""
        record = files.read_json(self._path)
        told = record.get("store") if isinstance(record, dict) else None
        if not isinstance(record, dict) or not isinstance(told, dict) or told.get("seq") != record.get("seq"):
            return Published()
        where = told.get("told")
        shown = [str(name) for name in where] if isinstance(where, list) else []
        return Published(int(told["seq"]), shown, str(told.get("trouble") or ""), str(told.get("hint") or ""))

    def hint(self, key: bytes, known_seq: int) -> dict[str, Any] | None:
        """The signed announcement for a VM that knows only up to `known_seq`; None when that is the newest."""
        newest = self.newest()
        return newest.signed(key) if newest is not None and newest.seq > known_seq else None

    def seq_of(self, url: str) -> int:
        """The number under which `url` was announced, when it is the newest; else 0."""
        newest = self.newest()
        return newest.seq if newest is not None and newest.url == url else 0

    def _look(self) -> Announcement | None:
        found = files.plain_stat(self._path)
        stamp = (found.st_mtime_ns, found.st_size, found.st_ino) if found is not None else None
        if stamp != self._stamp:
            try:
                self._newest = announcement.read(files.read_json(self._path))
            except PairingError:  # none yet, or damaged: the time alone makes the next number high enough
                self._newest = None
            self._stamp = stamp
        return self._newest
