"""One run's checkpoints in the durable store: four slots used in turn.

    checkpoints/slot-a/{step-00001200-000-state.pt, …, COMMIT.json, CONFIRMED.json}

On a synchronised drive the order of writing is not the order of upload, so nothing but the hashes can be believed: the
commit file holds every size and hash and its own, it is removed first and written last, and a reader checks all of it.
CONFIRMED.json is advice for the choice of the next slot; no reader goes by it. Only objects that carry our own kind of
name are ever removed.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bridgehead import checkpoints, files, names, paths
from bridgehead.checkpoints import PassedOver
from bridgehead.errors import NotFoundError, StoreError, UsageError, VerificationError
from bridgehead.names import CheckpointLevel
from bridgehead.records import CheckpointInfo, RunRecord
from vm_daemons.storage.objects import Empties, ObjectStore, Stored

SLOTS = ("slot-a", "slot-b", "slot-c", "slot-d")
KEPT_CONFIRMED = 2
KEPT_UNCONFIRMED = 3  # while nothing is confirmed
FILES_A_FOLDER = 100  # beside as many emptied ones; big folders time out on a mounted drive
_STORED = re.compile(r"(?:more-\d{3}/)?step-\d{8,12}-\d{3,6}-[A-Za-z0-9_][A-Za-z0-9._+=@-]{0,127}\Z")
_MORE = re.compile(r"more-\d{3}\Z")
_LABEL_MAX = 80  # of the file's own name in its stored name; the commit has the whole path
_STEP_MAX = 10**12
_ADVICE_MAX_BYTES = 64 * 1024


class LocalDamage(VerificationError):
    """The checkpoint on this VM's disk is not what its manifest says; the store was not touched."""


@dataclass(frozen=True)
class Slot:
    """A slot as its commit file describes it; `why` says what is wrong with a commit that can't be used."""

    key: str
    commit: dict[str, Any] | None
    why: str = ""
    itself: Stored = Stored("", 0)  # the commit file
    newer: bool = False  # written by a newer Bridgehead: not ours to judge, and not to overwrite
    confirmed_at: float = 0.0  # 0: not confirmed
    confirmed_by: str = ""

    @property
    def name(self) -> str:
        return self.key.rpartition("/")[2]

    @property
    def step(self) -> int:
        return int(self.commit["step"]) if self.commit is not None else -1

    @property
    def attempt(self) -> int:
        return int(self.commit["attempt"]) if self.commit is not None else 0

    @property
    def created(self) -> float:
        """When the commit was written. Seconds since 1970."""
        return float(self.commit["created"]) if self.commit is not None else 0.0

    @property
    def saved_at(self) -> float:
        """When the stage made the checkpoint: what it did later is not in it. Seconds since 1970."""
        return float(self.commit.get("saved") or self.created) if self.commit is not None else 0.0

    def info(self, level: CheckpointLevel) -> CheckpointInfo:
        commit = self.commit or {"files": []}
        size_bytes = sum(int(entry["size"]) for entry in commit["files"])
        at = self.confirmed_at if level is CheckpointLevel.CONFIRMED and self.confirmed_at else self.created
        return CheckpointInfo(self.step, level, at, size_bytes, int(commit.get("epoch") or 0))

    def objects(self) -> dict[str, Stored]:
        """Key → size and digests of everything in it, the commit file included."""
        told = {}
        for entry in (self.commit or {"files": []})["files"]:
            key = f"{self.key}/{entry['stored']}"
            told[key] = Stored(key, int(entry["size"]), str(entry.get("md5", "")), str(entry["sha256"]))
        return {**told, self.itself.key: self.itself}


def read_slots(store: ObjectStore, root: str) -> list[Slot]:
    """All of them, newest first. Raises StoreError when the store can't be read."""
    slots = [_read_slot(store, f"{root}/{name}") for name in SLOTS]
    return sorted(slots, key=lambda slot: slot.step, reverse=True)


