"""The durable store: a mounted folder, the only thing that outlives a VM.

    <store>/<project>/runs/<run>/{run.json, log, …, artifacts/, bundle/, outputs.json, exit.json, lease.json,
                                  checkpoints/slot-{a,b,c}/}

Files are copied whole under new names or replaced, never appended to. What is not ours is never touched. The status
daemon mirrors runs into it, the command daemon restores from it; both from a thread that may hang when the mount does.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import shutil
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bridgehead import checkpoints, files, names, paths
from bridgehead.errors import NotFoundError, SupersededError, UsageError, VerificationError
from bridgehead.names import CheckpointLevel
from bridgehead.records import CheckpointInfo, ExitRecord, RunRecord
from vm_daemons import outputs as outputs_module
from vm_daemons import store_slots
from vm_daemons.home import VmHome

_log = logging.getLogger(__name__)

STATUS_EVERY_S = 60.0  # each rewrite is a new revision on a drive, so a status goes there seldom
_OUTPUT_FILES = (names.RUN_RECORD, names.RESULTS)
_SET_ASIDE = (names.LOG, names.PROGRESS, names.EXIT)  # of an earlier attempt, when a new one takes over


@dataclass
class _Progress:
    """What this process knows to be in the store, so that a call costs nothing when nothing has changed."""

    root: tuple[int, int] = (0, 0)  # device and inode of the store's folder
    leased_attempt: int = 0
    mounted: CheckpointInfo | None = None
    looked: bool = False  # the slots have been read once
    copied: dict[str, tuple[int, int]] = field(default_factory=dict)  # file -> (mtime_ns, size) when it was copied
    status_at: float = 0.0
    complete_attempt: int = 0  # this attempt has ended and all it left is in the store


class Store:
    """One VM's view of the store. Methods raise OSError when the mount is ill; what was there before stays good."""

    def __init__(self, home: VmHome) -> None:
        self._home = home
        self._progress: dict[Path, _Progress] = {}

    @property
    def available(self) -> bool:
        """Whether the cell found a store at all; `probe` tells how it is."""
        return self._home.store_path() is not None

    def probe(self) -> dict[str, Any]:
        """For the heartbeat: path, ok, free_bytes, error. Never raises; may hang as long as the mount does."""
        path = self._home.store_path()
        if path is None:
            return {"path": "", "ok": False, "free_bytes": 0, "error": "no durable store is mounted"}
        try:
            next(iter(os.scandir(path)), None)
            room = os.statvfs(path)
        except OSError as error:
            return {"path": str(path), "ok": False, "free_bytes": 0, "error": error.strerror or "unreadable"}
        writable = os.access(path, os.W_OK)
        free_bytes = room.f_bavail * room.f_frsize
        return {
            "path": str(path),
            "ok": writable,
            "free_bytes": free_bytes,
            "error": "" if writable else "it can't be written to",
        }

    def mirror(self, run_dir: Path) -> CheckpointInfo | None:
        """Bring the store up to date with a run folder; the newest checkpoint that is in the store, or None.

        Raises SupersededError when a later attempt has taken the run over, VerificationError when a copy reads back
        differently, and OSError.
        """
        record = _run_record(run_dir)
        if record is None or not self.available:
            return None
        known = self._progress.setdefault(run_dir, _Progress())
        target = self._folder(record.run_id)
        root = self._root()
        # Another store, or the same one emptied, is there now: what went into the one before counts for nothing.
        swapped = known.looked and (root != known.root or not (target / names.LEASE).exists())
        if known.leased_attempt != record.attempt or swapped:
            known = self._progress[run_dir] = _Progress(root=root)
        exit_data = files.read_json(run_dir / names.EXIT)
        if known.complete_attempt == record.attempt and exit_data is not None:
            return known.mounted
        newest = _newest_folder(run_dir / names.CHECKPOINTS)
        if known.looked and exit_data is None and not self._is_due(known, run_dir, newest):
            return known.mounted
        self._take_lease(target, record)
        known.leased_attempt = record.attempt
        if not known.looked:
            known.mounted = _mounted(target, run_dir)
            known.looked = True
        saved = self._mirror_checkpoint(known, run_dir, target, record)
        self._copy_changed(known, run_dir, target, [names.RUN_RECORD])
        if saved or exit_data is not None or time.monotonic() - known.status_at >= STATUS_EVERY_S:
            self._copy_changed(known, run_dir, target, [names.STATUS, names.STATUS_LINE, names.RESULTS])
            known.status_at = time.monotonic()
        if saved or exit_data is not None:
            self._copy_changed(known, run_dir, target, names.GROWING_FILES)
        if exit_data is not None:
            self._finish(known, run_dir, target, record)
        return known.mounted

    def mirrored(self, run_dir: Path) -> bool:
        """Whether the present attempt has ended and all that it left is in the store."""
        record = _run_record(run_dir)
        known = self._progress.get(run_dir)
        return record is not None and known is not None and known.complete_attempt == record.attempt

    def restore(self, run_id: str, run_dir: Path) -> CheckpointInfo | None:
        """Bring the newest checkpoint that verifies into the run folder, when it is newer than the newest there.

        Takes the lease for the attempt in run.json first, so that a writer of an older attempt stops. Returns None
        when the store holds no newer one. Raises VerificationError when it holds some and none verifies,
        SupersededError, OSError. Bad ones are passed over, named in restore.json, and left where they are.
        """
        record = _run_record(run_dir)
        if record is None:
            raise NotFoundError(f"{run_dir} holds no {names.RUN_RECORD}")
        folder = self._folder(run_id)
        self._take_lease(folder, record)
        local_root = run_dir / names.CHECKPOINTS
        local, _ = checkpoints.newest(local_root)
        source = folder / names.CHECKPOINTS
        slot, passed, commits = store_slots.restore_newest(source, local_root, local.step if local else -1)
        if slot is not None or passed:
            report = {
                "v": names.RECORD_VERSION,
                "attempt": record.attempt,
                "step": slot.step if slot else None,
                "at": time.time(),
                "passed_over": [{"name": bad.name, "step": bad.step, "why": bad.why} for bad in passed],
            }
            files.write_json(run_dir / names.RESTORED, report)
        if slot is None and local is None and commits:
            raise VerificationError(
                f"none of {commits} checkpoints in the store verifies; the newest: {passed[0].why}",
                hint="queue a new run to start from the beginning",
            )
        return slot.info(CheckpointLevel.CONFIRMED) if slot is not None else None

    def exit_record(self, run_id: str) -> ExitRecord | None:
        """How a run ended whose output is in the store; None while it has not, or nobody knows it here."""
        if not self.available:
            return None
        data = files.read_json(self._folder(run_id) / names.EXIT)
        try:
            return ExitRecord.from_json(data) if data is not None else None
        except UsageError:
            return None

    def fetch_run(self, run_id: str, dest: Path) -> Path:
        """Copy what a finished run left (artifacts, bundle, results, records) to `dest`, checked against its hashes.

        `dest` appears when all of it is there and right. Raises VerificationError and OSError.
        """
        source = self._folder(run_id)
        outputs = files.read_json(source / names.OUTPUTS)
        if not isinstance(outputs, dict) or outputs.get("sha256") != checkpoints.manifest_digest(outputs):
            raise VerificationError(f"{names.OUTPUTS} of {run_id} is missing, cut or damaged in the store")
        dest.parent.mkdir(parents=True, exist_ok=True)
        with checkpoints.staging(dest.parent) as staged:
            for entry in outputs["files"]:
                _fetch_output(source, staged, run_id, entry)
            shutil.copyfile(source / names.EXIT, staged / names.EXIT)
            if dest.exists():
                shutil.rmtree(dest)
            os.replace(staged, dest)
        return dest

    # --- inside ------------------------------------------------------------------------------------

    def _folder(self, run_id: str) -> Path:
        root = self._home.store_path()
        if root is None:
            raise NotFoundError("no durable store is mounted", hint="mount it and run the bootstrap cell again")
        if not root.is_dir():
            raise OSError(f"the store {root} is gone")
        return root / str(self._home.record().get("project") or "project") / names.VM_RUNS / run_id

    def _root(self) -> tuple[int, int]:
        path = self._home.store_path()
        found = path.stat() if path is not None else None
        return (found.st_dev, found.st_ino) if found is not None else (0, 0)

    def _is_due(self, known: _Progress, run_dir: Path, newest: Path | None) -> bool:
        if newest is not None and checkpoints.step_of(newest) != (known.mounted.step if known.mounted else None):
            return True
        if known.copied.get(names.RUN_RECORD) != _stamp(run_dir / names.RUN_RECORD):
            return True
        return time.monotonic() - known.status_at >= STATUS_EVERY_S

    def _take_lease(self, target: Path, record: RunRecord) -> None:
        path = target / names.LEASE
        lease = files.read_json(path)
        held = int(lease.get("attempt", 0)) if isinstance(lease, dict) else 0
        holder = str(lease.get("vm_id", "")) if isinstance(lease, dict) else ""
        if held > record.attempt or (held == record.attempt and holder not in ("", record.vm_id)):
            raise SupersededError(f"attempt {held} on {holder} has taken {record.run_id} over in the store")
        if held == record.attempt:
            return
        target.mkdir(parents=True, exist_ok=True)
        if held:
            for name in _SET_ASIDE:
                with contextlib.suppress(FileNotFoundError):
                    os.replace(target / name, target / f"{name}.{held}")
        lease = {"v": names.RECORD_VERSION, "vm_id": record.vm_id, "attempt": record.attempt, "at": time.time()}
        files.write_json(path, lease)

    def _mirror_checkpoint(self, known: _Progress, run_dir: Path, target: Path, record: RunRecord) -> bool:
        """Copy the newest local checkpoint that is whole, if the store does not have it; True when one was copied."""
        for folder in _folders(run_dir / names.CHECKPOINTS):
            step = checkpoints.step_of(folder)
            if known.mounted is not None and step == known.mounted.step:
                return False
            try:
                manifest = checkpoints.read_manifest(folder / names.CHECKPOINT_MANIFEST)
                slot = store_slots.write_slot(target / names.CHECKPOINTS, folder, manifest, record, _found_bad(run_dir))
            except VerificationError:
                if (folder / names.CHECKPOINT_MANIFEST).exists():
                    continue  # damaged on the local disk: an older one may be whole
                return False
            except FileNotFoundError:  # the stage's own retention removed it meanwhile; the next call sees a newer one
                if folder.exists():
                    raise
                return False
            known.mounted = slot.info(CheckpointLevel.MOUNTED)
            return True
        return False

    def _copy_changed(self, known: _Progress, run_dir: Path, target: Path, relatives: Iterable[str]) -> None:
        for relative in relatives:
            stamp = _stamp(run_dir / relative)
            if stamp is None or known.copied.get(relative) == stamp:
                continue
            (target / relative).parent.mkdir(parents=True, exist_ok=True)
            _copy_whole(run_dir / relative, target / relative)
            known.copied[relative] = stamp

    def _finish(self, known: _Progress, run_dir: Path, target: Path, record: RunRecord) -> None:
        """After an end: artifacts, then the list of all outputs with their hashes, and exit.json last."""
        outputs = [*_OUTPUT_FILES, *outputs_module.find(run_dir)[0]]
        self._copy_changed(known, run_dir, target, outputs)
        entries: list[dict[str, Any]] = [
            {"path": name, "size": (run_dir / name).stat().st_size, "sha256": files.sha256_file(run_dir / name)}
            for name in outputs
            if files.plain_stat(run_dir / name) is not None
        ]
        listing: dict[str, Any] = {"v": names.RECORD_VERSION, "run_id": record.run_id, "files": entries}
        listing["sha256"] = checkpoints.manifest_digest(listing)
        for entry in entries:
            there = target / entry["path"]
            if files.plain_stat(there) is None or files.sha256_file(there) != entry["sha256"]:
                known.copied.pop(entry["path"], None)  # it is copied again the next time
                raise VerificationError(f"{entry['path']} reads back from the store with another hash, or not at all")
        files.write_json(target / names.OUTPUTS, listing)
        _copy_whole(run_dir / names.EXIT, target / names.EXIT)
        known.complete_attempt = record.attempt


