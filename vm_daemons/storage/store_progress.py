"""What one process knows of a run in the store, so that a call costs nothing when nothing has changed."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bridgehead import checkpoints, files, names
from bridgehead.errors import VerificationError
from bridgehead.names import CheckpointLevel
from bridgehead.records import CheckpointInfo, RunRecord
from vm_daemons import outputs as outputs_module
from vm_daemons import uploads
from vm_daemons.storage import log_sums, store_slots
from vm_daemons.storage.objects import ObjectStore, PutsMany, Stored
from vm_daemons.storage.store_slots import Slot

_OUTPUT_FILES = (names.RUN_RECORD, names.RESULTS)
_BATCH_FILES = 500
_BATCH_BYTES = 16 * 2**20
Stamp = tuple[int, int]  # mtime_ns and size: what tells one version of a file from another


@dataclass
class Progress:
    """One attempt of a run. Forgotten as a whole when another store is there."""

    attempt: int
    token: str = ""  # of the lease: another one means another store, or the same one emptied
    looked: bool = False  # the slots have been read since the last trouble
    slots: list[Slot] = field(default_factory=list)
    bad: dict[str, int] = field(default_factory=dict)  # slot name → step of commits that this attempt's restore refused
    newest: str = ""  # name of the slot with what is newest in the store
    damaged: set[tuple[str, int]] = field(default_factory=set)  # local checkpoints that don't verify: name, mtime_ns
    copied: dict[str, Stamp] = field(default_factory=dict)  # file → its stamp when it was copied
    sent: dict[str, Stored] = field(default_factory=dict)  # file → what the store holds of it
    lives: bytes = b""  # of the growing files, as they were last put
    sums: log_sums.Sums | None = None  # of the growing files, once read from the store
    status_at: float = 0.0  # monotonic
    complete_attempt: int = 0  # this attempt has ended and all it left is in the store
    outputs: dict[str, Stored] = field(default_factory=dict)  # once complete: everything that the list of outputs names
    outputs_confirmed: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock, compare=False, repr=False)  # of `slots`

    @property
    def newest_slot(self) -> Slot | None:
        return next((slot for slot in self.slots if slot.name == self.newest and slot.commit is not None), None)

    @property
    def mounted(self) -> CheckpointInfo | None:
        """The newest checkpoint in the store, at the level that it has."""
        slot = self.newest_slot
        if slot is None:
            return None
        return slot.info(CheckpointLevel.CONFIRMED if slot.confirmed_at else CheckpointLevel.MOUNTED)

    @property
    def confirmed(self) -> Slot | None:
        """The newest that was seen by another path."""
        return next((slot for slot in self.good() if slot.confirmed_at), None)

    def good(self) -> list[Slot]:
        """Newest first."""
        found = [slot for slot in self.slots if slot.commit is not None and not store_slots.is_bad(slot, self.bad)]
        return sorted(found, key=lambda slot: slot.step, reverse=True)

    def unconfirmed(self) -> list[Slot]:
        """What is worth asking for: retention wants two confirmed, so nothing older than those."""
        wanted, seen = [], 0
        for slot in self.good():
            if seen >= store_slots.KEPT_CONFIRMED:
                break
            seen += bool(slot.confirmed_at)
            if not slot.confirmed_at:
                wanted.append(slot)
        return wanted

    def replace(self, slot: Slot) -> None:
        with self.lock:
            self.slots = [slot if known.name == slot.name else known for known in self.slots]

    def note_confirmed(self, slot: Slot) -> None:
        """Unless something else lies in that slot by now: it was asked for in another thread."""
        with self.lock:
            self.slots = [
                slot if known.name == slot.name and known.commit == slot.commit else known for known in self.slots
            ]

    def look(self, store: ObjectStore, root: str, run_dir: Path, record: RunRecord) -> None:
        """Read all slots. The one that this VM has itself read back in full is confirmed by that."""
        restored = files.read_json(run_dir / names.RESTORED)
        told = restored if isinstance(restored, dict) else {}
        slots = store_slots.read_slots(store, root)
        with self.lock:
            self.slots = slots
        if told.get("from", record.run_id) == record.run_id:
            self.bad = {str(item["name"]): int(item["step"]) for item in told.get("passed_over", [])}
        self.looked = True
        known = [slot for slot in self.slots if slot.name == self.newest and slot.attempt == self.attempt]
        newest = known[0] if known else store_slots.newest_good(self.slots, self.bad)
        if newest is None:
            self.newest = ""
            return
        self.newest = newest.name
        mine = told.get("from", record.run_id) == record.run_id and newest.step == told.get("step")
        if mine and not newest.confirmed_at:
            self.replace(store_slots.confirm(store, newest, f"restored by {record.vm_id}"))

    def local(self, run_dir: Path) -> list[Path]:
        """Checkpoint folders on this VM's disk, newest first, but for those known to be damaged."""
        found = []
        for folder in local_folders(run_dir):
            if self.damaged and (folder.name, _mtime_ns(folder)) in self.damaged:
                continue
            found.append(folder)
        return found

    def note_damaged(self, folder: Path) -> None:
        self.damaged.add((folder.name, _mtime_ns(folder)))

    def copy_changed(
        self, store: ObjectStore, target: str, run_dir: Path, relatives: Iterable[str], *, together: bool = False
    ) -> None:
        """In order; `together`: small ones many at a time, where the store takes them so."""
        due = [
            (relative, stamp)
            for relative in relatives
            if (stamp := stamp_of(run_dir / relative)) is not None and self.copied.get(relative) != stamp
        ]
        for batch in _batches(due, many=together and isinstance(store, PutsMany)):
            items = [(f"{target}/{relative}", run_dir / relative) for relative, _ in batch]
            if len(items) > 1 and isinstance(store, PutsMany):
                stored = store.put_many(items)
            else:
                stored = [store.put(key, source) for key, source in items]
            for (relative, stamp), item in zip(batch, stored, strict=True):
                self.sent[relative], self.copied[relative] = item, stamp

    def copy_logs(self, store: ObjectStore, target: str, run_dir: Path, vm_id: str) -> None:
        """What the laptop has of them is noted before they are copied, what they are afterwards."""
        if self.sums is None:
            self.sums = log_sums.read(store, target)
        lives = uploads.lives_to_leave(run_dir, vm_id, self.attempt)
        if lives != self.lives:
            store.put_bytes(f"{target}/{names.GENERATIONS}", lives)
            self.lives = lives
        self.copy_changed(store, target, run_dir, names.GROWING_FILES)
        log_sums.note(store, target, self.sums, self.sent, names.GROWING_FILES)

    def finish(self, store: ObjectStore, target: str, run_dir: Path, record: RunRecord) -> None:
        """After an end: artifacts, then the list of all outputs with their hashes, and exit.json last."""
        found = [*_OUTPUT_FILES, *outputs_module.find(run_dir)[0]]
        self.copy_changed(store, target, run_dir, found, together=True)
        sent = {name: self.sent[name] for name in found if stamp_of(run_dir / name) is not None}
        entries: list[dict[str, Any]] = []
        for name, stored in sent.items():
            if not any(there.size == stored.size for there in store.look(stored.key)):
                self.copied.pop(name, None)  # it is copied again the next time
                raise VerificationError(f"{name} reads back from the store with another size, or not at all")
            entries.append({"path": name, "size": stored.size, "sha256": stored.sha256, "md5": stored.md5})
        listing: dict[str, Any] = {"v": names.RECORD_VERSION, "run_id": record.run_id, "files": entries}
        listing["sha256"] = checkpoints.manifest_digest(listing)
        data = files.canonical_json(listing)
        list_key = f"{target}/{names.OUTPUTS}"
        store.put_bytes(list_key, data)
        last = store.put(f"{target}/{names.EXIT}", run_dir / names.EXIT)
        told = [*sent.values(), store_slots.describe(list_key, data), last]
        self.outputs = {stored.key: stored for stored in told}
        self.outputs_confirmed = store.proves
        self.complete_attempt = record.attempt


