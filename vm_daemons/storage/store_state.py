"""state/store.json: how the store is. The uploader writes it from its main thread, the status daemon reads it.

    {"v", "number", "at", "kind", "where", "path", "ok", "free_bytes", "limited", "trash_bytes", "error", "denied",
     "ok_since", "ill_since", "trouble", "warning", "confirm_trouble", "payload", "note", "beat_number",
     "superseded": [{"run_id", "attempt"}]}

`number` grows with each writing, so that a reader tells a hung or dead uploader by its own clock alone.
"""

from __future__ import annotations

import secrets
import time
from pathlib import Path
from typing import Any

from bridgehead import files, names
from bridgehead.names import StoreKind
from vm_daemons.home import VmHome

HANGS_AFTER_S = 30.0  # a canary that is out so long
REMOUNT_AFTER_S = 60.0
ASK_AGAIN_S = 600.0  # when the cell has given up, or its mount was of no use
SILENT_AFTER_S = 60.0


class Health:
    """What the uploader's threads find out; the main thread writes it down."""

    def __init__(self, home: VmHome) -> None:
        self._home = home
        self.probed: dict[str, Any] = {}  # the last canary: path, ok, free_bytes, error, …
        self.account: tuple[int | None, int | None] = (None, None)  # bytes: free, in its trash; by another path
        self.gone = False  # and it says that the mount is dead
        self.canary_since = 0.0  # monotonic; 0 while none is out
        self.trouble = ""  # what the store said to the last try to put something there
        self._turned_at = time.time()  # when it last became well or ill
        self._ill_since = 0.0  # monotonic; 0 while it is well
        self._asked_at = -ASK_AGAIN_S

    @property
    def hangs(self) -> bool:
        return bool(self.canary_since) and time.monotonic() - self.canary_since > HANGS_AFTER_S

    @property
    def ok(self) -> bool:
        return bool(self.probed.get("ok")) and not self.hangs

    @property
    def known(self) -> bool:
        """Whether the first canary has come back, or should have."""
        return bool(self.probed) or self.hangs

    def look(self) -> dict[str, Any]:
        """What store.json tells of the store; keeps count of how long it is ill."""
        if self.known and self.ok == bool(self._ill_since):
            self._ill_since = 0.0 if self.ok else time.monotonic()
            self._turned_at = time.time()
        error = "it does not answer" if self.hangs else str(self.probed.get("error", ""))
        since = "ill_since" if self._ill_since else "ok_since"
        seen = {**self.probed, "ok": self.ok, "error": error, since: self._turned_at, "trouble": self.trouble}
        free_bytes, trash_bytes = self.account
        if free_bytes is not None:  # what goes through a mount needs room on both sides
            seen["free_bytes"] = min(free_bytes, seen.get("free_bytes") or free_bytes)
            seen["limited"] = True
        if trash_bytes is not None:
            seen["trash_bytes"] = trash_bytes
        return seen

    def ask_for_remount(self, kind: str) -> None:
        """Have the cell mount it again once it has been dead for a while; withdrawn when it is well. Raises OSError."""
        path = self._home.state / names.VM_REMOUNT
        request = files.read_json(path)
        pending = isinstance(request, dict) and not request.get("done") and not request.get("given_up")
        if self.ok and pending:
            path.unlink(missing_ok=True)
        if self.ok or not self._ill_since or kind != StoreKind.MOUNT or not (self.gone or self.hangs):
            return
        now = time.monotonic()
        if now - self._ill_since < REMOUNT_AFTER_S or pending or now - self._asked_at < ASK_AGAIN_S:
            return
        self._asked_at = now
        why = "it does not answer" if self.hangs else str(self.probed.get("error", ""))
        told = {"v": names.RECORD_VERSION, "id": secrets.token_hex(8), "since": self._turned_at, "why": why}
        files.write_json(path, told)


class Writer:
    """Writes store.json when something changed, and every `every_s` in any case."""

    def __init__(self, home: VmHome, every_s: float = 5.0) -> None:
        self._path = home.state / names.VM_STORE_STATE
        self._every_s = every_s
        before = files.read_json(self._path)
        self._number = int(before.get("number") or 0) if isinstance(before, dict) else 0
        self._told: dict[str, Any] = {}
        self._written_at = 0.0

    def write(self, told: dict[str, Any]) -> None:
        """Raises OSError."""
        now = time.monotonic()
        if told == self._told and now - self._written_at < self._every_s:
            return
        self._number += 1
        head = {"v": names.RECORD_VERSION, "number": self._number, "at": time.time()}
        files.write_json(self._path, {**head, **told})
        self._told, self._written_at = told, now


class Reader:
    """The status daemon's view, by its own monotonic clock: clocks jump, and a dead uploader writes nothing."""

    def __init__(self, home: VmHome) -> None:
        self._path = home.state / names.VM_STORE_STATE
        self._stamp: tuple[int, int] | None = None
        self._changed_at = time.monotonic()
        self._ok_at = time.monotonic()
        self.record: dict[str, Any] = {}

    def look(self) -> None:
        """Raises OSError."""
        now = time.monotonic()
        stamp = _stamp(self._path)
        if stamp is not None and stamp != self._stamp:
            found = files.read_json(self._path)
            self.record = found if isinstance(found, dict) else {}
            self._stamp, self._changed_at = stamp, now
        if self.record.get("ok") and not self.silent:
            self._ok_at = now

    @property
    def silent(self) -> bool:
        """The uploader itself is dead or hangs."""
        return time.monotonic() - self._changed_at > SILENT_AFTER_S

    @property
    def ill_s(self) -> float:
        """Seconds since the store was last known to be well."""
        return time.monotonic() - self._ok_at

    def told(self) -> dict[str, Any]:
        """For the heartbeat; empty when this VM has no store or nobody has looked yet."""
        if not self.record or self.record.get("kind") == "none":
            return {}
        shown = {key: self.record.get(key) for key in ("path", "ok", "free_bytes", "error", "kind", "trash_bytes")}
        if self.record.get("warning"):
            shown["warning"] = self.record["warning"]
        trouble = "the uploader is silent" if self.silent else str(self.record.get("trouble") or "")
        if trouble:
            return {**shown, "ok": False, "error": trouble}
        alarm = str(self.record.get("confirm_trouble") or "")
        return {**shown, "error": shown["error"] or alarm} if alarm else shown


def _stamp(path: Path) -> tuple[int, int] | None:
    found = files.plain_stat(path)
    return None if found is None else (found.st_mtime_ns, found.st_size)
