"""What is looked at before a pinned run's stage starts on this VM: named checks, each pass, warn or refuse.

A refusal is what would make the hours after it worth nothing: other data, other code, another torch, a GPU that was
promised and is not there. All else is one line in the run's log at minute 0, and what passed is one line together. An
unpinned run (an sh: line) is not looked at. docs/preflight.md lists every check.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bridgehead import data_folder, files, identity, image, names
from bridgehead.errors import BridgeheadError
from bridgehead.names import StoreKind
from bridgehead.records import RunRecord
from vm_daemons import export_trial, image_packages, mounting, preflight_machine
from vm_daemons.findings import PASS, REFUSE, WARN, Finding
from vm_daemons.home import VmHome
from vm_daemons.preflight_machine import GB
from vm_daemons.storage import store_choice

STORE_PATIENCE_S = 5.0  # for the first canary of a VM that has only just booted
_STORE_OLD_S = 300.0
_BY_CREDENTIALS = (StoreKind.DRIVE, StoreKind.S3)


def examine(record: RunRecord, home: VmHome, run_dir: Path) -> list[Finding]:
    """All checks, refusals included; empty for a run that was not pinned. Never raises.

    The trial of an export comes last, and only when nothing refuses: it takes seconds.
    """
    if not record.spec.pins.spec:
        return []
    found: list[Finding] = []
    machine = (preflight_machine.disks, preflight_machine.memory, preflight_machine.gpu)
    for check in (_data, _code, _image, _torch, *machine, _store, _export):
        if check is _export and refusal(found) is not None:
            continue
        try:
            found += check(record, home, run_dir)
        except (OSError, BridgeheadError, ValueError, TypeError, AttributeError, KeyError) as error:
            # A check that can't look must not hold up a run; what it is about shows later, in the run itself.
            found.append(Finding(check.__name__.strip("_"), WARN, f"could not be looked at: {error}"))
    return found


def refusal(found: list[Finding]) -> Finding | None:
    return next((finding for finding in found if finding.state == REFUSE), None)


def log_lines(found: list[Finding]) -> list[str]:
    """For the run's log: each warning, and in one line what passed. The refusal is told as the run's end."""
    lines = [finding.line() for finding in found if finding.state == WARN]
    passed = ", ".join(finding.name for finding in found if finding.state == PASS)
    return [*lines, f"preflight: passed: {passed}"] if passed else lines


# --- what would make the run worth nothing -----------------------------------------------------------------


def _data(record: RunRecord, _home: VmHome, _run_dir: Path) -> Iterator[Finding]:
    data = record.spec.pins.spec.get("data") or {}
    path, wanted = data.get("vm_path"), data.get("fingerprint")
    if path and Path(path).is_relative_to(mounting.DRIVE_MOUNT):
        # colabtools issues 1691, 280 and 110: 10 to 300 times slower for small files; 1196 and 1428: a quota of a day
        text = f"{path} lies on the mounted Drive, which reads small files very slowly and has a quota of a day"
        yield Finding("data place", WARN, text, "unpack it onto this VM's own disk before the stage reads it")
    if not path or not wanted:
        return
    try:
        found = data_folder.fingerprint(Path(path))
    except (OSError, BridgeheadError) as error:
        yield Finding(
            "data", REFUSE, f"the data {data.get('name')} is missing: {error}", "mount or bring it, then rerun"
        )
        return
    if found != wanted:
        text = f"{path} holds other data than the run was pinned to: {found[:16]}, not {wanted[:16]}"
        yield Finding("data", REFUSE, text, "bring the right one, or write the new fingerprint into the project file")
    else:
        yield Finding("data", PASS, f"{data.get('name')}: {found[:16]}")


def _code(record: RunRecord, _home: VmHome, _run_dir: Path) -> Iterator[Finding]:
    pins = record.spec.pins
    wanted, here = (pins.spec.get("code") or {}).get("sha256"), identity.code_of(record)
    if pins.exact and wanted and here != wanted:
        text = f"this VM has other code than the spec names: {here[:16]}, not {wanted[:16]}"
        yield Finding("code", REFUSE, text, "bridgehead sync, or rerun --anyway")
    elif wanted:
        yield Finding("code", PASS, f"{here[:16]}")


def _torch(_record: RunRecord, home: VmHome, _run_dir: Path) -> Iterator[Finding]:
    """Version, RECORD and files of torch and its like, against what this VM's first boot found."""
    before = image_packages.noted(home)
    if not before:
        yield Finding("torch", PASS, "the image brings none of it")
        return
    changed = image_packages.moved(before, image_packages.look())
    if changed:
        text = f"moved since this VM first booted: {image_packages.told(changed)}"
        yield Finding("torch", REFUSE, text, image_packages.hint(home))
    else:
        text = ", ".join(f"{name} {facts.get('version', '')}" for name, facts in sorted(before.items())[:3])
        yield Finding("torch", PASS, f"{text}: as the image brought it")


