"""Which patterns match where in a log, and which of the matches tell of something that was survived."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from bridgehead.failures import masks
from bridgehead.failures.literals import needed
from bridgehead.failures.log_lines import LogText
from bridgehead.failures.pattern import Pattern
from bridgehead.names import FailureClass as F

SURVIVED_LINES: Final = 3  # so many lines of progress after the last such line, and the run had got over it
_HINT_AT_MOST: Final = 33  # below what decides a class
_SURVIVABLE: Final = frozenset({
    F.GPU_OOM, F.DISK_FULL, F.MOUNT_LOST, F.AUTH, F.ENVIRONMENT, F.TRACKER, F.SSH_DROP, F.NO_GPU, F.USER_ERROR,
    F.CHECKPOINT_CORRUPT, F.HOST_OOM, F.SHM, F.NAN_LOSS, F.NCCL_TIMEOUT, F.SUBMIT_ERROR,
})  # fmt: skip
_DIGITS = re.compile(r"\d+")
_PER_LINE: Final = 6  # matches of one line that are kept: the highest


@dataclass(frozen=True)
class Finding:
    """`first`, `last`: index of the first and the last line like it. `demoted`: it was survived, or only mentioned."""

    pattern: Pattern
    text: str
    offset: int
    first: int
    last: int
    demoted: str = ""

    @property
    def rank(self) -> int:
        return min(self.pattern.rank, _HINT_AT_MOST) if self.demoted else self.pattern.rank


@dataclass(frozen=True)
class Findings:
    """Best first: by rank, then by place. `success_at`: index of a line that says that it ended well; -1: none."""

    found: list[Finding]
    success_at: int = -1
    cut_short: bool = False


def find(
    log: LogText,
    patterns: Sequence[Pattern],
    *,
    limit_s: float = 10.0,
    clock: Callable[[], float] = time.monotonic,
) -> Findings:
    """Look at each line once; lines that differ in numbers alone count as one. Ends after `limit_s` seconds."""
    deadline = clock() + limit_s
    index = Index(patterns)
    seen: dict[str, list[Finding]] = {}
    progress: list[int] = []
    success, late, before = -1, False, ""
    for number, (offset, raw) in enumerate(log.lines):
        if number % 64 == 0 and clock() > deadline:
            late = True
            break
        text = masks.masked(raw, before)
        before = raw
        key = _DIGITS.sub("0", text[:400])
        known = seen.get(key)
        if known is None:
            seen[key] = index.matches(text, raw, offset, number)
        elif known:
            seen[key] = [replace(item, last=number) for item in known]
        if not seen[key] and masks.PROGRESS.search(text):
            progress.append(number)
        if masks.SUCCESS.search(text):
            success = number
    found = [_judged(item, progress) for group in seen.values() for item in group]
    return Findings(sorted(found, key=lambda item: (-item.rank, item.first)), success, late)


class Index:
    """Patterns by a piece of text that each needs; a piece that is not in the line spares its patterns' run."""

    def __init__(self, patterns: Sequence[Pattern]) -> None:
        self._pieces: dict[str, list[Pattern]] = {}
        self._always: list[Pattern] = []
        for pattern in patterns:
            pieces = _needed(pattern.regex)
            for piece in pieces:
                self._pieces.setdefault(piece, []).append(pattern)
            if not pieces:
                self._always.append(pattern)

    def hits(self, text: str) -> list[Pattern]:
        """The patterns that match this line."""
        low = text.lower()
        wanted = {id(item): item for piece, listed in self._pieces.items() if piece in low for item in listed}
        return [item for item in [*wanted.values(), *self._always] if item.compiled.search(text)]

    def matches(self, text: str, raw: str, offset: int, number: int) -> list[Finding]:
        hits = sorted(self.hits(text), key=lambda item: -item.rank)
        why = "only mentioned" if hits and masks.only_mentions(text) else ""
        return [Finding(item, raw, offset, number, number, why) for item in hits[:_PER_LINE]]


def _judged(item: Finding, progress: list[int]) -> Finding:
    if item.demoted or item.pattern.failure not in _SURVIVABLE:
        return item
    after = sum(1 for number in progress if number > item.last)
    return replace(item, demoted="survived") if after >= SURVIVED_LINES else item


_cache: dict[str, tuple[str, ...]] = {}


def _needed(regex: str) -> tuple[str, ...]:
    if regex not in _cache:
        _cache[regex] = needed(regex)
    return _cache[regex]
