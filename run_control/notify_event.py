"""One thing that is worth a person's attention, in words that may be sent anywhere."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from bridgehead import names

TEXT_MAX = 500  # characters; what a phone still shows
TITLE_MAX = 120
TEST = "test"  # the kind of what `bridgehead notify test` sends


@dataclass(frozen=True)
class Event:
    """`key` says which event this is and never changes; an event of a key is told once. `t`: seconds since 1970.

    Title, text and next step are made plain: part of them is what a VM said.
    """

    key: str
    kind: str  # an EventKind, or TEST
    title: str
    text: str
    t: float
    project: str
    run_id: str = ""
    next: str = ""  # what to do

    def __post_init__(self) -> None:
        object.__setattr__(self, "title", plain(self.title, TITLE_MAX))
        for name in ("text", "next"):
            object.__setattr__(self, name, plain(getattr(self, name)))

    @property
    def id(self) -> str:
        """The same for every attempt to tell it, so that a receiver can drop what it got twice."""
        return hashlib.sha256(f"{self.project}\n{self.key}\n{self.t}".encode()).hexdigest()[:32]

    @property
    def words(self) -> str:
        """Text and next step on one line."""
        return f"{self.text}. next: {self.next}" if self.next and self.text else self.text or self.next

    def to_json(self) -> dict[str, Any]:
        """What a webhook and a command get."""
        return {
            "v": names.RECORD_VERSION,
            "id": self.id,
            "kind": self.kind,
            "title": self.title,
            "text": self.text,
            "t": self.t,
            "project": self.project,
            "run_id": self.run_id,
            "next": self.next,
        }


def plain(text: str, limit: int = TEXT_MAX) -> str:
    """One line without control and bidi characters: what a VM says is not trusted."""
    kept = "".join(char if char.isprintable() else " " for char in text)
    line = " ".join(kept.split())
    return line if len(line) <= limit else line[: limit - 1] + "…"
