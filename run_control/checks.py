"""What a check of `bridgehead doctor` is."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

PASS, WARN, FAIL = "pass", "warn", "fail"
REFUSE = "refuse"  # of a plan: the run does not start


@dataclass(frozen=True)
class Check:
    """One finding: `state` is pass, warn, fail or refuse; `hint` is what to do about it."""

    name: str
    state: str
    text: str
    hint: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)
