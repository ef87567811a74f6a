"""What a person should see to, as far as the laptop knows it by itself."""

from __future__ import annotations

import shutil

from bridgehead import names
from run_control.project import Project
from run_control.tracking import control

UNTOLD = "you are not told of events through"
QUIET = (UNTOLD, control.UNTRACKED)  # lines that are shown and not sent: runs take no notice of either


def alarms(project: Project) -> list[str]:
    """One line for each, with what to do; empty when all is well."""
    return [line for line in (_disk(project), _address(project), *_untold(project), *control.troubles(project)) if line]


def _untold(project: Project) -> list[str]:
    """Channels of [notify] through which nothing gets."""
    from run_control import notify_memory

    failing = notify_memory.troubles(project.private / names.NOTIFIED)
    return [f"{UNTOLD} {channel}: {why}. next: bridgehead notify test" for channel, why in failing.items()]


def _address(project: Project) -> str:
    """A live bridge whose address VMs may not find."""
    from run_control import address_told, bridge_control

    live = bridge_control.find(project)
    return address_told.trouble(project, live.url) if live is not None else ""


def _disk(project: Project) -> str:
    try:
        free_bytes = shutil.disk_usage(project.inbox).free
    except OSError:  # no in/ yet: nothing has arrived
        return ""
    if free_bytes >= names.LAPTOP_RESERVE_BYTES:
        return ""
    return (
        f"the disk that holds {names.IN_FOLDER}/ has {free_bytes / 2**20:.0f} MiB free: nothing arrives until there are"
        f" {names.LAPTOP_RESERVE_BYTES >> 20} MiB; runs go on and nothing is lost. next: make room"
    )
