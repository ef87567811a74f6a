"""The user's files as a run started with them: one folder per payload, which no later sync and no edit changes.

A tree is made of second names (hard links) for the files in the payload folder, so it costs no room until the payload
changes. It stays as long as a run that has not ended was started in it. On another VM it comes from the store.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bridgehead import files, names, processes, signing
from bridgehead.errors import NotFoundError, PairingError, StoreError, VerificationError
from vm_daemons import payload
from vm_daemons.home import VmHome
from vm_daemons.manifest_check import entries_of
from vm_daemons.payload_shelf import Shelf
from vm_daemons.payload_tree import Entry, Tree, mode_of
from vm_daemons.storage import store_choice, stored_payload
from vm_daemons.storage.store import Store

SPARED_S = 600.0  # a tree that was looked at so lately may be for a run whose run.json does not name it yet
_NOTE = ".json"


class Unready(StoreError):
    """The files of a run can't be had just now; in a while they may be."""


def is_ready(home: VmHome, payload_sha256: str) -> bool:
    """Whether the tree is there, from this boot of the machine: nothing of it is fsynced."""
    told = files.read_json(_note(home, payload_sha256))
    there = isinstance(told, dict) and told.get("boot_id") == processes.boot_id()
    return there and _tree(home, payload_sha256).is_dir()


def make(home: VmHome) -> str:
    """The tree of the payload that is on this VM now; its SHA-256, empty when no list came with the payload.

    Raises Unready when a file is not the one that the laptop sent, and OSError.
    """
    with payload.locked(home):
        body = _body(files.read_json(home.state / names.PAYLOAD_MANIFEST))
        if body is None:
            return ""
        entries, digest = entries_of(body), str(body["payload_sha256"])
        if not is_ready(home, digest) and not _still_good(home, digest):
            here = Tree(home, entries)
            changed = [path for path, entry in entries.items() if not here.is_current(entry)]
            if changed:
                more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
                raise Unready(f"{changed[0]}{more} in the payload folder is not what the laptop sent; sync: brings it")
            with _building(home, digest, entries) as building:
                for path in entries:
                    _link(home.payload / path, building / path)
        _show_the_rest(home.payload, _tree(home, digest), entries)
        os.utime(_note(home, digest))
        _prune(home, digest)
        return digest


def bring(home: VmHome, store: Store, payload_sha256: str) -> str:
    """The same for the payload that a run was started with, on another VM or before a later sync.

    Raises NotFoundError when neither this VM nor the store has it, VerificationError, StoreError and OSError.
    """
    if payload_sha256 == _sha256_of_current(home):
        return make(home)
    if _found_here(home, payload_sha256):
        return payload_sha256
    objects = store.objects()
    key = f"{store_choice.project_of(home)}/{names.STORE_PAYLOAD}/{payload_sha256}"
    entries = _listed(home, objects.read(f"{key}.json", stored_payload.MANIFEST_MAX_BYTES), payload_sha256)
    listed = list(entries.values())
    # What may hang with the store comes before the lock, which each sync and each run waits for.
    with stored_payload.fetched(home, objects, f"{key}.tar", listed) as archive, payload.locked(home):
        if is_ready(home, payload_sha256):  # another run has brought it meanwhile
            return payload_sha256
        shelf = Shelf(home)
        stored_payload.take_out(shelf, archive, f"{key}.tar", listed, listed)
        with _building(home, payload_sha256, entries) as building:
            for path, entry in entries.items():
                _link(shelf.path(str(entry["sha256"])), building / path)
                os.chmod(building / path, mode_of(entry))
    return payload_sha256


# --- inside ------------------------------------------------------------------------------------------


def _tree(home: VmHome, payload_sha256: str) -> Path:
    return home.root / names.VM_CODE / payload_sha256[:16]


def _note(home: VmHome, payload_sha256: str) -> Path:
    """Beside the tree: the boot it was last checked in, and its files."""
    return home.root / names.VM_CODE / f"{payload_sha256[:16]}{_NOTE}"


def _body(document: object) -> dict[str, Any] | None:
    body = document.get("body") if isinstance(document, dict) else None
    return body if isinstance(body, dict) and isinstance(body.get("payload_sha256"), str) else None


