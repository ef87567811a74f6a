"""What came of the bridge's newest address in the store, for `status` and `up`; written down by the announcer."""

from __future__ import annotations

import contextlib
import time

from bridge.address_record import AddressRecord
from bridgehead import names
from run_control.project import Project

TROUBLE = "a new address can't be announced through the store"


def trouble(project: Project, url: str) -> str:
    """Why VMs can't learn through the store that the bridge is at `url` now, with the next step; "" when they can."""
    record = AddressRecord(project.private / names.ADDRESS)
    with contextlib.suppress(OSError):
        newest, published = record.newest(), record.published()
        if newest is not None and newest.url == url and published.trouble:
            return f"{TROUBLE}: {published.trouble}. next: {published.hint}"
    return ""


def await_outcome(project: Project, url: str, timeout_s: float) -> None:
    """Return once something is known of what the store said to this address, or after `timeout_s`."""
    record = AddressRecord(project.private / names.ADDRESS)
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            newest = record.newest()
            if newest is None or newest.url != url or record.published().seq:
                return
        time.sleep(0.05)
