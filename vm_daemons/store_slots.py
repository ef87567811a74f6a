"""One run's checkpoints in the durable store: three slots used in turn.

    checkpoints/slot-a/{step-00001200-000-state.pt, …, COMMIT.json}

On a synchronised drive the order of writing is not the order of upload, so nothing but the hashes can be believed: the
commit file holds every size and hash and its own, it is removed first and written last, and a reader checks all of it.
Only files that carry our own kind of name are ever removed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bridgehead import checkpoints, files, names, paths
from bridgehead.checkpoints import PassedOver
from bridgehead.errors import UsageError, VerificationError
from bridgehead.records import CheckpointInfo, RunRecord

SLOTS = ("slot-a", "slot-b", "slot-c")
_STORED = re.compile(r"step-\d{8,12}-\d{3,6}-[A-Za-z0-9_][A-Za-z0-9._+=@-]{0,127}\Z")
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class Slot:
    """A slot as its commit file describes it; `why` says what is wrong with a commit that can't be used."""

    folder: Path
    commit: dict[str, Any] | None
    why: str = ""

    @property
    def step(self) -> int:
        return int(self.commit["step"]) if self.commit is not None else -1

    @property
    def attempt(self) -> int:
        return int(self.commit["attempt"]) if self.commit is not None else 0

    def info(self, level: names.CheckpointLevel) -> CheckpointInfo:
        commit = self.commit or {}
        size_bytes = sum(int(entry["size"]) for entry in commit["files"])
        epoch = int(commit.get("epoch", 0))
        return CheckpointInfo(self.step, level, float(commit["created"]), size_bytes, epoch)


def read_slots(root: Path) -> list[Slot]:
    """All three, newest first. Raises OSError when the store can't be read."""
    slots = [_read_slot(root / name) for name in SLOTS]
    return sorted(slots, key=lambda slot: slot.step, reverse=True)


def newest_good(root: Path, bad: Mapping[str, int]) -> Slot | None:
    """The newest commit that was not found bad; `bad` has the step of each such slot by its name."""
    return next((slot for slot in read_slots(root) if slot.commit is not None and not _is_bad(slot, bad)), None)


def write_slot(root: Path, source: Path, manifest: dict[str, Any], run: RunRecord, bad: Mapping[str, int]) -> Slot:
    """Copy a local checkpoint into the slot that holds neither the newest nor the second newest, and commit it.

    What was found bad goes first, and what an earlier attempt left before what this one wrote.
    Raises VerificationError when the local files are not what their manifest says or the copy reads back differently,
    and OSError (no room, mount gone, the stage removed the checkpoint meanwhile). Then the slot holds no commit.
    """
    folder = min(read_slots(root), key=lambda slot: (not _is_bad(slot, bad), slot.attempt, slot.step)).folder
    folder.mkdir(parents=True, exist_ok=True)
    _empty(folder)
    step = int(manifest["step"])
    wanted = {entry["path"]: entry["sha256"] for entry in manifest["files"]}
    entries = []
    for index, path in enumerate([*wanted, names.CHECKPOINT_MANIFEST]):
        stored = f"{checkpoints.folder_name(step)}-{index:03d}-{Path(path).name}"
        size_bytes, sha256 = copy_checked(source / path, folder / stored)
        if wanted.get(path, sha256) != sha256:
            raise VerificationError(f"{path} of the local checkpoint {step} has another hash: a damaged block")
        entries.append({"path": path, "stored": stored, "size": size_bytes, "sha256": sha256})
    files.fsync_folder(folder)
    commit = {
        "v": names.RECORD_VERSION,
        "run_id": run.run_id,
        "attempt": run.attempt,
        "vm_id": run.vm_id,
        "step": step,
        "epoch": manifest.get("meta", {}).get("epoch", 0),
        "created": time.time(),
        "files": entries,
    }
    commit["sha256"] = checkpoints.manifest_digest(commit)
    files.write_json(folder / names.SLOT_COMMIT, commit)
    return Slot(folder, commit)


