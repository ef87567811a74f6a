"""Google Drive's mount keeps what was written to it on the VM's own disk until it has uploaded it.

So a checkpoint that goes up on a disk with little room fills it, and the stage that saves there dies of it.
"""

from __future__ import annotations

from pathlib import Path

from vm_daemons import gauges, mounting

CACHE = Path("/root/.config/Google/DriveFS")
RESERVE_BYTES = 256 * 2**20


def no_room(store: Path | None, wanted_bytes: int) -> str:
    """Why so much can't go through the mount just now; "" when it can, and for a store that is no mounted Drive."""
    if store is None or not store.is_relative_to(mounting.DRIVE_MOUNT):
        return ""
    place = next(folder for folder in (CACHE, *CACHE.parents) if folder.is_dir())
    _, free_bytes = gauges.disk(place)
    if free_bytes >= wanted_bytes + RESERVE_BYTES:
        return ""
    return (
        f"a checkpoint of {wanted_bytes // 2**20} MiB waits: Drive's mount keeps on this VM's disk what it has not"
        f" uploaded, and that disk has {free_bytes // 2**20} MiB free"
    )
