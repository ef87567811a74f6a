"""Checkpoints on the VM's own disk: a folder with a manifest that holds every size and hash.

    checkpoints/step-00001200/{your files…, manifest.json}

No loader of torch, safetensors or onnxruntime notices a flipped or zeroed block, so a reader checks every hash
*before* it loads. A folder appears by rename, after each file and the manifest were fsynced: level "local".
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import operator
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bridgehead import files, names, paths
from bridgehead.errors import UsageError, VerificationError

_FOLDER = re.compile(r"step-(\d{8,12})\Z")
_SHA256 = re.compile(r"[0-9a-f]{64}\Z")
STEP_MAX = 10**12 - 1  # what fits a folder's name
MANIFEST_MAX_BYTES = 4 * 2**20
QUARANTINE_PREFIX = "bad-"
QUARANTINE_KEPT = 2  # for a post-mortem


class CheckpointRefused(VerificationError):
    """A run can't go on from what it found. Shipped stages end with an exit code of their own for it."""

    exit_code = names.CHECKPOINT_EXIT_CODE


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose every byte has been checked. `meta` is what its writer put there."""

    folder: Path
    step: int
    manifest: dict[str, Any]

    @property
    def meta(self) -> dict[str, Any]:
        meta: dict[str, Any] = self.manifest["meta"]
        return meta

    @property
    def size_bytes(self) -> int:
        return sum(int(entry["size"]) for entry in self.manifest["files"])

    def path(self, name: str) -> Path:
        return self.folder / name


@dataclass(frozen=True)
class PassedOver:
    """A checkpoint that did not verify, and why; it was renamed out of the way, not deleted."""

    name: str
    step: int
    why: str


def folder_name(step: int) -> str:
    return f"step-{step:08d}"


def step_of(folder: Path) -> int | None:
    """The step in a checkpoint folder's name, None for any other folder."""
    match = _FOLDER.match(folder.name)
    return int(match[1]) if match else None


@contextlib.contextmanager
def staging(root: Path) -> Iterator[Path]:
    """A fresh folder beside the checkpoints to write files into; gone again unless committed."""
    root.mkdir(parents=True, exist_ok=True)
    folder = root / f"{files.TEMP_PREFIX}{secrets.token_hex(8)}"
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def commit(staged: Path, root: Path, step: int, meta: Mapping[str, Any]) -> Checkpoint:
    """Turn a staged folder into checkpoint `step`: fsync and hash its files, write the manifest, rename.

    A checkpoint of the same step is replaced. Raises UsageError (no files, bad step, unsafe names) and OSError.
    """
    step = check_step(step)
    entries = [_sync_and_hash(staged, path) for path in sorted(staged.rglob("*")) if path.is_file()]
    if not entries:
        raise UsageError(f"checkpoint of step {step} holds no file")
    manifest = {"v": names.RECORD_VERSION, "step": step, "created": time.time(), "files": entries, "meta": dict(meta)}
    manifest["sha256"] = manifest_digest(manifest)
    files.write_json(staged / names.CHECKPOINT_MANIFEST, manifest)
    for folder in {path for path in staged.rglob("*") if path.is_dir()} | {staged}:
        files.fsync_folder(folder)
    target = root / folder_name(step)
    with _aside(target, root):
        os.replace(staged, target)
    files.fsync_folder(root)
    return Checkpoint(target, step, manifest)


def check_step(step: int) -> int:
    """The step as a plain integer. Raises UsageError for one that no folder name holds."""
    try:
        number = operator.index(step)
    except TypeError:
        raise UsageError(f"a checkpoint's step is a whole number, not {step!r}") from None
    if not 0 <= number <= STEP_MAX:
        shown = str(number) if abs(number) < 10**30 else "a number of over 30 digits"
        raise UsageError(f"a checkpoint's step must be 0 to {STEP_MAX}: {shown}")
    return number