# --- what is told at minute 0 ------------------------------------------------------------------------------


def _image(record: RunRecord, _home: VmHome, _run_dir: Path) -> Iterator[Finding]:
    before = record.spec.pins.image
    if not set(before) & set(record.fingerprint):
        return
    decisive, _ = image.differences(before, record.fingerprint)
    if decisive:
        yield Finding(
            "image", WARN, f"equality bit for bit is not promised: {'; '.join(decisive)}", "rerun on its like"
        )
    else:
        yield Finding("image", PASS, "as it was: the same bits are to be expected")


def _store(record: RunRecord, home: VmHome, _run_dir: Path) -> Iterator[Finding]:
    """By the uploader's own canary, a process apart: a dead mount would hang this one."""
    state = _store_state(home)
    kind = str(state.get("kind") or "")
    if not kind:
        if store_choice.is_configured(home):
            yield Finding("store", WARN, "the uploader has not looked at it yet", "see bridgehead status")
        return
    if kind == "none":
        yield Finding("store", WARN, "this VM has none", "checkpoints stay on it alone: [store] of the project file")
        return
    yield _credentials(kind, state)
    if not state.get("ok"):
        text = f"its canary did not come back: {state.get('error') or 'it was not answered yet'}"
        yield Finding("store", WARN, text, "checkpoints stay on this VM until it is well")
    elif time.time() - float(state.get("at") or 0) > _STORE_OLD_S:
        yield Finding("store", WARN, "the uploader has not looked at it for minutes", "run the cell again")
    else:
        yield Finding("store", PASS, f"{state.get('where') or kind}: a canary was written, read back and removed")
    yield _room(record, state)


def _store_state(home: VmHome) -> dict[str, Any]:
    """What the uploader last wrote; its first word is waited for, when there is a store."""
    deadline = time.monotonic() + STORE_PATIENCE_S
    while True:
        state = files.read_json(home.state / names.VM_STORE_STATE)
        known = isinstance(state, dict) and (state.get("ok") or state.get("error"))
        if known or time.monotonic() > deadline or not store_choice.is_configured(home):
            return state if isinstance(state, dict) else {}
        time.sleep(0.1)


def _credentials(kind: str, state: dict[str, Any]) -> Finding:
    """By a real call: the canary's, which the store answered or refused."""
    if kind not in _BY_CREDENTIALS:
        return Finding("credentials", PASS, f"skipped: a store of kind {kind} needs none")
    if state.get("denied"):
        return Finding(
            "credentials", WARN, str(state.get("error")), "give them at this notebook, and run the cell again"
        )
    if state.get("ok"):
        return Finding("credentials", PASS, f"{kind} answered a call with them")
    return Finding(
        "credentials", WARN, f"nothing is known of them: {kind} did not answer", "see the check of the store"
    )


def _room(record: RunRecord, state: dict[str, Any]) -> Finding:
    """Size x kept of the checkpoints, against what the store says is free."""
    free_bytes, wanted_bytes = state.get("free_bytes"), record.spec.pins.stored_gb * GB
    if not isinstance(free_bytes, int) or not state.get("limited", True):
        return Finding("store room", PASS, "it tells no limit")
    text = f"{free_bytes / GB:.1f} GB free for checkpoints of {wanted_bytes / GB:.1f} GB together"
    if state.get("ok") and free_bytes < wanted_bytes:
        return Finding("store room", WARN, text, "make room, or a lower keep_checkpoints")
    return Finding("store room", PASS, text)


def _export(record: RunRecord, home: VmHome, run_dir: Path) -> Iterator[Finding]:
    """A tiny model, exported with the very packages of this VM.

    Of a run before the export it is a warning only: what it trains is kept, and the parts can still be added.
    """
    if not record.spec.pins.exports:
        return
    trial = export_trial.look(home, (run_dir / names.STOP_REQUEST).exists)
    if trial is None:
        return
    if trial.ok:
        took = f" in {trial.took_s:g} s" if trial.took_s else ", looked at before"
        yield Finding("export", PASS, f"a tiny model was exported and gave what torch gives{took}")
        return
    is_export = record.spec.command == f"{names.SHIPPED_COMMAND_PREFIX}{names.EXPORT}"
    after = "" if is_export else ", and a stage that exports comes after this one"
    yield Finding("export", REFUSE if is_export else WARN, f"{trial.what}{after}", trial.hint)