def _sha256_of_current(home: VmHome) -> str:
    body = _body(files.read_json(home.state / names.PAYLOAD_MANIFEST))
    return str(body["payload_sha256"]) if body is not None else ""


def _listed(home: VmHome, data: bytes | None, payload_sha256: str) -> dict[str, Entry]:
    if data is None:
        raise NotFoundError(f"the store does not hold the files {payload_sha256[:12]}")
    try:
        body = signing.open_document_of_any(home.pairing().document_keys, "manifest", json.loads(data))
    except (PairingError, ValueError, RecursionError):
        raise VerificationError(
            f"the store's list of the files {payload_sha256[:12]} is not from this laptop"
        ) from None
    if body.get("payload_sha256") != payload_sha256:
        raise VerificationError(f"the store's list of the files {payload_sha256[:12]} is about others")
    return entries_of(body)


def _found_here(home: VmHome, payload_sha256: str) -> bool:
    with payload.locked(home):
        found = is_ready(home, payload_sha256) or _still_good(home, payload_sha256)
        if found:
            os.utime(_note(home, payload_sha256))
        return found


def _still_good(home: VmHome, payload_sha256: str) -> bool:
    """After a restart of the machine each file of a tree is read once; a tree that lost something goes."""
    tree, told = _tree(home, payload_sha256), files.read_json(_note(home, payload_sha256))
    if not tree.is_dir():
        return False
    listed = told.get("files") if isinstance(told, dict) else None
    if isinstance(listed, dict) and all(_holds(tree / path, sha256) for path, sha256 in listed.items()):
        _write_note(home, payload_sha256, listed)
        return True
    shutil.rmtree(tree)
    return False


def _holds(path: Path, sha256: str) -> bool:
    return files.plain_stat(path) is not None and files.sha256_file(path) == sha256


def _write_note(home: VmHome, payload_sha256: str, listed: dict[str, str]) -> None:
    files.write_json(_note(home, payload_sha256), {"boot_id": processes.boot_id(), "files": listed})


@contextlib.contextmanager
def _building(home: VmHome, payload_sha256: str, entries: dict[str, Entry]) -> Iterator[Path]:
    """A folder that becomes the tree when all went well, and is gone otherwise."""
    root = home.root / names.VM_CODE
    building = root / f"{files.TEMP_PREFIX}{secrets.token_hex(8)}"
    try:
        for relative in sorted({path.rpartition("/")[0] for path in entries}):
            (building / relative).mkdir(parents=True, exist_ok=True)
        building.mkdir(parents=True, exist_ok=True)
        yield building
        _write_note(home, payload_sha256, {path: str(entry["sha256"]) for path, entry in entries.items()})
        os.replace(building, _tree(home, payload_sha256))
    finally:
        shutil.rmtree(building, ignore_errors=True)


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EMLINK, errno.EXDEV, errno.ENOTSUP):
            raise
        shutil.copy2(source, target)  # this disk has no links


def _show_the_rest(source: Path, tree: Path, entries: dict[str, Entry]) -> None:
    """What else lies in the payload folder, as by a `sh: wget`, is seen in the tree too, as it is there at any time."""
    folders = {""}
    for path in entries:
        while (path := path.rpartition("/")[0]) and path not in folders:
            folders.add(path)
    for relative in folders:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            for name in os.listdir(source / relative):
                path = f"{relative}/{name}" if relative else name
                if path not in entries and path not in folders and name != "__pycache__":
                    with contextlib.suppress(FileExistsError):
                        os.symlink(source / path, tree / path)


def _prune(home: VmHome, current: str) -> None:
    """Away with trees that no run needs which has not ended."""
    kept = {current[:16]}
    for run_dir in home.runs.iterdir():
        record = files.read_json(run_dir / names.RUN_RECORD)
        if isinstance(record, dict) and not (run_dir / names.EXIT).exists():
            kept.add(str(record.get("payload_sha256", ""))[:16])
    for note in (home.root / names.VM_CODE).glob(f"*{_NOTE}"):
        name = note.name.removesuffix(_NOTE)
        if name not in kept and time.time() - note.stat().st_mtime > SPARED_S:
            shutil.rmtree(note.with_name(name), ignore_errors=True)
            note.unlink()