def verify(folder: Path) -> Checkpoint:
    """Check the manifest and every size and hash. Raises VerificationError that says what is wrong."""
    manifest = read_manifest(folder / names.CHECKPOINT_MANIFEST)
    step = step_of(folder)
    if step is not None and step != manifest["step"]:
        raise VerificationError(f"{folder.name} holds the manifest of step {manifest['step']}")
    for entry in manifest["files"]:
        try:
            _check_file(paths.inside(folder, entry["path"]), entry)
        except UsageError as error:
            raise VerificationError(error.message) from None
        except OSError as error:
            raise VerificationError(f"{entry['path']} can't be read: {error.strerror}") from None
    return Checkpoint(folder, manifest["step"], manifest)


def read_manifest(path: Path) -> dict[str, Any]:
    """A manifest whose own digest, version and file names check out. Raises VerificationError."""
    try:
        size = path.stat().st_size
        manifest = files.read_json(path) if size <= MANIFEST_MAX_BYTES else None
    except OSError as error:
        raise VerificationError(f"{path.name} can't be read: {error.strerror}") from None
    if size > MANIFEST_MAX_BYTES:
        raise VerificationError(f"{path.name} is over {MANIFEST_MAX_BYTES} bytes")
    if not isinstance(manifest, dict):
        raise VerificationError(f"{path.name} is cut or not JSON")
    version = manifest.get("v")
    if version != names.RECORD_VERSION:
        newer = isinstance(version, int) and version > names.RECORD_VERSION
        why = f", newer than this Bridgehead, which reads {names.RECORD_VERSION}" if newer else ""
        raise VerificationError(f"{path.name} is of version {version!r}{why}")
    if manifest.get("sha256") != manifest_digest(manifest):
        raise VerificationError(f"{path.name} does not match its own hash")
    _check_shape(manifest, path.name)
    return manifest


def manifest_digest(manifest: Mapping[str, Any]) -> str:
    """SHA-256 of the manifest without its own `sha256` member."""
    body = {key: value for key, value in manifest.items() if key != "sha256"}
    return hashlib.sha256(files.canonical_json(body)).hexdigest()


def newest(root: Path) -> tuple[Checkpoint | None, list[PassedOver]]:
    """The newest checkpoint that verifies, by step and never by mtime, and those passed over on the way.

    A bad one is renamed to `bad-step-…`, so it is looked at once and kept for a post-mortem.
    """
    passed: list[PassedOver] = []
    for folder in sorted(_folders(root), key=_step, reverse=True):
        try:
            return verify(folder), passed
        except VerificationError as error:
            passed.append(PassedOver(folder.name, _step(folder), error.message))
            _quarantine(folder)
    return None, passed


def newest_meta(root: Path) -> dict[str, Any]:
    """What the writer of the newest commit that can be read put there, its files unread; empty when there is none."""
    for folder in sorted(_folders(root), key=_step, reverse=True):
        with contextlib.suppress(VerificationError):
            meta: dict[str, Any] = read_manifest(folder / names.CHECKPOINT_MANIFEST)["meta"]
            return meta
    return {}


def quarantined(root: Path) -> list[Path]:
    """Those that were passed over, now or earlier, oldest step first."""
    found = [
        (step, folder)
        for folder in root.glob(f"{QUARANTINE_PREFIX}*")
        if (step := step_of(Path(folder.name.removeprefix(QUARANTINE_PREFIX)))) is not None
    ]
    return [folder for _, folder in sorted(found)]


def all_damaged(root: Path) -> bool:
    """Whether there were checkpoints and none is left that may be good: only another copy helps."""
    return bool(quarantined(root)) and not _folders(root)


@contextlib.contextmanager
def pinned(folder: Path, pins: Path) -> Iterator[Path]:
    """Second names (hard links, below `pins`) for a checkpoint's files, so that retention can't take it from a reader.

    One at a time: what an earlier reader left in `pins` goes. Where the disk knows no links it is the folder itself.
    Raises FileNotFoundError when the checkpoint went away meanwhile, and OSError.
    """
    shutil.rmtree(pins, ignore_errors=True)
    pin = pins / folder.name
    try:
        pin.mkdir(parents=True)
        linked = _link_all(folder, pin)
        yield pin if linked else folder
    finally:
        shutil.rmtree(pins, ignore_errors=True)