def newest_good(slots: list[Slot], bad: Mapping[str, int]) -> Slot | None:
    """The newest commit that was not found bad; `bad` has the step of each such slot by its name."""
    return next((slot for slot in slots if slot.commit is not None and not is_bad(slot, bad)), None)


def is_bad(slot: Slot, bad: Mapping[str, int]) -> bool:
    return bad.get(slot.name) == slot.step


def choose(slots: list[Slot], bad: Mapping[str, int]) -> Slot:
    """The slot to write next: an empty one, else the least needed. Raises StoreError when none may be overwritten.

    Kept are the newest two confirmed; the newest confirmed and the newest of the others while there is but one;
    the newest three while there is none.
    """
    order = sorted(slots, key=lambda slot: (slot.attempt, slot.step), reverse=True)
    good = [slot for slot in order if slot.commit is not None and not is_bad(slot, bad)]
    confirmed = [slot for slot in good if slot.confirmed_at]
    if len(confirmed) >= KEPT_CONFIRMED:
        kept = confirmed[:KEPT_CONFIRMED]
    elif confirmed:
        kept = confirmed + [slot for slot in good if not slot.confirmed_at][:1]
    else:
        kept = good[:KEPT_UNCONFIRMED]
    free = [slot for slot in slots if slot not in kept and not slot.newer]
    if not free:
        raise StoreError(
            "no slot may be overwritten: they are of a newer Bridgehead", hint="run the bootstrap cell again"
        )
    # Empty, damaged, refused by a reader, and only then good ones: an older attempt's first, and its oldest.
    return min(free, key=lambda slot: (slot.commit is not None, slot.why != "", not is_bad(slot, bad), *_age(slot)))


def write_slot(
    store: ObjectStore,
    target: Slot,
    source: Path,
    manifest: dict[str, Any],
    run: RunRecord,
    may_commit: Callable[[], None],
) -> Slot:
    """Copy a local checkpoint into the slot `target` and commit it.

    `may_commit` is called right before the commit and raises when the run belongs to another attempt by then.
    Raises LocalDamage, VerificationError when something reads back differently, StoreError, and OSError of the local
    disk (the stage removed the checkpoint meanwhile). Then the slot holds no commit, and every other one is untouched.
    """
    _empty(store, target.key)
    step = int(manifest["step"])
    wanted = {entry["path"]: entry["sha256"] for entry in manifest["files"]}
    entries = []
    for index, path in enumerate([*wanted, names.CHECKPOINT_MANIFEST]):
        stored = _stored_name(step, index, path)
        sent = store.put(f"{target.key}/{stored}", source / path)
        if wanted.get(path, sent.sha256) != sent.sha256:
            raise LocalDamage(f"{path} of the local checkpoint {step} has another hash: a damaged block")
        entries.append({"path": path, "stored": stored, "size": sent.size, "sha256": sent.sha256, "md5": sent.md5})
    commit = {
        "v": names.RECORD_VERSION,
        "run_id": run.run_id,
        "attempt": run.attempt,
        "vm_id": run.vm_id,
        "step": step,
        "epoch": manifest.get("meta", {}).get("epoch", 0),
        "created": time.time(),
        "saved": manifest.get("created", 0.0),
        "files": entries,
    }
    commit["sha256"] = checkpoints.manifest_digest(commit)
    may_commit()
    data = (json.dumps(commit, indent=2) + "\n").encode()
    key = f"{target.key}/{names.SLOT_COMMIT}"
    store.put_bytes(key, data)
    if store.read(key, checkpoints.MANIFEST_MAX_BYTES) != data:
        raise VerificationError(f"{key} reads back from the store differently")
    return Slot(target.key, commit, itself=describe(key, data))


def confirm(store: ObjectStore, slot: Slot, by: str) -> Slot:
    """Write down that somebody has seen all of it by another path. Raises StoreError."""
    at = time.time()
    told = {"v": names.RECORD_VERSION, "commit": (slot.commit or {}).get("sha256"), "by": by, "at": at}
    store.put_bytes(f"{slot.key}/{names.SLOT_CONFIRMED}", (json.dumps(told) + "\n").encode())
    return dataclasses.replace(slot, confirmed_at=at, confirmed_by=by)


