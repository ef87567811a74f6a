"""From the ledger to the audit file: each event once, whatever dies in between."""

from __future__ import annotations

import threading

from bridge.audit import Audit
from bridge.ledger import Ledger

LEDGER = "ledger"  # in a line of the audit file: the ledger's id and the number of the event there
HEAD = "audit_head"


class AuditFeed:
    """`drain` about once a second, on a thread."""

    def __init__(self, ledger: Ledger, audit: Audit) -> None:
        self._ledger = ledger
        self._audit = audit
        self._lock = threading.Lock()
        ledger_id, _, number = str(audit.newest(LEDGER) or "").partition("-")
        # What a killed bridge wrote and did not take out of the ledger is not written again.
        self._after = int(number) if ledger_id == ledger.fact("id") and number.isdigit() else 0

    def drain(self) -> None:
        """Raises OSError when the file can't be written; nothing is lost then."""
        with self._lock:
            while waiting := self._ledger.audit_waiting(self._after):
                head = self._audit.append([event for _, event in waiting])
                self._after = waiting[-1][0]
                self._ledger.audit_done(self._after, head)
