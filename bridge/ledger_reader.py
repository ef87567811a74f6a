"""The ledger for who only looks, beside the bridge that writes: no lock of its own, no change, no wait."""

from __future__ import annotations

import sqlite3
import threading
import time
from pathlib import Path

from bridge.ledger import Ledger
from bridge.ledger_rows import SCHEMA_VERSION
from bridgehead.errors import VerificationError

_BUSY_TIMEOUT_S = 1.0  # readers of a WAL wait for nobody; only a checkpoint at the end of it may hold them up


class LedgerReader(Ledger):
    """All that a Ledger answers; what writes raises sqlite3.OperationalError."""

    def __init__(self, path: Path) -> None:
        """Open it. Raises VerificationError when it is not there yet, damaged or of another version."""
        self._clock = time.time
        self._lock = threading.RLock()
        self._callbacks = []
        self._durable = True
        try:
            self._db = _open(path)
        except sqlite3.DatabaseError as error:
            raise VerificationError(
                f"the ledger {path.name} can't be read: {error}", hint="bridgehead status"
            ) from None

    def version(self) -> int:
        """Another number whenever somebody has written since the last call."""
        return self._version()


def _open(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode=ro",
        uri=True,
        timeout=_BUSY_TIMEOUT_S,
        isolation_level=None,
        check_same_thread=False,
    )
    try:
        db.row_factory = sqlite3.Row
        version = db.execute("PRAGMA user_version").fetchone()[0]
        if version != SCHEMA_VERSION:
            raise sqlite3.DatabaseError(f"it is of version {version}, this is {SCHEMA_VERSION}")
        for probe in ("SELECT family FROM commands LIMIT 0", "SELECT 1 FROM no_room LIMIT 0"):
            db.execute(probe)  # of an earlier Bridgehead: whoever writes next brings it up to date
    except BaseException:
        db.close()
        raise
    return db
