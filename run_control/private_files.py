"""What lies in .bridgehead/ in place of Bridgehead's own files: a folder, a link to nowhere, a FIFO.

Each of them would end some command far from its cause, so `up` and `doctor` look first.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from bridge import audit_head, nonces
from bridge.known_content import CONTENT_FILE
from bridge.part_store import PARTS_FILE
from bridge.upload_store import UPLOADS_FILE
from bridgehead import names
from bridgehead.errors import BridgeDownError
from run_control.project import BRIDGE_LOCK, NOTEBOOK_FILE, PRESS_LOCK, QUEUE_LOCK, STOP_LOCK, UP_LOCK, Project

HINT = "move it away, then bridgehead up"
_DATABASES = (names.LEDGER_FILE, UPLOADS_FILE, PARTS_FILE, CONTENT_FILE)
_FILES = (
    names.KEYS_FILE,
    f"{names.KEYS_FILE}.lock",
    names.AUDIT_FILE,
    audit_head.FILE,
    "audit.lock",
    names.ADDRESS,
    names.BRIDGE_RECORD,
    names.BRIDGE_LOG,
    *(f"{nonces.NONCES_FILE}-{turn}" for turn in "ab"),
    *(f"{name}{suffix}" for name in _DATABASES for suffix in ("", "-wal", "-shm")),
    BRIDGE_LOCK,
    UP_LOCK,
    QUEUE_LOCK,
    STOP_LOCK,
    PRESS_LOCK,
    NOTEBOOK_FILE,
)


def odd_one(project: Project) -> str:
    """`/path is a folder`: the first thing that is no plain file where one belongs; "" when there is none."""
    for path in (project.queue, *(project.private / name for name in _FILES)):
        if what := _what_else(path):
            return f"{path} is {what}"
    return ""


def refuse_odd_ones(project: Project) -> None:
    """Raises BridgeDownError."""
    found = odd_one(project)
    if found:
        raise BridgeDownError(f"{found}, and Bridgehead keeps a file of its own there", hint=HINT)


def _what_else(path: Path) -> str:
    """What lies there instead of a plain file or a link to one; "" for those, and for nothing."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return "a link that leads nowhere" if os.path.islink(path) else ""
    if stat.S_ISREG(mode):
        return ""
    return "a folder" if stat.S_ISDIR(mode) else "no plain file"
