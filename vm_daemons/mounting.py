"""The mounted store as the cell sees it: found at boot, tried out, and mounted again when it died.

Only the cell can mount Google Drive: the sign-in is a question to the notebook's front end, which a detached process
can't ask.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from pathlib import Path

from bridgehead import files, names

DRIVE_MOUNT = Path("/content/drive")
DRIVE_FOLDER = "MyDrive/Bridgehead"


def find_store(say: Callable[[str], None]) -> Path | None:
    """The durable store, tried out: $BRIDGEHEAD_STORE, else Google Drive where this is Colab. None, said loudly."""
    named = os.environ.get(names.ENV_STORE)
    try:
        root = Path(named) if named else _mount_drive()
        if root is not None:
            _try_out(root)
            return root
        why = "this notebook has no Google Drive"
    except Exception as error:  # noqa: BLE001 - edge: the mount is foreign code and raises what it likes
        why = str(error) or type(error).__name__
    say(f"WARNING: no durable store ({why}). Checkpoints stay on this VM and are lost with it.")
    return None


def _mount_drive() -> Path | None:
    try:
        from google.colab import drive
    except ImportError:
        return None
    drive.mount(str(DRIVE_MOUNT), timeout_ms=300_000)
    return DRIVE_MOUNT / DRIVE_FOLDER


def _try_out(root: Path) -> None:
    """A mount can look fine and be dead: write, read back and delete a few bytes. Raises OSError."""
    root.mkdir(parents=True, exist_ok=True)
    canary = root / f"{files.TEMP_PREFIX}canary-{secrets.token_hex(4)}"
    told = secrets.token_bytes(32)
    canary.write_bytes(told)
    try:
        if canary.read_bytes() != told:
            raise OSError(f"{root} gives back other bytes than were written")
    finally:
        canary.unlink(missing_ok=True)