def retain(root: Path, keep: int) -> list[str]:
    """Remove all but the newest `keep` (at least 2) checkpoint folders, and old quarantined ones.

    Only names that we wrote. Returns the names of the checkpoints that went.
    """
    old = sorted(_folders(root), key=_step)[: -max(2, keep)]
    for folder in old + quarantined(root)[:-QUARANTINE_KEPT]:
        with contextlib.suppress(OSError):
            (folder / names.CHECKPOINT_MANIFEST).unlink(missing_ok=True)  # first: half a removal never verifies
        shutil.rmtree(folder, ignore_errors=True)
    return [folder.name for folder in old]


def sweep(root: Path) -> None:
    """Remove staging folders that a killed writer left."""
    for folder in root.glob(f"{files.TEMP_PREFIX}*"):
        shutil.rmtree(folder, ignore_errors=True)


def _link_all(folder: Path, pin: Path) -> bool:
    """The manifest first: a removal begins with it, so what has it was whole. False where there are no hard links."""
    found = sorted(path for path in folder.rglob("*") if not path.is_dir())
    for path in sorted(found, key=lambda path: path != folder / names.CHECKPOINT_MANIFEST):
        target = pin / path.relative_to(folder)
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(path, target, follow_symlinks=False)
        except OSError as error:
            if error.errno in (errno.EPERM, errno.ENOTSUP, errno.EMLINK, errno.ENOSYS):
                return False
            raise
    if not (pin / names.CHECKPOINT_MANIFEST).exists():
        raise FileNotFoundError(errno.ENOENT, "the checkpoint went away", str(folder))
    return True


def _folders(root: Path) -> list[Path]:
    if not root.is_dir():
        return []
    return [entry for entry in root.iterdir() if entry.is_dir() and step_of(entry) is not None]


def _step(folder: Path) -> int:
    return step_of(folder) or 0


@contextlib.contextmanager
def _aside(target: Path, root: Path) -> Iterator[None]:
    """Keep what lies at `target` until the block has put something else there: at no time are its bytes gone first."""
    if not target.exists():
        yield
        return
    old = root / f"{files.TEMP_PREFIX}{secrets.token_hex(8)}"
    os.replace(target, old)
    try:
        yield
    except OSError:
        os.replace(old, target)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _check_file(path: Path, entry: Mapping[str, Any]) -> None:
    found = files.plain_stat(path)
    if found is None:
        raise VerificationError(f"{entry['path']} is missing or no plain file")
    if found.st_size != entry["size"]:
        raise VerificationError(f"{entry['path']} has {found.st_size} bytes, not {entry['size']}")
    if files.sha256_file(path) != entry["sha256"]:
        raise VerificationError(f"{entry['path']} has another hash: a damaged block")


def _check_shape(manifest: Mapping[str, Any], name: str) -> None:
    """Its own hash proves that it is whole, not that it was us who wrote it."""
    step, entries = manifest.get("step"), manifest.get("files")
    if type(step) is not int or not 0 <= step <= STEP_MAX or not isinstance(manifest.get("meta"), dict):
        raise VerificationError(f"{name} lacks a step or what describes it")
    if not isinstance(entries, list) or not entries:
        raise VerificationError(f"{name} names no file")
    for entry in entries:
        sized = isinstance(entry, dict) and type(entry.get("size")) is int and entry["size"] >= 0
        if not sized or not isinstance(entry.get("path"), str) or not _SHA256.match(str(entry.get("sha256"))):
            raise VerificationError(f"{name} has an entry without path, size or hash")
        try:
            paths.check_relative(entry["path"])
        except UsageError as error:
            raise VerificationError(f"{name} names a file outside its folder: {error.message}") from None


def _quarantine(folder: Path) -> None:
    target = folder.with_name(QUARANTINE_PREFIX + folder.name)
    if target.exists():
        shutil.rmtree(target, ignore_errors=True)
    with contextlib.suppress(OSError):
        os.replace(folder, target)


def _sync_and_hash(root: Path, path: Path) -> dict[str, Any]:
    relative = paths.check_relative(path.relative_to(root).as_posix())
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
        size = os.fstat(fd).st_size
    finally:
        os.close(fd)
    return {"path": relative, "size": size, "sha256": files.sha256_file(path)}