def restore_slot(slot: Slot, target_root: Path) -> Path:
    """Copy a committed slot to `target_root/step-N`; the copy is checked before it gets that name.

    Raises VerificationError when a file is missing, cut or damaged, and OSError when the local disk is full.
    """
    commit = slot.commit or {}
    target = target_root / checkpoints.folder_name(slot.step)
    with checkpoints.staging(target_root) as staged:
        for entry in commit["files"]:
            _fetch(slot.folder / entry["stored"], staged / entry["path"], entry)
        checkpoints.verify(staged)
        for folder in {path for path in staged.rglob("*") if path.is_dir()} | {staged}:
            files.fsync_folder(folder)
        if target.exists():
            shutil.rmtree(target)
        os.replace(staged, target)
        files.fsync_folder(target_root)
    return target


def restore_newest(root: Path, target_root: Path, newer_than: int) -> tuple[Slot | None, list[PassedOver], int]:
    """Try the commits newest first. Returns the restored slot, those passed over, and how many commits there were."""
    slots = [slot for slot in read_slots(root) if slot.commit is not None or slot.why]
    # Which step a damaged commit stood for nobody can tell, so it is named whatever else is found.
    passed = [PassedOver(slot.folder.name, -1, slot.why) for slot in slots if slot.commit is None]
    for slot in slots:
        if slot.step <= newer_than:
            break
        try:
            restore_slot(slot, target_root)
        except VerificationError as error:
            passed.append(PassedOver(slot.folder.name, slot.step, error.message))
            continue
        return slot, passed, len(slots)
    return None, passed, len(slots)


def copy_checked(source: Path, target: Path) -> tuple[int, str]:
    """Copy one file, fsync it, and read it back. Returns its size and SHA-256; the target is new or replaced.

    Raises VerificationError when it reads back differently, and OSError.
    """
    digest = hashlib.sha256()
    size_bytes = 0
    with source.open("rb") as reader, target.open("wb") as writer:
        for piece in _pieces(reader.fileno()):
            digest.update(piece)
            size_bytes += writer.write(piece)
        writer.flush()
        os.fsync(writer.fileno())
    sha256 = digest.hexdigest()
    if files.sha256_file(target) != sha256:
        raise VerificationError(f"{target.name} reads back from the store with another hash")
    return size_bytes, sha256


def _pieces(fd: int) -> Iterator[bytes]:
    while piece := os.read(fd, _CHUNK_BYTES):
        yield piece


def _fetch(source: Path, target: Path, entry: dict[str, Any]) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        size_bytes = source.stat().st_size
    except FileNotFoundError:
        raise VerificationError(f"{entry['path']} is missing") from None
    if size_bytes != entry["size"]:
        raise VerificationError(f"{entry['path']} has {size_bytes} bytes, not {entry['size']}")
    _, sha256 = copy_checked(source, target)
    if sha256 != entry["sha256"]:
        raise VerificationError(f"{entry['path']} has another hash: a damaged block")


def _is_bad(slot: Slot, bad: Mapping[str, int]) -> bool:
    return bad.get(slot.folder.name) == slot.step


def _read_slot(folder: Path) -> Slot:
    path = folder / names.SLOT_COMMIT
    try:
        size_bytes = path.stat().st_size
    except (FileNotFoundError, NotADirectoryError):
        return Slot(folder, None)
    if size_bytes > checkpoints.MANIFEST_MAX_BYTES:
        return Slot(folder, None, f"{names.SLOT_COMMIT} is over {checkpoints.MANIFEST_MAX_BYTES} bytes")
    commit = files.read_json(path)
    if not isinstance(commit, dict) or commit.get("sha256") != checkpoints.manifest_digest(commit):
        return Slot(folder, None, f"{names.SLOT_COMMIT} is cut or damaged")
    try:
        for entry in commit["files"]:
            paths.check_relative(entry["path"])
            if not _STORED.match(entry["stored"]):
                raise UsageError(f"not one of our names: {entry['stored']!r}")
    except (UsageError, KeyError, TypeError) as error:
        return Slot(folder, None, f"{names.SLOT_COMMIT} names files that it may not: {error}")
    return Slot(folder, commit)


def _empty(folder: Path) -> None:
    """Make a slot ready for new files: the commit first, then our own old files, cut to nothing before they go.

    A drive keeps what is deleted in its trash, which counts against the quota; an empty file weighs nothing there.
    """
    (folder / names.SLOT_COMMIT).unlink(missing_ok=True)
    for path in folder.iterdir():
        if _STORED.match(path.name) and path.is_file() and not path.is_symlink():
            os.truncate(path, 0)
            path.unlink()
    with contextlib.suppress(OSError):
        files.fsync_folder(folder)
