"""Pairing keys and the audit file as the command line needs them."""

from __future__ import annotations

import contextlib
import getpass
import socket
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from bridge import key_audit
from bridge.audit import Audit, Verdict
from bridge.audit_feed import HEAD, AuditFeed
from bridge.key_records import PairingKey
from bridge.keys import KeyStore, Tell
from bridgehead import os_errors
from bridgehead.errors import BridgeheadError
from run_control import bridge_control, notebook
from run_control.project import Project
from run_control.views import ledger_of, run


@dataclass(frozen=True)
class KeyView:
    """One key as it may be shown. Times in seconds since 1970, 0 when never."""

    id: str
    name: str
    state: str
    current: bool
    made: float
    last_used: float
    sh: bool
    vms: list[str]
    after: str = ""
    until: float = 0.0  # rotating: good until then at the latest

    @property
    def state_in_words(self) -> str:
        return f"{self.state}, current" if self.current else self.state

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def keys(project: Project) -> KeyStore:
    """Raises PairingError when the file is damaged."""
    project.make_private()
    return key_audit.open_keys(project.private, me())


def views(project: Project) -> list[KeyView]:
    """Every key, oldest first, with the VMs that speak with it now."""
    store = keys(project)
    used: dict[str, float] = {}
    vms: dict[str, list[str]] = {}
    if project.ledger.is_file():
        with ledger_of(project) as ledger:
            used = ledger.keys_last_used()
            for vm in ledger.vm_keys():
                vms.setdefault(vm.key_id, []).append(vm.vm_id)
    current = store.current()[0]
    return [
        KeyView(
            item.id,
            item.name,
            str(item.state),
            item.id == current,
            item.made,
            used.get(item.id, 0.0),
            item.allow_sh,
            vms.get(item.id, []),
            item.after,
            item.until,
        )
        for item in store.all()
    ]


@contextlib.contextmanager
def changing(project: Project) -> Iterator[tuple[KeyStore, Tell]]:
    """The keys, and what writes a change and who made it into the audit file: first, so that none goes untold.

    Raises BridgeheadError that says that nothing has changed when the disk is full, say; then the audit file says so.
    """
    told: list[dict[str, Any]] = []

    def tell(events: list[tuple[str, PairingKey]]) -> None:
        lines = [key_audit.event(name, item, me()) for name, item in events]
        Audit(project.private).append(lines)
        told.extend(lines)

    try:
        yield keys(project), tell
    except OSError as error:
        if told:
            with contextlib.suppress(OSError, BridgeheadError):  # what was told has not come about
                Audit(project.private).append([key_audit.failed(line) for line in told])
        found = os_errors.in_words(error)
        raise BridgeheadError(f"no key was changed: {found.message}", hint=found.hint) from None


def write_notebook(project: Project, key_id: str) -> tuple[str, BridgeheadError | None]:
    """The notebook with the pairing code of this key ("": the current one); "" while the bridge is not up.

    And why it could not be written, though the key is as it was asked for.
    """
    live = bridge_control.find(project)
    if live is None or not live.url:
        return "", None
    path = project.private / f"bootstrap-{key_id}.ipynb" if key_id else project.notebook
    try:
        return str(notebook.write(path, bridge_control.pairing(project, live, key_id))), None
    except OSError as error:
        again = "bridgehead notebook" + (f" --key {key_id}" if key_id else "")
        text = f"the key is changed, but its notebook can't be written: {os_errors.in_words(error).message}"
        return "", BridgeheadError(text, hint=f"make room or mend that, then {again}")


def me(via: str = "cli") -> dict[str, str]:
    """Who runs this command, as far as this machine knows."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a user id without a name
        user = "?"
    return {"via": via, "user": f"{user}@{socket.gethostname()}"}


def audit_lines(project: Project, run_text: str = "") -> list[dict[str, Any]]:
    """The lines of the audit file, oldest first; those of one run when it is named. Raises NotFoundError."""
    wanted = run(project, run_text) if run_text else None
    if not project.private.is_dir():
        return []
    _catch_up(project)
    lines = Audit(project.private).read()
    return [line for line in lines if wanted is None or _is_about(line, wanted.run_id)]


def verify_audit(project: Project) -> Verdict:
    """Follow the chain to its end, which has to be one that the ledger knows."""
    project.make_private()
    head = ""
    if project.ledger.is_file():
        with ledger_of(project) as ledger:
            head = ledger.fact(HEAD)
    return Audit(project.private).verify(head)


def _catch_up(project: Project) -> None:
    """What happened since the bridge last wrote: it does so once a second, and not at all while it is down."""
    if bridge_control.find(project) is None and project.ledger.is_file():
        with ledger_of(project) as ledger:
            AuditFeed(ledger, Audit(project.private)).drain()


def _is_about(line: dict[str, Any], run_id: str) -> bool:
    return run_id in (line.get("run_id"), line.get("argument"))
