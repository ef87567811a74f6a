"""The durable store of one project: the only thing that outlives a VM.

    <project>/runs/<run>/{run.json, log, …, checkpoints.json, artifacts/, bundle/, outputs.json, exit.json, lease.json,
                          checkpoints/slot-{a,b,c,d}/}

Objects are written whole under new names or replaced, never appended to. What is not ours is never touched. The
uploader mirrors runs into it, the command daemon restores from it, each in a thread that may hang with the store.
"""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bridgehead import checkpoints, files, names, paths
from bridgehead.errors import (
    BridgeheadError,
    NotFoundError,
    StoreDenied,
    StoreError,
    SupersededError,
    UsageError,
    VerificationError,
)
from bridgehead.names import CheckpointLevel
from bridgehead.records import CheckpointInfo, ExitRecord, RunRecord
from vm_daemons.home import VmHome
from vm_daemons.storage import store_choice, store_slots
from vm_daemons.storage.confirm import Confirmer
from vm_daemons.storage.objects import ObjectStore
from vm_daemons.storage.store_progress import Progress, confirmed_at_once, stamp_of
from vm_daemons.storage.store_slots import LocalDamage, Slot

_log = logging.getLogger(__name__)

STATUS_EVERY_S = 60.0  # each rewrite is a new revision on a drive, so a status goes there seldom
RECORD_MAX_BYTES = 16 * 2**20
_STATUS_FILES = (names.STATUS, names.STATUS_LINE, names.CHECKPOINT_LEVELS, names.RESULTS)
_SET_ASIDE = (names.LOG, names.PROGRESS, names.EXIT)  # of an earlier attempt, when a new one takes over


