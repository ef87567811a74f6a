"""Lines that this panel added to queue.txt: which press each belongs to, and those that no bridge has taken yet."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Final

from control_panel.shapes import QueueLine

KEPT_MAX: Final = 500


class Sent:
    """Safe from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_seq: OrderedDict[int, str] = OrderedDict()
        self._waiting: OrderedDict[str, QueueLine] = OrderedDict()  # id of the press -> its line
        self._raw: dict[str, tuple[str, int]] = {}  # id of the press -> (its line in the file, `after`)
        self._news = False

    def add(self, command_id: str, raw: str, shown: QueueLine, after: int) -> None:
        """The line is about to be in the file; `after` is the number of the newest line taken before it."""
        with self._lock:
            self._waiting[command_id], self._raw[command_id], self._news = shown, (raw, after), True
            while len(self._waiting) > KEPT_MAX:
                self._raw.pop(self._waiting.popitem(last=False)[0], None)

    def drop(self, command_id: str) -> None:
        """It did not get into the file, or was refused there."""
        with self._lock:
            self._news = self._waiting.pop(command_id, None) is not None or self._news
            self._raw.pop(command_id, None)

    def taken(self, command_id: str, seq: int) -> None:
        """The bridge has taken it under this number."""
        with self._lock:
            self._bind(command_id, seq)

    def id_of(self, seq: int, raw: str) -> str:
        """The press that a taken line comes from; "" for a line that a person or the command line wrote.

        A line that was still waiting when the panel stopped looking is known by its text.
        """
        with self._lock:
            known = self._by_seq.get(seq)
            if known is None:
                mine = (key for key, (line, after) in self._raw.items() if line == raw and seq > after)
                known = next(mine, None)
                if known is not None:
                    self._bind(known, seq)
            return known or ""

    def other(self, command_id: str, seq: int) -> bool:
        """Whether the taken line is known to be another press's."""
        with self._lock:
            return self._by_seq.get(seq, command_id) != command_id

    def waiting(self) -> list[QueueLine]:
        with self._lock:
            return list(self._waiting.values())

    def changed(self) -> bool:
        """Whether a line was added or taken since the last call."""
        with self._lock:
            news, self._news = self._news, False
            return news

    def _bind(self, command_id: str, seq: int) -> None:
        self._by_seq[seq] = command_id
        self._waiting.pop(command_id, None)
        self._raw.pop(command_id, None)
        self._news = True
        while len(self._by_seq) > KEPT_MAX:
            self._by_seq.popitem(last=False)
