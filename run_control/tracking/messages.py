"""What the follower and a sink's process say to each other: one JSON object a line, an answer to each message.

    {"op": "open", "settings": {…}}                                              → {"ok": true}
    {"op": "tell", "run": ID, "head": {…}, "head_is_new": true, "place": {…}, "anew": false,
     "points": [[step, epoch, at, {metric: value}], …], "end": {…} or null}
                                                     → {"ok": true, "place": {…}, "holds": 1, "behind": null}
    {"op": "close"}                                                              → {"ok": true}
    any of them                                                  → {"ok": false, "error": "…", "hint": "…"}

`place` is where the sink keeps its copy of the run: its own, given back to it with the next message.
`holds` counts the runs that it keeps open. `behind` is the highest step that it really has, when that is less than it
was told of: then nothing of the message was taken, and the follower begins again after that step.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

OPEN, TELL, CLOSE = "open", "tell", "close"
ERROR_MAX: Final = 300  # characters
# Whatever a tool puts into an error text, the values of these never leave the process.
_SECRET_NAME = re.compile(r"(KEY|TOKEN|SECRET|PASSWORD)\Z")
_SECRET_MIN = 6  # shorter ones would cut up innocent words
_IN_URL = re.compile(r"://[^/\s@]+@")


class SinkError(Exception):
    """A sink says no, in words for a person; `hint` is a next step."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message, self.hint = message, hint


@dataclass(frozen=True)
class Message:
    run: str
    head: dict[str, Any]
    place: dict[str, Any]
    head_is_new: bool = True
    anew: bool = False  # what was told of this run before does not count
    points: list[tuple[int, int, float, dict[str, float]]] = field(default_factory=list)
    end: dict[str, Any] | None = None

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> Message:
        points = [(int(step), int(epoch), float(at), dict(metrics)) for step, epoch, at, metrics in found["points"]]
        told = {name: found[name] for name in ("run", "head", "place", "head_is_new", "anew", "end")}
        return cls(**told, points=points)


@dataclass(frozen=True)
class Answer:
    place: dict[str, Any] = field(default_factory=dict)
    holds: int = 0
    behind: int | None = None


class Sink(Protocol):
    """Made once in its process. Both methods may take as long as they like: the process is ended after its time."""

    def tell(self, message: Message) -> Answer:
        """Take the points in; when it returns they are kept. Raises SinkError, and whatever its tool raises."""
        ...

    def close(self) -> None:
        """Let go of what is open."""
        ...


def shown(text: str) -> str:
    """The first lines of a tool's error without secrets: neither such variables' values nor a password in a URL."""
    for name, value in os.environ.items():
        if len(value) >= _SECRET_MIN and _SECRET_NAME.search(name):
            text = text.replace(value, "…")
    text = _IN_URL.sub("://…@", " ".join(text.split()))
    return text if len(text) <= ERROR_MAX else text[: ERROR_MAX - 1] + "…"
