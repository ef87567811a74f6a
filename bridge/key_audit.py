"""Opening the keys, with what the audit file has to hear of that: the first key is made by whoever comes first."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bridge.audit import Audit
from bridge.key_records import PairingKey
from bridge.keys import MADE, KeyStore
from bridgehead import names

_FAILED = "key change failed"  # the lines before it tell of what was not done
_FOUND = "key found"  # it is in keys.json, and no line tells of it


def open_keys(private: Path, queued_by: Mapping[str, str]) -> KeyStore:
    """The keys of a project, whose private folder exists; made on first use, which the audit file is told.

    Raises PairingError when the file is damaged, and OSError.
    """
    store = KeyStore(private / names.KEYS_FILE)
    if store.is_new:
        Audit(private).append([event(MADE, item, queued_by) for item in store.all()])
    return store


def tell_unknown(store: KeyStore, audit: Audit) -> None:
    """Add a line for each key that the audit file does not know: its maker died before that, or the line was cut."""
    known = {line.get("key_id") for line in audit.read()}
    found = [item for item in store.all() if item.id not in known]
    if found:
        audit.append([event(_FOUND, item, {}) for item in found])


def failed(line: Mapping[str, Any]) -> dict[str, Any]:
    """The line that says that what this one tells of was not done."""
    return {"event": _FAILED, "of": line["event"], "key_id": line["key_id"]}


def event(name: str, item: PairingKey, queued_by: Mapping[str, str]) -> dict[str, Any]:
    """What happened to a key as a line of the audit file, without anything secret."""
    told = {"event": name, "key_id": item.id, "name": item.name, "sh": item.allow_sh, "after": item.after}
    found: dict[str, Any] = {key: value for key, value in told.items() if value != ""}
    return {**found, "queued_by": dict(queued_by)} if queued_by else found
