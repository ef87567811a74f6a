"""The payload of a VM that boots while the laptop is off: from its own disk, or from what another VM left in the store.

The store is not trusted. The laptop's manifest is signed with the pairing's key and names every file with size and
hash, so the archive can only bring exactly those files, or be refused.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from bridgehead import files, names, signing
from bridgehead.errors import BridgeheadError, NotFoundError, PairingError, VerificationError
from vm_daemons import payload
from vm_daemons.home import VmHome
from vm_daemons.payload_shelf import Shelf
from vm_daemons.payload_tree import Tree
from vm_daemons.storage.folder_store import FolderStore
from vm_daemons.storage.objects import ObjectStore

MANIFEST_MAX_BYTES = 64 * 2**20
LOOKED_AT_MAX = 100  # manifests, newest first; each payload that the project ever had left one
_ARCHIVE_SLACK_BYTES = 64 * 2**10
_HEADERS_BYTES = 8 * 2**10  # what a file may cost in the archive beside its bytes


def from_disk(home: VmHome) -> dict[str, Any] | None:
    """What this VM has got from the laptop before, when all of it is still here; None otherwise."""
    document = files.read_json(home.state / names.PAYLOAD_MANIFEST)
    if _body(home, document) is None or not isinstance(document, dict):
        return None

    def missing(_: Tree, __: Shelf, wanted: list[dict[str, Any]]) -> int:
        raise NotFoundError(f"{wanted[0]['path']} of the payload is not on this VM any more")

    try:
        with payload.locked(home):
            return payload.install(home, document, missing)
    except BridgeheadError:
        return None


def from_store(home: VmHome, root: Path) -> dict[str, Any]:
    """The newest payload below `root` that this pairing's laptop signed; what payload.install returns.

    Raises NotFoundError when there is none, VerificationError for an archive that is not what the manifest says,
    StoreError and OSError.
    """
    store = FolderStore(root, proves=False)
    for key in _newest_first(store):
        data = store.read(f"{key}.json", MANIFEST_MAX_BYTES)
        document = _parse(data or b"")
        body = _body(home, document)
        if body is None or not isinstance(document, dict) or not _is_at_home(key, body):
            continue
        with payload.locked(home):
            return payload.install(
                home,
                document,
                lambda _, shelf, wanted, key=key, body=body: unpack(  # type: ignore[misc]
                    home, shelf, store, f"{key}.tar", wanted, body["files"]
                ),
            )
    raise NotFoundError(f"the store {root} holds no payload that this pairing code is for")


def _newest_first(store: FolderStore) -> Iterator[str]:
    """Keys without their ending. The time decides only which one is tried first: an older one is as genuine."""
    found = []
    for project in store.list(""):
        folder = f"{project}/{names.STORE_PAYLOAD}"
        for name in store.list(folder):
            stat = files.plain_stat(store.root / folder / name) if name.endswith(".json") else None
            if stat is not None:
                found.append((stat.st_mtime_ns, f"{folder}/{name.removesuffix('.json')}"))
    return (key for _, key in sorted(found, reverse=True)[:LOOKED_AT_MAX])


def _body(home: VmHome, document: object) -> dict[str, Any] | None:
    """The manifest in a document that our laptop signed for the Bridgehead that runs here; else None."""
    pairing = home.pairing()
    try:
        body = signing.open_document_of_any(pairing.document_keys, "manifest", document)
    except (PairingError, RecursionError):
        return None
    return body if body.get("ship_sha256") == pairing.boot_sha256 else None


def _is_at_home(key: str, body: dict[str, Any]) -> bool:
    return key == f"{body.get('project')}/{names.STORE_PAYLOAD}/{body.get('payload_sha256')}"


def _parse(data: bytes) -> object:
    try:
        parsed: object = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return parsed


def unpack(
    home: VmHome,
    shelf: Shelf,
    store: ObjectStore,
    key: str,
    wanted: list[dict[str, Any]],
    entries: list[dict[str, Any]],
) -> int:
    """Put what is `wanted` of an archive of exactly `entries` on the shelf; how many bytes. Raises as `from_store`."""
    with fetched(home, store, key, entries) as archive:
        return take_out(shelf, archive, key, wanted, entries)


@contextlib.contextmanager
def fetched(home: VmHome, store: ObjectStore, key: str, entries: list[dict[str, Any]]) -> Iterator[Path]:
    """The archive as a file of this VM, for as long as the block lasts. Raises NotFoundError, StoreError and OSError,
    VerificationError when it is bigger than its entries."""
    most_bytes = _ARCHIVE_SLACK_BYTES + sum(int(entry["size"]) + _HEADERS_BYTES for entry in entries)
    if sum(stored.size for stored in store.find(key)) > most_bytes:
        raise VerificationError(f"{key} is bigger than the files that it should hold")
    temp = home.state / f"{files.TEMP_PREFIX}{secrets.token_hex(8)}"
    try:
        store.get(key, temp)
        yield temp
    finally:
        temp.unlink(missing_ok=True)


def take_out(shelf: Shelf, path: Path, key: str, wanted: list[dict[str, Any]], entries: list[dict[str, Any]]) -> int:
    """As `unpack`, from a file of this VM."""
    try:
        with tarfile.open(path, "r:") as archive:
            _take_members(
                shelf, archive, {entry["path"]: entry for entry in entries}, {entry["path"] for entry in wanted}
            )
            return sum(int(entry["size"]) for entry in wanted)
    except (tarfile.TarError, ValueError, EOFError, OverflowError, RecursionError) as error:
        raise VerificationError(f"{key} is no archive of ours ({type(error).__name__})") from None


def _take_members(shelf: Shelf, archive: tarfile.TarFile, entries: dict[str, dict[str, Any]], wanted: set[str]) -> None:
    missing, seen = set(wanted), set()
    for member in archive:
        entry = entries.get(member.name)
        if entry is None or member.name in seen:
            raise VerificationError(f"the payload's archive holds {member.name[:200]!r}, which its list does not")
        if not member.isreg() or member.sparse is not None or member.size != int(entry["size"]):
            raise VerificationError(f"{member.name} in the payload's archive is not the file that its list names")
        seen.add(member.name)
        source = archive.extractfile(member) if member.name in wanted else None
        if source is not None:
            _write(shelf, source, entry)
            missing.discard(member.name)
    if missing:
        raise VerificationError(f"the payload's archive lacks {min(missing)!r}")


def _write(shelf: Shelf, source: IO[bytes], entry: dict[str, Any]) -> None:
    if not shelf.add_from(str(entry["sha256"]), source):
        raise VerificationError(f"{entry['path']} in the payload's archive has another hash than its list names")
