"""What a check of the preflight on a VM found."""

from __future__ import annotations

from dataclasses import dataclass

PASS, WARN, REFUSE = "pass", "warn", "refuse"


@dataclass(frozen=True)
class Finding:
    """One check: its name, how it went, what was found and what to do."""

    name: str
    state: str
    text: str
    hint: str = ""

    def line(self) -> str:
        return f"preflight: {self.name}: {self.text}" + (f" → {self.hint}" if self.hint else "")