def _run_record(run_dir: Path) -> RunRecord | None:
    try:
        return RunRecord.from_json(files.read_json(run_dir / names.RUN_RECORD))
    except UsageError:
        return None


def _mounted(target: Path, run_dir: Path) -> CheckpointInfo | None:
    """The newest commit in the store; confirmed when this VM has itself read it back in full."""
    slot = store_slots.newest_good(target / names.CHECKPOINTS, _found_bad(run_dir))
    if slot is None:
        return None
    restored = files.read_json(run_dir / names.RESTORED)
    confirmed = isinstance(restored, dict) and restored.get("step") == slot.step
    return slot.info(CheckpointLevel.CONFIRMED if confirmed else CheckpointLevel.MOUNTED)


def _found_bad(run_dir: Path) -> dict[str, int]:
    """Slot name -> step of the commits that the restore of this attempt passed over."""
    restored = files.read_json(run_dir / names.RESTORED)
    passed = restored.get("passed_over", []) if isinstance(restored, dict) else []
    return {str(item["name"]): int(item["step"]) for item in passed}


def _folders(root: Path) -> list[Path]:
    """Checkpoint folders, newest first."""
    if not root.is_dir():
        return []
    found = [(step, entry) for entry in root.iterdir() if (step := checkpoints.step_of(entry)) is not None]
    return [entry for _, entry in sorted(found, reverse=True)]


def _newest_folder(root: Path) -> Path | None:
    return next(iter(_folders(root)), None)


def _stamp(path: Path) -> tuple[int, int] | None:
    found = files.plain_stat(path)
    return None if found is None else (found.st_mtime_ns, found.st_size)


def _copy_whole(source: Path, target: Path) -> None:
    with source.open("rb") as reader, files.atomic_writer(target) as writer:
        shutil.copyfileobj(reader, writer, 1 << 20)


def _fetch_output(source: Path, staged: Path, run_id: str, entry: dict[str, Any]) -> None:
    try:
        relative = paths.check_relative(entry["path"])
    except UsageError as error:
        raise VerificationError(
            f"{names.OUTPUTS} of {run_id} names a file outside its folder: {error.message}"
        ) from None
    target = staged / relative
    target.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    try:
        with (source / relative).open("rb") as reader, target.open("wb") as writer:
            while piece := reader.read(1 << 20):
                digest.update(piece)
                writer.write(piece)
    except FileNotFoundError:
        raise VerificationError(f"{relative} of {run_id} is missing in the store") from None
    if digest.hexdigest() != entry["sha256"]:
        raise VerificationError(f"{relative} of {run_id} has another hash in the store: a damaged block")