class Store:
    """One VM's view of the store. Methods raise StoreError when it is ill; what was there before stays good.

    Each thread gets an ObjectStore of its own by `choose`, anew when the cell has found another store.
    """

    def __init__(self, home: VmHome, choose: Callable[[], ObjectStore | None] | None = None) -> None:
        self._home = home
        self._choose = choose or (lambda: store_choice.choose(home))
        self._chosen = threading.local()
        self._progress: dict[Path, Progress] = {}

    @property
    def available(self) -> bool:
        """Whether there is a store at all; `probe` tells how it is."""
        return store_choice.is_configured(self._home)

    def objects(self) -> ObjectStore:
        """What lies below, for this thread. Raises NotFoundError when there is no store, StoreError."""
        stamp = store_choice.stamp(self._home)
        if getattr(self._chosen, "stamp", None) != stamp:
            self._chosen.objects = self._choose()
            self._chosen.stamp = stamp
        found: ObjectStore | None = self._chosen.objects
        if found is None:
            raise NotFoundError("no durable store is mounted", hint="mount it and run the bootstrap cell again")
        return found

    def probe(self) -> dict[str, Any]:
        """For the heartbeat and the preflight: path, ok, free_bytes, error, kind, trash_bytes, `denied` (the error is
        about credentials), `limited` (it says how much is free). Never raises; may hang as long as the store does.
        """
        try:
            objects = self.objects()
        except BridgeheadError as error:
            denied = isinstance(error, StoreDenied)
            return {"path": "", "ok": False, "free_bytes": 0, "error": error.in_one_line(), "denied": denied}
        room = objects.probe()
        return {
            "path": objects.where,
            "ok": not room.error,
            "free_bytes": room.free_bytes or 0,
            "error": room.error,
            "kind": objects.kind,
            "trash_bytes": room.trash_bytes,
            "denied": room.denied,
            "limited": room.free_bytes is not None,
        }

    def mirror(self, run_dir: Path) -> CheckpointInfo | None:
        """Bring the store up to date with a run folder; the newest checkpoint that is in the store, or None.

        Raises SupersededError when a later attempt has taken the run over, VerificationError when a copy reads back
        differently, StoreError, and OSError of the local disk.
        """
        record = _run_record(run_dir)
        if record is None or not self.available:
            return None
        known = self._known(run_dir, record)
        exit_data = files.read_json(run_dir / names.EXIT)
        if known.complete_attempt == record.attempt and exit_data is not None:
            return known.mounted
        if known.looked and exit_data is None and not self._is_due(known, run_dir):
            return known.mounted
        objects, target = self.objects(), self._folder(record.run_id)
        token = self._take_lease(objects, target, record)
        # Another store, or the same one emptied, is there now: what went into the one before counts for nothing.
        if known.token not in ("", token):
            known = self._progress[run_dir] = Progress(record.attempt)
        known.token = token
        try:
            self._bring(objects, target, known, run_dir, record, ended=exit_data is not None)
        except StoreError:
            known.looked = False  # a mount that is mounted again may have lost what it had not uploaded
            raise
        return known.mounted

    def mirrored(self, run_dir: Path) -> bool:
        """Whether the present attempt has ended and all that it left is in the store."""
        record = _run_record(run_dir)
        known = self._progress.get(run_dir)
        return record is not None and known is not None and known.complete_attempt == record.attempt

    def known(self, run_dir: Path) -> Progress | None:
        """What `mirror` has found out about a run; for the record of levels."""
        return self._progress.get(run_dir)

    def confirm(self, run_dir: Path, confirmer: Confirmer) -> bool:
        """Ask by another path for what is only mounted, newest first; True when something is confirmed that was not.

        Raises StoreError of either path.
        """
        known, record = self._progress.get(run_dir), _run_record(run_dir)
        if known is None or record is None:
            return False
        news = False
        for slot in known.unconfirmed():
            if confirmer.confirm(slot.objects()):
                known.note_confirmed(store_slots.confirm(self.objects(), slot, confirmer.name))
                news = True
        if known.complete_attempt == record.attempt and not known.outputs_confirmed:
            known.outputs_confirmed = confirmer.confirm(known.outputs)
            news = news or known.outputs_confirmed
        return news

    def restore(self, run_id: str, run_dir: Path) -> CheckpointInfo | None:
        """Bring the newest checkpoint that verifies into the run folder, when it is newer than the newest there.

        Takes the lease for the attempt in run.json first, so that a writer of an older attempt stops; not so when
        `run_id` is another run, whose checkpoint is only read. Returns None when the store holds no newer one. Raises
        VerificationError when it holds some and none verifies, SupersededError, StoreError, OSError. Bad ones are
        passed over, named in restore.json, and left where they are.
        """
        record = _run_record(run_dir)
        if record is None:
            raise NotFoundError(f"{run_dir} holds no {names.RUN_RECORD}")
        objects, folder = self.objects(), self._folder(run_id)
        stranger = self.recognise()  # before the lease is written there
        if run_id == record.run_id:
            self._take_lease(objects, folder, record)
        local_root = run_dir / names.CHECKPOINTS
        local, _ = checkpoints.newest(local_root)
        source = f"{folder}/{names.CHECKPOINTS}"
        slot, passed, commits = store_slots.restore_newest(objects, source, local_root, local.step if local else -1)
        note = "" if commits else stranger
        if slot is not None or passed or note:
            reached = slot.step if slot else local.step if local else None
            report = {
                "v": names.RECORD_VERSION,
                "attempt": record.attempt,
                "from": run_id,
                "step": slot.step if slot else None,
                "at": time.time(),
                "note": note,
                "passed_over": [
                    {"name": bad.name, "step": bad.step, "why": bad.why, "steps_lost": _lost(bad.step, reached)}
                    for bad in passed
                ],
            }
            files.write_json(run_dir / names.RESTORED, report)
        if slot is None and local is None and commits:
            raise VerificationError(
                f"none of {commits} checkpoints in the store verifies; the newest: {passed[0].why}",
                hint="queue a new run to start from the beginning",
            )
        return slot.info(CheckpointLevel.CONFIRMED) if slot is not None else None

    def recognise(self) -> str:
        """One line about a store that does not know this project; empty when it does. Raises StoreError."""
        objects, project = self.objects(), store_choice.project_of(self._home)
        found = objects.list("")
        if project in found:
            return ""
        if not found:
            return f"the store {objects.where} is empty: {project} begins there"
        if names.STORE_RUNS in found or names.STORE_VMS in found:
            return f"the store {objects.where} is the folder of one project, not the one that holds projects"
        others = [name for name in found[:20] if names.STORE_RUNS in objects.list(name)]
        if others:
            return f"the store {objects.where} holds {', '.join(others[:5])} and nothing of {project}"
        return f"the store {objects.where} holds other people's files and nothing of {project}"

    def exit_record(self, run_id: str) -> ExitRecord | None:
        """How a run ended whose output is in the store; None while it has not, or nobody knows it here."""
        if not self.available:
            return None
        try:
            data = self.objects().read(f"{self._folder(run_id)}/{names.EXIT}", RECORD_MAX_BYTES)
            return ExitRecord.from_json(store_slots.parse(data)) if data is not None else None
        except (UsageError, VerificationError):
            return None

    def fetch_run(self, run_id: str, dest: Path) -> Path:
        """Copy what a finished run left (artifacts, bundle, results, records) to `dest`, checked against its hashes.

        `dest` appears when all of it is there and right. Raises VerificationError, StoreError and OSError.
        """
        objects, source = self.objects(), self._folder(run_id)
        data = objects.read(f"{source}/{names.OUTPUTS}", RECORD_MAX_BYTES)
        listing = store_slots.parse(data) if data is not None else None
        if not isinstance(listing, dict) or listing.get("sha256") != checkpoints.manifest_digest(listing):
            raise VerificationError(f"{names.OUTPUTS} of {run_id} is missing, cut or damaged in the store")
        dest.parent.mkdir(parents=True, exist_ok=True)
        with checkpoints.staging(dest.parent) as staged:
            for entry in listing["files"]:
                _fetch_output(objects, source, staged, run_id, entry)
            objects.get(f"{source}/{names.EXIT}", staged / names.EXIT)
            if dest.exists():
                shutil.rmtree(dest)
            os.replace(staged, dest)
        return dest

    # --- inside ------------------------------------------------------------------------------------

    def _folder(self, run_id: str) -> str:
        return f"{store_choice.project_of(self._home)}/{names.STORE_RUNS}/{run_id}"

    def _known(self, run_dir: Path, record: RunRecord) -> Progress:
        known = self._progress.get(run_dir)
        if known is None or known.attempt != record.attempt:
            known = self._progress[run_dir] = Progress(record.attempt)
        return known

    def _is_due(self, known: Progress, run_dir: Path) -> bool:
        newest = next(iter(known.local(run_dir)), None)
        if newest is not None and checkpoints.step_of(newest) != (known.mounted.step if known.mounted else None):
            return True
        if known.copied.get(names.RUN_RECORD) != stamp_of(run_dir / names.RUN_RECORD):
            return True
        return time.monotonic() - known.status_at >= STATUS_EVERY_S

    def _bring(
        self, objects: ObjectStore, target: str, known: Progress, run_dir: Path, record: RunRecord, *, ended: bool
    ) -> None:
        if not known.looked:
            known.look(objects, f"{target}/{names.CHECKPOINTS}", run_dir, record)
        saved = self._bring_checkpoint(objects, target, known, run_dir, record)
        known.copy_changed(objects, target, run_dir, [names.RUN_RECORD])
        if saved or ended or time.monotonic() - known.status_at >= STATUS_EVERY_S:
            known.copy_changed(objects, target, run_dir, _STATUS_FILES)
            known.status_at = time.monotonic()
        if saved or ended:
            known.copy_logs(objects, target, run_dir, record.vm_id)
        if ended:
            known.finish(objects, target, run_dir, record)

    def _bring_checkpoint(
        self, objects: ObjectStore, target: str, known: Progress, run_dir: Path, record: RunRecord
    ) -> bool:
        """Copy the newest local checkpoint that is whole, if the store does not have it; True when one was copied."""
        for folder in known.local(run_dir):
            if known.mounted is not None and checkpoints.step_of(folder) == known.mounted.step:
                return False
            try:
                # A slow store takes longer than the stage keeps a checkpoint: what has begun must be able to end.
                with checkpoints.pinned(folder, run_dir / names.UPLOADING) as pin:
                    self._write(objects, target, known, pin, record, run_dir)
            except LocalDamage as error:
                if not (folder / names.CHECKPOINT_MANIFEST).exists():
                    return False  # the stage's own retention removed it meanwhile; the next call sees a newer one
                _log.warning("%s, %s: %s", record.run_id, folder.name, error.message)
                known.note_damaged(folder)  # an older one may be whole
                continue
            except FileNotFoundError:
                if (folder / names.CHECKPOINT_MANIFEST).exists():
                    raise
                return False  # likewise; a removal begins with the manifest
            return True
        return False

    def _write(
        self,
        objects: ObjectStore,
        target: str,
        known: Progress,
        folder: Path,
        record: RunRecord,
        run_dir: Path,
    ) -> None:
        try:
            manifest = checkpoints.verify(folder).manifest  # before anything in the store makes room for it
        except VerificationError as error:
            raise LocalDamage(error.message) from None
        # Looked at anew each time: what a mount had is not always what it has.
        known.look(objects, f"{target}/{names.CHECKPOINTS}", run_dir, record)
        victim = store_slots.choose(known.slots, known.bad)
        known.replace(Slot(victim.key, None))
        slot = store_slots.write_slot(
            objects, victim, folder, manifest, record, lambda: self._still_mine(objects, target, record)
        )
        known.replace(confirmed_at_once(objects, slot))
        known.newest = slot.name

    def _take_lease(self, objects: ObjectStore, target: str, record: RunRecord) -> str:
        """The token of the lease that this attempt holds."""
        key = f"{target}/{names.LEASE}"
        lease = _read_lease(objects, key)
        held, holder = int(lease.get("attempt") or 0), str(lease.get("vm_id") or "")
        if held and lease.get("command_id", record.command_id) != record.command_id:
            raise VerificationError(
                f"{record.run_id} in the store {objects.where} is of another project of the same name",
                hint=f"give this project a [store] path of its own in {names.PROJECT_FILE}",
            )
        if held > record.attempt or (held == record.attempt and holder not in ("", record.vm_id)):
            raise SupersededError(f"attempt {held} on {holder} has taken {record.run_id} over in the store")
        if held == record.attempt:
            return str(lease.get("token") or "untold")
        if held:
            for name in _SET_ASIDE:
                self._set_aside(objects, f"{target}/{name}", held)
        lease = {
            "v": names.RECORD_VERSION,
            "vm_id": record.vm_id,
            "attempt": record.attempt,
            "at": time.time(),
            "token": secrets.token_hex(8),
            "command_id": record.command_id,
        }
        objects.put_bytes(key, files.canonical_json(lease))
        return str(lease["token"])

    def _set_aside(self, objects: ObjectStore, key: str, attempt: int) -> None:
        temp = self._home.state / f"{files.TEMP_PREFIX}{secrets.token_hex(8)}"
        try:
            objects.get(key, temp)
            objects.put(f"{key}.{attempt}", temp)
            objects.delete(key)
        except NotFoundError:
            return
        finally:
            temp.unlink(missing_ok=True)

    def _still_mine(self, objects: ObjectStore, target: str, record: RunRecord) -> None:
        self._take_lease(objects, target, record)