def confirmed_at_once(store: ObjectStore, slot: Slot) -> Slot:
    """Where a put that returns tells what the far end holds."""
    if not store.proves:
        return slot
    return dataclasses.replace(slot, confirmed_at=slot.created, confirmed_by=store.kind)


def _batches(due: list[tuple[str, Stamp]], *, many: bool) -> Iterator[list[tuple[str, Stamp]]]:
    """In order; small files many at a time where the store takes them so."""
    batch: list[tuple[str, Stamp]] = []
    total_bytes = 0
    for item in due:
        size_bytes = item[1][1]
        full = len(batch) == _BATCH_FILES or total_bytes + size_bytes > _BATCH_BYTES
        if batch and (full or not many):
            yield batch
            batch, total_bytes = [], 0
        batch.append(item)
        total_bytes += size_bytes
    if batch:
        yield batch


def local_folders(run_dir: Path) -> list[Path]:
    """Checkpoint folders on this VM's disk, newest first."""
    root = run_dir / names.CHECKPOINTS
    if not root.is_dir():
        return []
    found = [(step, entry) for entry in root.iterdir() if (step := checkpoints.step_of(entry)) is not None]
    return [entry for _, entry in sorted(found, reverse=True)]


def stamp_of(path: Path) -> Stamp | None:
    found = files.plain_stat(path)
    return None if found is None else (found.st_mtime_ns, found.st_size)


def _mtime_ns(folder: Path) -> int:
    try:
        return folder.stat().st_mtime_ns
    except FileNotFoundError:
        return 0