def restore_slot(store: ObjectStore, slot: Slot, target_root: Path) -> Path:
    """Copy a committed slot to `target_root/step-N`; the copy is checked before it gets that name.

    Raises VerificationError when a file is missing, cut or damaged, StoreError, and OSError when the local disk is
    full.
    """
    commit = slot.commit or {}
    target = target_root / checkpoints.folder_name(slot.step)
    with checkpoints.staging(target_root) as staged:
        for entry in commit["files"]:
            _fetch(store, f"{slot.key}/{entry['stored']}", staged / entry["path"], entry)
        if checkpoints.verify(staged).step != slot.step:
            raise VerificationError(f"it holds another checkpoint than that of step {slot.step}")
        for folder in {path for path in staged.rglob("*") if path.is_dir()} | {staged}:
            files.fsync_folder(folder)
        if target.exists():
            shutil.rmtree(target)
        os.replace(staged, target)
        files.fsync_folder(target_root)
    return target


def restore_newest(
    store: ObjectStore, root: str, target_root: Path, newer_than: int
) -> tuple[Slot | None, list[PassedOver], int]:
    """Try the commits newest first. Returns the restored slot, those passed over, and how many commits there were."""
    slots = [slot for slot in read_slots(store, root) if slot.commit is not None or slot.why]
    # A damaged commit says nothing of its step, so it is named whatever else is found, with what its files' names say.
    passed = [PassedOver(slot.name, _step_by_names(store, slot), slot.why) for slot in slots if slot.commit is None]
    for slot in slots:
        if slot.step <= newer_than:
            break
        try:
            restore_slot(store, slot, target_root)
        except VerificationError as error:
            passed.append(PassedOver(slot.name, slot.step, error.message))
            continue
        return slot, passed, len(slots)
    return None, passed, len(slots)


def fits(store: ObjectStore, size_bytes: int, kept: int, quota_bytes: int = 0) -> str:
    """Empty when `kept` checkpoints of this size have room in the store, else one line that says what is missing.

    `quota_bytes` is the owner's own limit, 0 for none. Empty too where the store does not tell.
    """
    needed_bytes = size_bytes * kept
    if quota_bytes and needed_bytes > quota_bytes:
        return _too_big(size_bytes, kept, f"[store] quota_gb allows {_gib(quota_bytes)}")
    room = store.probe()
    if room.error or room.free_bytes is None or needed_bytes <= room.free_bytes:
        return ""
    trash = f", and {_gib(room.trash_bytes)} lie in its trash" if room.trash_bytes else ""
    return _too_big(size_bytes, kept, f"the store has {_gib(room.free_bytes)} free{trash}")


# --- inside ------------------------------------------------------------------------------------------


def _age(slot: Slot) -> tuple[int, int, str]:
    return slot.attempt, slot.step, slot.key


def _too_big(size_bytes: int, kept: int, but: str) -> str:
    return f"{kept} checkpoints of {_gib(size_bytes)} need {_gib(size_bytes * kept)}; {but}"


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / 2**30:.2f} GiB" if size_bytes >= 2**27 else f"{size_bytes / 2**20:.1f} MiB"


def _stored_name(step: int, index: int, path: str) -> str:
    label = re.sub(r"^[^A-Za-z0-9_]+", "", Path(path).name[-_LABEL_MAX:]) or "file"
    folder = "" if index < FILES_A_FOLDER else f"more-{index // FILES_A_FOLDER:03d}/"
    return f"{folder}{checkpoints.folder_name(step)}-{index:03d}-{label}"


def describe(key: str, data: bytes) -> Stored:
    md5 = hashlib.md5(data, usedforsecurity=False).hexdigest()
    return Stored(key, len(data), md5, hashlib.sha256(data).hexdigest())


