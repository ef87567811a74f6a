"""From the ledger to the audit file: each event once, whatever dies in between.

The ledger keeps in turn where the file ended, whoever had written there. So a file that was cut together with its
audit.head is found out at the next look, and a line says so for ever.
"""

from __future__ import annotations

import threading

from bridge import audit_head
from bridge.audit import NO_LINE, Audit
from bridge.audit_head import Head
from bridge.ledger import Ledger
from bridge.ledger_audit import HEAD as HEAD
from bridge.ledger_audit import LINES

LEDGER = "ledger"  # in a line of the audit file: the ledger's id and the number of the event there


class AuditFeed:
    """`drain` about once a second, on a thread."""

    def __init__(self, ledger: Ledger, audit: Audit) -> None:
        self._ledger = ledger
        self._audit = audit
        self._lock = threading.Lock()
        self._noted: Head | None = None  # audit.head as it was when the ledger last heard of it
        ledger_id, _, number = str(audit.newest(LEDGER) or "").partition("-")
        # What a killed bridge wrote and did not take out of the ledger is not written again.
        self._after = int(number) if ledger_id == ledger.fact("id") and number.isdigit() else 0

    def drain(self) -> None:
        """Raises OSError when the file can't be written; nothing is lost then."""
        with self._lock:
            while waiting := self._ledger.audit_waiting(self._after):
                end = self._audit.append([event for _, event in waiting], anchor=self._anchor())
                self._after = waiting[-1][0]
                self._ledger.audit_done(self._after, end.sha256, end.n)
                self._noted = end
            noted = audit_head.read(self._audit.folder)
            if noted != self._noted:  # others write too: whoever changes keys
                anchor = self._anchor()
                end = self._audit.append([], anchor=anchor)
                if end not in (Head(0, NO_LINE), anchor):
                    self._ledger.audit_done(self._after, end.sha256, end.n)
                self._noted = noted

    def _anchor(self) -> Head | None:
        """The last line that the ledger knows of."""
        sha256, number = self._ledger.fact(HEAD), self._ledger.fact(LINES)
        return Head(int(number), sha256) if sha256 and number.isdigit() else None
