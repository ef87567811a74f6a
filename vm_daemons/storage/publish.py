"""What a VM leaves in the store for the one that comes after it, each as one function.

    <project>/vms/<vm>/{beat.json, journal.jsonl}    what it does, and what it has promised
    <project>/ship/<first 16 of its hash>.zip        the boot archive
    <project>/payload/<hash>.{tar, json}             the project's files, and the laptop's signed list of them

All raise StoreError, and OSError of the local disk.
"""

from __future__ import annotations

import hashlib
import tarfile
import time
from pathlib import Path
from typing import Any

from bridgehead import files, names, paths, processes
from bridgehead.errors import UsageError
from vm_daemons.gauges import disk
from vm_daemons.home import VmHome
from vm_daemons.storage.objects import ObjectStore, Stored
from vm_daemons.storage.store_choice import project_of

PAYLOAD_MAX_BYTES = 2 * 2**30
MANIFEST_MAX_BYTES = 64 * 2**20
RUNS_MAX = 200  # named in a beat
PUBLISHED = "published.json"  # in the VM's state folder: the digests of the payload's archive as it was sent


def beat(store: ObjectStore, home: VmHome, number: int) -> None:
    """That this VM lives, and which runs it has. Readers look only at whether it changes."""
    told = {
        "v": names.RECORD_VERSION,
        "vm_id": str(home.record()["vm_id"]),
        "boot_id": processes.boot_id(),
        "at": time.time(),
        "number": number,
        "runs": _runs(home),
        "released": is_released(home),
    }
    store.put_bytes(f"{_vm_folder(home)}/{names.STORE_BEAT}", files.canonical_json(told))


def journal(store: ObjectStore, home: VmHome) -> None:
    """The whole journal, up to its last whole line."""
    data = home.journal.read_bytes()
    store.put_bytes(f"{_vm_folder(home)}/{names.VM_JOURNAL}", data[: data.rfind(b"\n") + 1])


def ship(store: ObjectStore, home: VmHome) -> bool:
    """The boot archive, when this VM has kept it; True when it is in the store."""
    name = f"{str(home.record().get('ship_sha256') or '')[:16]}.zip"
    archive = home.root / names.VM_SHIP / name
    found = files.plain_stat(archive)
    if found is None:
        return False
    if not has_ship(store, home):
        store.put(f"{project_of(home)}/{names.STORE_SHIP}/{name}", archive)
    return True


def payload(store: ObjectStore, home: VmHome) -> str:
    """The payload folder as the laptop's signed list names it. Why it can't be published, "" once it is there."""
    key, document = _payload_key(home), _payload_list(home)
    if document is None:
        return "the laptop's list of the payload is not on this VM"
    data, entries = files.canonical_json(document), _entries(document)
    there = store.read(f"{key}.json", MANIFEST_MAX_BYTES)
    if there is not None and _has_archive(store, home, document):
        if there != data:  # cut, or signed for another Bridgehead or pairing
            store.put_bytes(f"{key}.json", data)
        return ""
    why = _too_big(home, entries)
    if why:
        return why
    temp = home.state / f"{files.TEMP_PREFIX}{names.STORE_PAYLOAD}.tar"
    try:
        why = _pack(temp, home.payload, entries)
        if why:
            return why
        put = store.put(f"{key}.tar", temp)
        _remember(home, put)
        store.put_bytes(f"{key}.json", data)  # last: it says that the rest is there
    finally:
        temp.unlink(missing_ok=True)
    return ""


def has_journal(store: ObjectStore, home: VmHome) -> bool:
    return names.VM_JOURNAL in store.list(_vm_folder(home))


def has_ship(store: ObjectStore, home: VmHome) -> bool:
    """Whether it is there with the size of this VM's own, and with its digest where the store tells one."""
    digest = str(home.record().get("ship_sha256") or "")
    name = f"{digest[:16]}.zip"
    there = store.look(f"{project_of(home)}/{names.STORE_SHIP}/{name}")
    archive = home.root / names.VM_SHIP / name
    if files.plain_stat(archive) is None:
        return bool(there)
    data = archive.read_bytes()
    md5 = hashlib.md5(data, usedforsecurity=False).hexdigest()
    return _is_whole(there, Stored(name, len(data), md5, hashlib.sha256(data).hexdigest()))


def has_payload(store: ObjectStore, home: VmHome) -> bool:
    """Whether list and archive are there, and whole as far as a look tells: to read 2 GiB each minute is too much."""
    key, document = _payload_key(home), _payload_list(home)
    listed = store.look(f"{key}.json")
    if document is None:
        return bool(listed and store.look(f"{key}.tar"))
    return _is_whole(listed, Stored("", len(files.canonical_json(document)))) and _has_archive(store, home, document)


def is_released(home: VmHome) -> bool:
    """Whether the cell has given this VM back."""
    told = files.read_json(home.state / names.VM_LIFETIME)
    return isinstance(told, dict) and bool(told.get("released"))


# --- inside ------------------------------------------------------------------------------------------


