"""Bring the payload folder to what the laptop's manifest says: only what changed, each file verified.

First everything is gathered on the shelf, then the folder changes within a moment: a fetch that fails leaves the old
payload whole, and a running stage sees of each file the old one or the new one.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from bridgehead import files, names
from bridgehead.errors import TransferError, VerificationError
from bridgehead.os_errors import means_full
from vm_daemons import key_rotation, payload_fetch
from vm_daemons.client import BridgeClient
from vm_daemons.home import VmHome
from vm_daemons.manifest_check import entries_of
from vm_daemons.payload_line import Changed, Line
from vm_daemons.payload_shelf import Shelf
from vm_daemons.payload_tree import Entry, Tree
from vm_daemons.storage.pace import Bucket

_LOCK = "payload.lock"  # the cell and the command daemon may sync at the same time
_STAYS_MAX = 1000
_CHANGES_MAX = 5  # manifests that are outdated before they are fetched: somebody is saving files just now
Bring = Callable[[Tree, Shelf, list[Entry]], int]  # onto the shelf, one entry per SHA-256; how many bytes came


class Unsettled(VerificationError):
    """Somebody is saving files on the laptop just now; in a while it may go well."""


def sync(client: BridgeClient, home: VmHome, say: Callable[[str], None] | None = None) -> dict[str, Any]:
    """Fetch what the laptop's manifest names and the folder lacks; remove what an earlier one named and this doesn't.

    `say` hears how far it is, once a minute at most. Returns what `install` does. Raises VerificationError naming the
    file, TransferError and UsageError.
    """
    with locked(home):
        for _ in range(_CHANGES_MAX):
            document = client.manifest_document()
            try:
                return install(home, document, _fetcher(client, document["body"], say))
            except Changed as error:
                changed = error
        files_of = [entry["path"] for entry in document["body"]["files"] if entry["sha256"] == changed.sha256]
        raise Unsettled(
            f"{', '.join(files_of[:1]) or 'a file'} was another one on the laptop than its manifest named, each of"
            f" {_CHANGES_MAX} times; the old files stay",
            hint="let the files on the laptop settle, then sync: again",
        )


def install(home: VmHome, document: dict[str, Any], bring: Bring) -> dict[str, Any]:
    """Make the payload folder what a signed manifest says; `bring` puts on the shelf what is not on this VM.

    The document is kept as it is, for a VM that boots without the laptop. Returns the manifest's `project`,
    `ship_sha256`, `payload_sha256`, `requirements`, `store`, `vm`, `stays` (what of the project is not sent), and the
    counts `files`, `fetched` (`fetched_bytes` down the line), `copied` (it was here under another name, or once before)
    and `removed`. Raises as `sync`, and what `bring` raises.
    """
    manifest = document["body"]
    entries = entries_of(manifest)
    tree, shelf = Tree(home, entries), Shelf(home)
    wanted = [entry for entry in entries.values() if not tree.is_current(entry)]
    try:
        told = _bring_all(tree, shelf, entries, wanted, bring)
    except OSError as error:
        if not means_full(error):
            raise
        raise TransferError(
            "the VM's disk is full; the old payload stays", hint="make room on the VM, or send less"
        ) from None
    files.write_atomic(home.state / names.PAYLOAD_MANIFEST, json.dumps(document, separators=(",", ":")).encode())
    home.update_record(payload_sha256=manifest["payload_sha256"])
    key_rotation.heed_switch(home, manifest)
    shelf.prune({str(entry["sha256"]) for entry in entries.values()})
    for key in ("project", "ship_sha256", "payload_sha256", "requirements", "store", "vm"):
        told[key] = manifest[key]
    stays = manifest.get("stays")
    return {**told, "stays": stays[:_STAYS_MAX] if isinstance(stays, str) else ""}


def _bring_all(
    tree: Tree, shelf: Shelf, entries: dict[str, Entry], wanted: list[Entry], bring: Bring
) -> dict[str, Any]:
    uses = Counter(str(entry["sha256"]) for entry in wanted)
    distinct = {str(entry["sha256"]): entry for entry in reversed(wanted)}
    _check_room(shelf, wanted)
    here = _find_here(tree, shelf, entries, distinct)
    missing = [entry for sha256, entry in distinct.items() if sha256 not in here]
    fetched_bytes = bring(tree, shelf, missing) if missing else 0
    if wanted:
        tree.expect(wanted)
    removed = tree.drop(entries, shelf)
    for entry in wanted:
        sha256 = str(entry["sha256"])
        uses[sha256] -= 1
        tree.place(entry, shelf, last=not uses[sha256])
    tree.remember(entries)
    copied = sum(str(entry["sha256"]) in here for entry in wanted)
    return {
        "files": len(entries),
        "fetched": len(wanted) - copied,
        "fetched_bytes": fetched_bytes,
        "copied": copied,
        "removed": removed,
    }


def _find_here(tree: Tree, shelf: Shelf, entries: dict[str, Entry], distinct: dict[str, Entry]) -> set[str]:
    """Onto the shelf with the contents that this VM has under another name; which they are."""
    holders = tree.holders()
    found = set()
    for sha256, entry in distinct.items():
        if shelf.has(sha256, int(entry["size"])) or any(
            _take_copy(tree, shelf, sha256, relative, stays=relative in entries) for relative in holders.get(sha256, ())
        ):
            found.add(sha256)
    return found


def _take_copy(tree: Tree, shelf: Shelf, sha256: str, relative: str, *, stays: bool) -> bool:
    """A second name is enough for a file that goes; one that stays must not share its bytes with another."""
    path = tree.locate(relative)
    return shelf.add_copy(sha256, path) if stays else shelf.keep(sha256, path)


def _fetcher(client: BridgeClient, manifest: dict[str, Any], say: Callable[[str], None] | None) -> Bring:
    def bring(tree: Tree, shelf: Shelf, missing: list[Entry]) -> int:
        total_bytes = sum(int(entry["size"]) for entry in missing)
        line = Line(total_bytes, say, limit=_limit(manifest.get("down_mb_s")))
        payload_fetch.fetch(client, tree, shelf, missing, line)
        return line.fetched_bytes

    return bring


def _limit(mb_s: object) -> Bucket | None:
    if not isinstance(mb_s, float | int) or not mb_s > 0:
        return None
    return Bucket(mb_s * 1e6, mb_s * 1e6 / 4)


def _check_room(shelf: Shelf, wanted: list[Entry]) -> None:
    contents = {str(entry["sha256"]) for entry in wanted}
    needed_bytes = sum(int(entry["size"]) for entry in wanted) - sum(map(shelf.held_bytes, contents))
    free_bytes = shelf.room_made(needed_bytes, contents)
    if needed_bytes > free_bytes:
        raise TransferError(
            f"the payload needs {needed_bytes // 2**20} MiB more, the VM's disk has {free_bytes // 2**20} MiB free",
            hint=f"send less: [payload] in {names.PROJECT_FILE}",
        )


@contextlib.contextmanager
def locked(home: VmHome) -> Iterator[None]:
    fd = os.open(home.state / _LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)
