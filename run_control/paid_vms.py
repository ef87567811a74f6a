"""Whether a VM that is not this machine would run what is launched now: then somebody may be billed for it."""

from __future__ import annotations

import socket
import sqlite3
from pathlib import Path

from bridge.ledger_rows import VmRow, VmState
from bridgehead.errors import BridgeheadError
from run_control.project import Project
from run_control.views import ledger_of


def elsewhere(root: Path) -> str:
    """`vm-3fa9c1 (Tesla T4)`, the first VM alive on another machine than this; "" where there is none."""
    try:
        with ledger_of(Project(root)) as ledger:
            vms = ledger.vms()
    except (BridgeheadError, sqlite3.Error):  # none yet; or one that can't be read, as all else that reads it tells
        return ""
    return next((_described(vm) for vm in vms if vm.state == VmState.LIVE and _is_elsewhere(vm)), "")


def _is_elsewhere(vm: VmRow) -> bool:
    """A local VM tells this machine's own name; a folder of its own may be gone while it still counts as alive."""
    host = vm.heartbeat.get("hostname")
    return isinstance(host, str) and bool(host) and host != socket.gethostname()


def _described(vm: VmRow) -> str:
    gpus = vm.heartbeat.get("gpus")
    first = gpus[0] if isinstance(gpus, list) and gpus and isinstance(gpus[0], dict) else {}
    name = first.get("name")
    return f"{vm.vm_id} ({name[:60]})" if isinstance(name, str) and name else vm.vm_id