def _read_lease(objects: ObjectStore, key: str) -> dict[str, Any]:
    """Empty when there is none or it can't be read. Raises VerificationError for one of a newer version."""
    data = objects.read(key, RECORD_MAX_BYTES)
    lease = store_slots.parse(data) if data is not None else None
    if not isinstance(lease, dict):
        return {}
    version, attempt = lease.get("v"), lease.get("attempt")
    if isinstance(version, int) and version > names.RECORD_VERSION:
        raise VerificationError(f"{key} is of version {version}, of a newer Bridgehead", hint="run the bootstrap cell")
    return lease if isinstance(attempt, int) else {}


def _run_record(run_dir: Path) -> RunRecord | None:
    try:
        return RunRecord.from_json(files.read_json(run_dir / names.RUN_RECORD))
    except UsageError:
        return None


def _lost(step: int, reached: int | None) -> int | None:
    """Steps that have to be done again because a checkpoint was passed over; None when nobody can tell."""
    return max(0, step - (reached or 0)) if step >= 0 else None


def _fetch_output(objects: ObjectStore, source: str, staged: Path, run_id: str, entry: dict[str, Any]) -> None:
    try:
        relative = paths.check_relative(entry["path"])
    except UsageError as error:
        raise VerificationError(
            f"{names.OUTPUTS} of {run_id} names a file outside its folder: {error.message}"
        ) from None
    target = staged / relative
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        got = objects.get(f"{source}/{relative}", target)
    except NotFoundError:
        raise VerificationError(f"{relative} of {run_id} is missing in the store") from None
    if got.sha256 != entry["sha256"]:
        raise VerificationError(f"{relative} of {run_id} has another hash in the store: a damaged block")
