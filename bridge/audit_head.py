"""audit.head: where the audit file ended when the last line was added, so that a cut end shows.

    {"n", "sha256"}

The number and the hash of that line. Written after the line is on disk, under the audit file's lock: it may be one
write behind after a crash, and is never ahead.
"""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from bridgehead import files

FILE: Final = "audit.head"
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Head:
    n: int
    sha256: str


def read(folder: Path) -> Head | None:
    """None when there is none, or none that can be read."""
    told = files.read_json(folder / FILE)
    match told:
        case {"n": int(n), "sha256": str(sha256)}:
            return Head(n, sha256)
    return None


def write(folder: Path, head: Head) -> None:
    """The lines are on disk already: that this can't be written is no reason to write them again."""
    try:
        files.write_json(folder / FILE, asdict(head), mode=0o600)
    except OSError as error:
        _log.warning("%s can't be written: %s", FILE, error.strerror)