def _is_whole(there: list[Stored], wanted: Stored) -> bool:
    """Digests count where both sides have one. A drive may hold several of one name: one good one is enough."""

    def same(one: str, other: str) -> bool:
        return not one or not other or one == other

    return any(
        item.size == wanted.size and same(item.md5, wanted.md5) and same(item.sha256, wanted.sha256) for item in there
    )


def _payload_key(home: VmHome) -> str:
    return f"{project_of(home)}/{names.STORE_PAYLOAD}/{home.record().get('payload_sha256') or 'none'}"


def _payload_list(home: VmHome) -> dict[str, Any] | None:
    """The document that the laptop signed, when it is about the payload that is on this VM."""
    document = files.read_json(home.state / names.PAYLOAD_MANIFEST)
    body = document.get("body") if isinstance(document, dict) else None
    digest = str(home.record().get("payload_sha256") or "")
    known = isinstance(body, dict) and digest and body.get("payload_sha256") == digest
    return document if known and isinstance(document, dict) else None


def _entries(document: dict[str, Any]) -> list[dict[str, Any]]:
    entries = [entry for entry in document["body"].get("files", []) if isinstance(entry, dict)]
    return sorted(entries, key=lambda item: str(item.get("path")))


def _has_archive(store: ObjectStore, home: VmHome, document: dict[str, Any]) -> bool:
    key = f"{_payload_key(home)}.tar"
    told = files.read_json(home.state / PUBLISHED)
    sent = told if isinstance(told, dict) and told.get("key") == key else {}
    digests = str(sent.get("md5", "")), str(sent.get("sha256", ""))
    return _is_whole(store.look(key), Stored(key, _packed_bytes(_entries(document)), *digests))


def _remember(home: VmHome, put: Stored) -> None:
    """The digests of what was sent, to know later whether the store still has just that."""
    told = {"key": put.key, "md5": put.md5, "sha256": put.sha256}
    files.write_json(home.state / PUBLISHED, {"v": names.RECORD_VERSION, **told})


def _vm_folder(home: VmHome) -> str:
    return f"{project_of(home)}/{names.STORE_VMS}/{home.record()['vm_id']}"


def _runs(home: VmHome) -> list[dict[str, Any]]:
    """Runs that have not fully left this VM, newest first."""
    found = []
    for folder in home.runs.iterdir():
        record, status = (files.read_json(folder / name) for name in (names.RUN_RECORD, names.STATUS))
        if not isinstance(record, dict) or _has_left(folder, record.get("attempt")):
            continue
        state = status.get("state") if isinstance(status, dict) else None
        told = {"run_id": folder.name, "attempt": record.get("attempt"), "state": state or names.RunState.STARTING}
        found.append((float(record.get("created") or 0.0), told))
    found.sort(key=lambda item: item[0], reverse=True)
    return [told for _, told in found[:RUNS_MAX]]


def _has_left(run_dir: Path, attempt: object) -> bool:
    mirrored = files.read_json(run_dir / names.MIRRORED)
    return isinstance(mirrored, dict) and mirrored.get("attempt") == attempt


def _too_big(home: VmHome, entries: list[dict[str, Any]]) -> str:
    size_bytes = sum(int(entry.get("size") or 0) for entry in entries)
    if size_bytes > PAYLOAD_MAX_BYTES:
        return f"the payload has {size_bytes / 2**30:.1f} GiB, over 2 GiB: a new VM needs the laptop for it"
    if size_bytes * 1.1 > disk(home.root)[1]:
        return "this VM's disk has no room to pack the payload"
    return ""


def _pack(target: Path, root: Path, entries: list[dict[str, Any]]) -> str:
    """The listed files with the listed bytes; "" or why not: a run may have changed one of them."""
    with tarfile.open(target, "w", format=tarfile.PAX_FORMAT) as archive:
        for entry in entries:
            try:
                path = paths.inside(root, str(entry.get("path")))
                if files.sha256_file(path) != entry.get("sha256"):
                    return f"{entry.get('path')} of the payload was changed on this VM"
                with path.open("rb") as handle:
                    archive.addfile(_member(entry), handle)
            except (UsageError, FileNotFoundError, IsADirectoryError, NotADirectoryError):
                return f"{entry.get('path')} of the payload is not on this VM any more"
    return ""


def _member(entry: dict[str, Any]) -> tarfile.TarInfo:
    told = tarfile.TarInfo(str(entry["path"]))
    told.size, told.mode = int(entry.get("size") or 0), int(entry.get("mode") or 0o644) & 0o777
    return told


def _packed_bytes(entries: list[dict[str, Any]]) -> int:
    """The size of the archive that `_pack` makes of these: headers, contents in whole blocks, and two empty blocks."""
    block = tarfile.BLOCKSIZE
    total = 2 * block
    for entry in entries:
        member = _member(entry)
        total += len(member.tobuf(tarfile.PAX_FORMAT)) + -(-member.size // block) * block
    return -(-total // tarfile.RECORDSIZE) * tarfile.RECORDSIZE
