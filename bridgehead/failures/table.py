"""All patterns, and how many causes they tell apart."""

from __future__ import annotations

from typing import Final

from bridgehead.failures import patterns_gpu, patterns_machine, patterns_services
from bridgehead.failures.pattern import Pattern

PATTERNS: Final[tuple[Pattern, ...]] = (
    *patterns_gpu.PATTERNS,
    *patterns_machine.PATTERNS,
    *patterns_services.PATTERNS,
)