def _fetch(store: ObjectStore, key: str, target: Path, entry: dict[str, Any]) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        got = store.get(key, target)
    except NotFoundError:
        raise VerificationError(f"{entry['path']} is missing") from None
    if got.size != entry["size"]:
        raise VerificationError(f"{entry['path']} has {got.size} bytes, not {entry['size']}")
    if got.sha256 != entry["sha256"]:
        raise VerificationError(f"{entry['path']} has another hash: a damaged block")


def _read_slot(store: ObjectStore, key: str) -> Slot:
    where = f"{key}/{names.SLOT_COMMIT}"
    try:
        data = store.read(where, checkpoints.MANIFEST_MAX_BYTES)
    except VerificationError as error:
        return Slot(key, None, error.message)
    if data is None:
        return Slot(key, None)
    commit = parse(data)
    version = commit.get("v") if isinstance(commit, dict) else None
    if isinstance(version, int) and version > names.RECORD_VERSION:
        return Slot(key, None, f"{names.SLOT_COMMIT} is of version {version}, of a newer Bridgehead", newer=True)
    if not isinstance(commit, dict) or commit.get("sha256") != checkpoints.manifest_digest(commit):
        return Slot(key, None, f"{names.SLOT_COMMIT} is cut or damaged")
    why = _what_is_wrong(commit)
    if why:
        return Slot(key, None, why)
    slot = Slot(key, commit, itself=describe(where, data))
    if store.proves:  # it was written after each of its files had been seen at the far end
        return dataclasses.replace(slot, confirmed_at=slot.created, confirmed_by=store.kind)
    return _with_advice(store, slot)


def _what_is_wrong(commit: dict[str, Any]) -> str:
    """With a commit whose own hash is right: somebody made it so, and it may still ask for what it may not."""
    try:
        if not 0 <= int(commit["step"]) < _STEP_MAX or not commit["files"]:
            return f"{names.SLOT_COMMIT} names no checkpoint"
        int(commit["attempt"]), float(commit["created"]), int(commit.get("epoch") or 0)
        for entry in commit["files"]:
            paths.check_relative(entry["path"])
            int(entry["size"]), str(entry["sha256"])
            if not _STORED.match(entry["stored"]):
                raise UsageError(f"not one of our names: {entry['stored'][:80]!r}")
    except (UsageError, KeyError, TypeError, ValueError) as error:
        return f"{names.SLOT_COMMIT} names files that it may not: {error}"
    return ""


def _with_advice(store: ObjectStore, slot: Slot) -> Slot:
    try:
        data = store.read(f"{slot.key}/{names.SLOT_CONFIRMED}", _ADVICE_MAX_BYTES)
    except VerificationError:
        return slot
    told = parse(data) if data is not None else None
    if not isinstance(told, dict) or told.get("commit") != (slot.commit or {}).get("sha256"):
        return slot
    try:
        return dataclasses.replace(slot, confirmed_at=float(told["at"]), confirmed_by=str(told.get("by", "")))
    except (KeyError, TypeError, ValueError):
        return slot


def parse(data: bytes) -> Any:
    """The JSON document, None for anything else."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def _step_by_names(store: ObjectStore, slot: Slot) -> int:
    """The highest step that the names of a slot's files tell; -1 when none does."""
    steps = [int(name.split("-")[1]) for name in store.list(slot.key) if _STORED.match(name) and "/" not in name]
    return max(steps, default=-1)


def _empty(store: ObjectStore, key: str) -> None:
    """Make a slot ready for new files: the commit first, then what we once wrote there.

    On a mounted drive the files are only cut to nothing, and removed when the slot is next made ready: to cut and
    unlink them at once would fill its trash with whole checkpoints.
    """
    store.delete(f"{key}/{names.SLOT_COMMIT}")
    store.delete(f"{key}/{names.SLOT_CONFIRMED}")
    found = store.list(key)
    for folder in [name for name in found if _MORE.match(name)]:
        found += [f"{folder}/{name}" for name in store.list(f"{key}/{folder}")]
    for name in found:
        if _STORED.match(name) and not (isinstance(store, Empties) and store.empty(f"{key}/{name}")):
            store.delete(f"{key}/{name}")
