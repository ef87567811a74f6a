"""What the owner says of uploads: how fast artefacts may come, whether they are paused, and how long a log may get."""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from bridge.project import LoadProject
from bridgehead import names
from bridgehead.errors import ProjectError
from bridgehead.records import VmRules

_READ_EVERY_S: Final = 2.0


@dataclass
class UploadRules:
    """Read anew every two seconds at most: each heartbeat and each part of a log asks."""

    private: Path  # the project's .bridgehead/
    load_project: LoadProject
    _rules: VmRules = field(default_factory=VmRules)
    _read_at: float = float("-inf")
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def hints(self) -> dict[str, Any]:
        """For a VM's signed hints. The pause is a file, so that it outlives the bridge."""
        return {"paused": (self.private / names.UPLOADS_PAUSED).exists(), "mb_s": self._current().upload_mb_s}

    def log_max_bytes(self) -> int:
        return self._current().log_max_mb * 2**20

    def _current(self) -> VmRules:
        with self._lock:
            if time.monotonic() - self._read_at > _READ_EVERY_S:
                with contextlib.suppress(ProjectError):  # a mistake in the file: go on with what it said before
                    self._rules = self.load_project().vm
                self._read_at = time.monotonic()
            return self._rules
