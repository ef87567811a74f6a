"""The other VMs of the project as the store shows them: who still beats, and what their journals say.

A clock on another machine is worth nothing here: a VM is silent when its beat did not change between two of our own
looks that lie far enough apart on our own monotonic clock.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from bridgehead import names, paths, signing
from bridgehead.errors import PairingError, UsageError, VerificationError
from bridgehead.queue_lines import Verb
from vm_daemons.home import VmHome
from vm_daemons.journal import Entry, read_copy
from vm_daemons.storage.objects import ObjectStore

_log = logging.getLogger(__name__)

BEAT_MAX_BYTES = 1 << 20
FINAL_AFTER = 3  # times the patience with a VM
JOURNAL_MAX_BYTES = 64 * 2**20


@dataclass(frozen=True)
class Peer:
    """One other VM at our last look."""

    vm_id: str
    silent_s: float  # how long its beat has stood still before our eyes; infinite when it said goodbye
    entries: tuple[Entry, ...] = ()

    def stops(self) -> set[str]:
        """The runs that somebody asked it to stop."""
        return {entry.command.argument for entry in self.entries if entry.command.verb == Verb.STOP}


@dataclass
class _Known:
    beat: bytes | None = None
    since: float = 0.0  # monotonic; when we first saw this beat
    journal: str = ""  # hash of the copy that `entries` were read from
    entries: tuple[Entry, ...] = field(default_factory=tuple)
    final: bool = False  # the journal was read after a long silence: until the next beat it is not read again


class Peers:
    """`look` reads the store; for one thread, since the store may hang. Raises StoreError and OSError."""

    def __init__(self, home: VmHome, objects: Callable[[], ObjectStore | None]) -> None:
        self._home = home
        self._objects = objects
        self._known: dict[str, _Known] = {}

    def look(self, also: set[str] | None = None) -> list[Peer]:
        """All VMs that ever left something in the store, and those of `also` that did not. Empty without a store."""
        objects = self._objects()
        if objects is None:
            return []
        record = self._home.record()
        folder = f"{record.get('project') or 'project'}/{names.STORE_VMS}"
        ids = {*objects.list(folder), *(also or ())} - {str(record["vm_id"])}
        return [self._peer(objects, folder, vm_id) for vm_id in sorted(ids) if _is_safe(vm_id)]

    def _peer(self, objects: ObjectStore, folder: str, vm_id: str) -> Peer:
        beat = _read(objects, f"{folder}/{vm_id}/{names.STORE_BEAT}", BEAT_MAX_BYTES)
        now = time.monotonic()  # after the reading: what we have not seen yet may have changed while we read
        known = self._known.get(vm_id)
        if known is None or known.beat != beat:
            entries, digest = (known.entries, known.journal) if known is not None else ((), "")
            known = self._known[vm_id] = _Known(beat, now, digest, entries)
        if not known.final:
            self._read_journal(objects, f"{folder}/{vm_id}/{names.VM_JOURNAL}", known)
            known.final = now - known.since > FINAL_AFTER * self._home.rules().lost_after_s
        silent_s = float("inf") if _said_goodbye(beat) else now - known.since
        return Peer(vm_id, silent_s, known.entries)

    def _read_journal(self, objects: ObjectStore, key: str, known: _Known) -> None:
        data = _read(objects, key, JOURNAL_MAX_BYTES)
        digest = hashlib.sha256(data or b"").hexdigest()
        if digest != known.journal:
            known.entries, known.journal = tuple(read_copy(data or b"", self._verify)), digest

    def _verify(self, line: dict[str, Any]) -> None:
        document = {"kind": "command", "body": line["command"], "sig": line.get("sig")}
        signing.open_document_of_any(self._home.pairing().document_keys, "command", document)


def signer(home: VmHome) -> Callable[[dict[str, Any]], str]:
    """Signs a command for our own journal."""

    def sign(told: dict[str, Any]) -> str:
        try:
            return str(signing.sign_document(home.pairing().key, "command", told)["sig"])
        except PairingError:
            return ""

    return sign


def _read(objects: ObjectStore, key: str, max_bytes: int) -> bytes | None:
    try:
        return objects.read(key, max_bytes)
    except VerificationError as error:
        _log.warning("passed over in the store: %s", error.message)
        return None


def _said_goodbye(beat: bytes | None) -> bool:
    try:
        told = json.loads(beat or b"{}")
    except (ValueError, RecursionError):
        return False
    return isinstance(told, dict) and told.get("released") is True


def _is_safe(vm_id: str) -> bool:
    try:
        return "/" not in paths.check_relative(vm_id)
    except UsageError:
        return False
