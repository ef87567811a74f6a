"""Bring the payload folder to what the laptop's manifest says: only what changed, each file verified."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bridgehead import files, names, paths
from bridgehead.errors import TransferError, UsageError, VerificationError
from vm_daemons import key_rotation
from vm_daemons.client import BridgeClient
from vm_daemons.gauges import disk
from vm_daemons.home import VmHome
from vm_daemons.manifest_check import entries_of

_WORKERS = 4  # small files cost a round trip each
_KNOWN = "payload.json"  # what the last manifest put here; in state/, private to this module
_LOCK = "payload.lock"  # the cell and the command daemon may sync at the same time


def sync(client: BridgeClient, home: VmHome) -> dict[str, Any]:
    """Fetch what the laptop's manifest names and the folder lacks; remove what an earlier one named and this doesn't.

    Returns what `install` does. Raises VerificationError naming the file, TransferError and UsageError.
    """
    with locked(home):
        return install(home, client.manifest_document(), lambda wanted: _fetch_all(client, home, wanted))


def install(home: VmHome, document: dict[str, Any], bring: Callable[[list[dict[str, Any]]], None]) -> dict[str, Any]:
    """Make the payload folder what a signed manifest says; `bring` fetches the entries that are not here as named.

    The document is kept as it is, for a VM that boots without the laptop. Returns the manifest's `project`,
    `ship_sha256`, `payload_sha256`, `requirements`, `store`, `vm`, and the counts `files`, `fetched`, `fetched_bytes`,
    `removed`. Raises as `sync`, and what `bring` raises.
    """
    manifest = document["body"]
    entries = entries_of(manifest)
    known = _read_known(home)
    removed = _remove_dropped(home, known, entries)
    wanted = [entry for path, entry in entries.items() if not _is_current(home, path, entry, known.get(path))]
    _check_room(home, wanted)
    if wanted:
        # Remembered before it is put there: a sync that is cut leaves nothing that a later one can't remove.
        _save(home, {**known, **{entry["path"]: {} for entry in wanted}})
        bring(wanted)
    _write_known(home, entries)
    files.write_json(home.state / names.PAYLOAD_MANIFEST, document)
    home.update_record(payload_sha256=manifest["payload_sha256"])
    key_rotation.heed_switch(home, manifest)
    told = {key: manifest[key] for key in ("project", "ship_sha256", "payload_sha256", "requirements", "store", "vm")}
    fetched_bytes = sum(int(entry["size"]) for entry in wanted)
    counts = {"files": len(entries), "fetched": len(wanted), "fetched_bytes": fetched_bytes, "removed": removed}
    return {**told, **counts}


def _fetch_all(client: BridgeClient, home: VmHome, wanted: list[dict[str, Any]]) -> None:
    """Side by side; the first error stops those that have not begun and is raised."""
    with ThreadPoolExecutor(_WORKERS) as pool:
        jobs = [pool.submit(_fetch, client, home, entry) for entry in wanted]
        try:
            for job in jobs:
                job.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _fetch(client: BridgeClient, home: VmHome, entry: dict[str, Any]) -> None:
    with in_place(home, entry) as path:
        client.get_payload(entry["path"], path, int(entry["size"]), str(entry["sha256"]))


@contextlib.contextmanager
def in_place(home: VmHome, entry: dict[str, Any]) -> Iterator[Path]:
    """Where a file of the manifest is to be put; it gets its mode afterwards."""
    path = paths.inside(home.payload, entry["path"])
    try:
        yield path
        path.chmod(_mode(entry))
    except (IsADirectoryError, NotADirectoryError, FileExistsError):
        raise VerificationError(
            f"{entry['path']}: a folder and a file want the same name in the payload folder",
            hint="something on the VM wrote there; remove it with sh: and sync: again",
        ) from None


def _is_current(home: VmHome, relative: str, entry: dict[str, Any], known: dict[str, Any] | None) -> bool:
    """Same size and hash already here. A file not touched since we hashed it is not read again."""
    path = paths.inside(home.payload, relative)
    try:
        stat = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    if stat.st_size != entry["size"] or not path.is_file():
        return False
    if known and known.get("sha256") == entry["sha256"] and known.get("mtime_ns") == stat.st_mtime_ns:
        current = True
    else:
        current = files.sha256_file(path) == entry["sha256"]
    if current and stat.st_mode & 0o777 != _mode(entry):
        path.chmod(_mode(entry))
    return current


def _remove_dropped(home: VmHome, known: dict[str, dict[str, Any]], entries: dict[str, dict[str, Any]]) -> int:
    dropped = sorted(set(known) - set(entries))
    for relative in dropped:
        with contextlib.suppress(UsageError, FileNotFoundError, NotADirectoryError, IsADirectoryError):
            path = paths.inside(home.payload, relative)
            path.unlink()
            _remove_empty_parents(path.parent, home.payload)
    return len(dropped)


def _remove_empty_parents(folder: Path, root: Path) -> None:
    with contextlib.suppress(OSError):  # not empty: it stays
        while folder != root:
            folder.rmdir()
            folder = folder.parent


def _check_room(home: VmHome, wanted: list[dict[str, Any]]) -> None:
    needed_bytes = sum(int(entry["size"]) for entry in wanted)
    _, free_bytes = disk(home.root)
    if needed_bytes > free_bytes:
        raise TransferError(
            f"the payload needs {needed_bytes // 2**20} MiB more, the VM's disk has {free_bytes // 2**20} MiB free",
            hint=f"send less: [payload] in {names.PROJECT_FILE}",
        )


def _write_known(home: VmHome, entries: dict[str, dict[str, Any]]) -> None:
    known = {}
    for relative, entry in entries.items():
        mtime_ns = (home.payload / relative).stat().st_mtime_ns
        known[relative] = {"sha256": entry["sha256"], "mtime_ns": mtime_ns}
    _save(home, known)


def _read_known(home: VmHome) -> dict[str, dict[str, Any]]:
    record = files.read_json(home.state / _KNOWN)
    found = record.get("files") if isinstance(record, dict) else None
    return found if isinstance(found, dict) else {}


def _save(home: VmHome, known: dict[str, dict[str, Any]]) -> None:
    files.write_json(home.state / _KNOWN, {"v": names.RECORD_VERSION, "files": known})


def _mode(entry: dict[str, Any]) -> int:
    return int(entry.get("mode", 0o644)) & 0o777


@contextlib.contextmanager
def locked(home: VmHome) -> Iterator[None]:
    fd = os.open(home.state / _LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)
