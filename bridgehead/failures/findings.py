"""Which patterns match where in a log, and which of the matches tell of something that was survived."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from bridgehead.failures import masks
from bridgehead.failures.literals import needed
from bridgehead.failures.log_lines import LogText
from bridgehead.failures.pattern import Pattern
from bridgehead.names import FailureClass as F

HANDLED_WITHIN: Final = 5  # lines after an error in which the program says that it goes on
LAST_LINES: Final = 4000
SURVIVED_LINES: Final = 3  # so many lines of progress after the last such line, and the run had got over it
_HINT_AT_MOST: Final = 33  # below what decides a class
_SURVIVABLE: Final = frozenset({
    F.GPU_OOM, F.DISK_FULL, F.MOUNT_LOST, F.AUTH, F.ENVIRONMENT, F.TRACKER, F.SSH_DROP, F.NO_GPU, F.USER_ERROR,
    F.CHECKPOINT_CORRUPT, F.HOST_OOM, F.SHM, F.NAN_LOSS, F.NCCL_TIMEOUT, F.SUBMIT_ERROR,
})  # fmt: skip
_DIGITS = re.compile(r"\d+")
_NO_TEXT = re.compile("\ufffd+")
_NOISE_RUNS: Final = 2
_NOISE_SHARE: Final = 8  # a run of such bytes in every so many characters
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
    """Look at each line once; lines that differ in numbers alone count as one. Ends after `limit_s` seconds.

    The end of the log comes first, for that is where the most is said if time runs out.
    """
    index = Index(patterns)
    deadline = clock() + limit_s
    seen: dict[tuple[str, bool], _Kind] = {}
    marks = _Marks()
    late = False
    source = masks.source_lines(log.lines)
    split = max(0, len(log.lines) - LAST_LINES)
    for count, number in enumerate([*range(split, len(log.lines)), *range(split)]):
        if count % 64 == 63 and clock() > deadline:
            late = True
            break
        offset, raw = log.lines[number]
        is_source = number in source
        key = (_DIGITS.sub("0", raw[:400]), is_source)
        known = seen.get(key)
        if known is None:
            text = masks.masked(raw, is_source=is_source)
            matched = [] if _is_noise(raw) else index.matches(text, raw, offset, number)
            known = seen[key] = _Kind(_signs(text), matched)
        elif known.found:
            known.found = [_also_at(item, offset, number) for item in known.found]
        marks.note(known, number)
    found = [_judged(item, marks) for kind in seen.values() for item in kind.found]
    return Findings(sorted(found, key=lambda item: (-item.rank, item.first)), marks.success, late)


def _is_noise(line: str) -> bool:
    """Whether it is no text: in a few MB of random bytes any three letters of a short pattern come by themselves.

    Bytes that are no UTF-8 count once for each run of them, so that a progress bar in another encoding stays a line.
    """
    runs = len(_NO_TEXT.findall(line))
    return runs > _NOISE_RUNS and runs * _NOISE_SHARE > len(line)


@dataclass
class _Kind:
    """Lines that differ in numbers alone. `signs`: of progress, of an error that was handled, of a good end."""

    signs: tuple[bool, bool, bool]
    found: list[Finding]


@dataclass
class _Marks:
    """Numbers of the lines that tell of progress, of an error that was handled, and of a good end (the last one)."""

    progress: list[int] = field(default_factory=list)
    handled: list[int] = field(default_factory=list)
    success: int = -1

    def note(self, kind: _Kind, number: int) -> None:
        progress, handled, success = kind.signs
        if progress and not kind.found:
            self.progress.append(number)
        if handled:
            self.handled.append(number)
        if success:
            self.success = max(self.success, number)


def _signs(text: str) -> tuple[bool, bool, bool]:
    return bool(masks.PROGRESS.search(text)), bool(masks.HANDLED.search(text)), bool(masks.SUCCESS.search(text))


def _also_at(item: Finding, offset: int, number: int) -> Finding:
    if number < item.first:
        return replace(item, first=number, offset=offset)
    return replace(item, last=max(number, item.last))


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


def _judged(item: Finding, marks: _Marks) -> Finding:
    if item.demoted or item.pattern.failure not in _SURVIVABLE:
        return item
    after = sum(1 for number in marks.progress if number > item.last)
    goes_on = any(0 <= number - item.last <= HANDLED_WITHIN for number in marks.handled)
    return replace(item, demoted="survived") if goes_on or after >= SURVIVED_LINES else item


_cache: dict[str, tuple[str, ...]] = {}


def _needed(regex: str) -> tuple[str, ...]:
    if regex not in _cache:
        _cache[regex] = needed(regex)
    return _cache[regex]
