"""Why a run ended: the evidence in its order, the first level that decides, and what to do next.

Success beats all; then what the provider says, then the kernel's counters; then exit code and log together, by how near
each is to the first cause. Where nothing decides the answer is `unknown`, with the best hint.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from bridgehead.failures import details, exit_codes, provider_states
from bridgehead.failures.classes import facts
from bridgehead.failures.findings import Finding, Findings, find
from bridgehead.failures.log_lines import LogText
from bridgehead.failures.pattern import Pattern
from bridgehead.failures.table import PATTERNS
from bridgehead.names import FailureClass as F

CERTAIN: Final = 100
DECIDES: Final = 34  # from this rank on a finding names the class; below, it is a hint
QUOTE_CHARS: Final = 400
_HIGH, _MEDIUM = 79, 45
_TEARDOWN: Final = frozenset({F.NCCL_TIMEOUT, F.NCCL_PEER_LOST, F.TRACKER, F.SEGFAULT, F.KILLED})
_VICTIM = re.compile(
    r"NCCL|c10d|ProcessGroup|\bDist\w*Error|gloo|TCPStore|Connection|Broken pipe|SignalException|Timeout"
)
# Of the run's own record: what its runner is sure of. Its other classes are refined by the log.
_SURE: Final = frozenset({
    F.STOPPED, F.GATE, F.UPSTREAM, F.UNKNOWN_OUTCOME, F.HOST_OOM, F.NAN_LOSS, F.DISK_FULL, F.VM_LOST,
    F.TIME_LIMIT,
})  # fmt: skip


@dataclass(frozen=True)
class Known:
    """What is known beside the log. `recorded`: the class in the run's own exit record; empty: there is none.

    `recorded_why`: its message. `not_finite`: the metrics that were no number in the last progress it told.
    `oom_killed`, `disk_full`, `shm_full`: counters and statvfs; None where nothing was measured.
    """

    exit_code: int | None = None
    succeeded: bool = False
    recorded: str = ""
    recorded_why: str = ""
    not_finite: tuple[str, ...] = ()
    provider_state: str = ""
    oom_killed: bool | None = None
    disk_full: bool | None = None
    shm_full: bool | None = None


@dataclass(frozen=True)
class Evidence:
    """One piece. `level`: success, provider, counter, exit_code or log. `decides`: the class stands on this one."""

    level: str
    text: str
    failure: F
    rank: int
    source: str = ""
    offset: int | None = None
    decides: bool = False

    def to_json(self) -> dict[str, Any]:
        found: dict[str, Any] = {"level": self.level, "class": str(self.failure), "rank": self.rank, "text": self.text}
        if self.source:
            found["source"] = self.source
        if self.offset is not None:
            found["offset"] = self.offset
        return found | {"decides": self.decides}


@dataclass(frozen=True)
class Verdict:
    failure: F
    confidence: str  # high, medium or low
    next_step: str
    evidence: list[Evidence] = field(default_factory=list)
    detail: str = ""  # such as fragmentation, or diverged ranks
    hint: str = ""  # the best there is where nothing decides
    cut_short: bool = False  # not all lines were looked at: time was up

    def to_json(self) -> dict[str, Any]:
        known = facts(self.failure)
        return {
            "class": str(self.failure),
            "meaning": known.meaning,
            "confidence": self.confidence,
            "detail": self.detail,
            "next_step": self.next_step,
            "hint": self.hint,
            "cut_short": self.cut_short,
            "retry": known.retry_json(),
            "evidence": [item.to_json() for item in self.evidence],
        }


def classify(
    log: LogText, known: Known | None = None, *, patterns: Sequence[Pattern] = PATTERNS, limit_s: float = 30.0
) -> Verdict:
    """The verdict on one log. Never raises for what the log holds."""
    known = known or Known()
    found = find(log, patterns, limit_s=limit_s)
    outside = _outside(known)
    # Of each line the best of each class: several patterns may know it.
    causes = {(item.first, item.pattern.failure): item for item in reversed(_first_causes(found))}
    candidates = [*outside, *(_of_finding(item) for item in reversed(causes.values()))]
    best = max(candidates, key=lambda item: item.rank, default=None)  # the first of equals: evidence comes in its order
    if best is None or best.rank < DECIDES:
        return _unknown(candidates, log, found)
    if best.level == "log" and _is_teardown(best, found, known):
        ended = Evidence("success", log.lines[found.success_at][1][:QUOTE_CHARS], F.DONE, CERTAIN, decides=True)
        return Verdict(F.DONE, "medium", "the error came after the end: nothing to do", [ended, *candidates[:4]])
    return _decided(best, candidates, found)


def _decided(best: Evidence, candidates: list[Evidence], found: Findings) -> Verdict:
    evidence = [Evidence(**{**item.__dict__, "decides": item is best}) for item in candidates[:8]]
    if best not in candidates[:8]:
        evidence.append(Evidence(**{**best.__dict__, "decides": True}))
    finding = next((item for item in found.found if item.pattern.failure == best.failure), None)
    note = finding.pattern.note if finding is not None and best.level == "log" else ""
    detail, advice = details.of(best.failure, [item.text for item in found.found])
    confidence = "high" if best.rank >= _HIGH else "medium" if best.rank >= _MEDIUM else "low"
    return Verdict(
        best.failure,
        confidence,
        advice or note or facts(best.failure).next_step,
        evidence,
        detail,
        cut_short=found.cut_short,
    )


def _unknown(candidates: list[Evidence], log: LogText, found: Findings) -> Verdict:
    best = max(candidates, key=lambda item: item.rank, default=None)
    if best is not None and best.rank > 0:
        hint = f"{best.text} ({best.failure}?)" if best.failure != F.UNKNOWN else best.text
    else:
        hint = f"its last line: {log.tail[-1][:QUOTE_CHARS]}" if log.tail else "the log is empty"
    return Verdict(F.UNKNOWN, "low", facts(F.UNKNOWN).next_step, candidates[:8], hint=hint, cut_short=found.cut_short)


def _outside(known: Known) -> list[Evidence]:
    """Success, provider, counters and exit code, in that order."""
    found = []
    if known.succeeded or known.exit_code == 0:
        found.append(Evidence("success", "it ended with exit code 0", F.DONE, CERTAIN))
    if known.recorded and known.recorded in _SURE:
        why = f": {known.recorded_why[:QUOTE_CHARS]}" if known.recorded == F.TIME_LIMIT and known.recorded_why else ""
        text = f"its runner recorded {known.recorded}{why}"
        found.append(Evidence("provider", text, F(known.recorded), CERTAIN - 1))
    elif state := provider_states.class_of(known.provider_state):
        found.append(Evidence("provider", f"the provider says {known.provider_state}", state, CERTAIN - 1))
    killed = known.exit_code is not None and exit_codes.signal_number(known.exit_code) == 9
    if known.oom_killed and (killed or known.exit_code is None):
        found.append(Evidence("counter", "the kernel's oom_kill counter rose", F.HOST_OOM, CERTAIN - 2))
    elif known.oom_killed:
        found.append(Evidence("counter", "meanwhile the kernel ended a process for lack of memory", F.HOST_OOM, 44))
    if known.disk_full:
        found.append(Evidence("counter", "its disk was full when it ended", F.DISK_FULL, 89))
    if known.shm_full:
        found.append(Evidence("counter", "/dev/shm was full when it ended", F.SHM, 87))
    if known.not_finite:
        found.append(_not_finite(known))
    if known.exit_code:
        said = exit_codes.said(known.exit_code)
        found.append(Evidence("exit_code", said.text, said.failure, said.rank))
    if known.recorded and known.recorded not in _SURE:
        text = f"its runner recorded {known.recorded}"
        found.append(Evidence("exit_code", text, F(known.recorded), _recorded_rank(known)))
    return found


def _not_finite(known: Known) -> Evidence:
    """As strong as a line of progress in the log; a hint for what is no loss, and for who died of a signal."""
    names = " ".join(known.not_finite).lower()
    signalled = known.recorded == F.KILLED or exit_codes.signal_number(known.exit_code or 0) > 0
    rank = 33 if signalled else 72 if "loss" in names else 46 if "grad" in names else 33
    text = f"in the last progress that it told no number any more: {', '.join(known.not_finite)}"
    return Evidence("counter", text[:QUOTE_CHARS], F.NAN_LOSS, rank)


def _recorded_rank(known: Known) -> int:
    """Low where the record says no more than how it ended, so that the log, or the signal itself, may say why."""
    failure = F(known.recorded)
    if failure == F.KILLED and known.exit_code and exit_codes.signal_number(known.exit_code):
        said = exit_codes.said(known.exit_code)
        return 57 if said.failure == F.KILLED else said.rank - 1  # the signal names who sent it: itself, or a terminal
    return {F.USER_ERROR: 34, F.KILLED: 57, F.ENVIRONMENT: 79, F.CHECKPOINT: 83}.get(failure, 34)


def _first_causes(found: Findings) -> list[Finding]:
    """Best first; an exception of the program's own that came before the ranks lost each other goes before them."""
    ranked = list(found.found)
    if not ranked or ranked[0].pattern.failure not in (F.NCCL_TIMEOUT, F.NCCL_PEER_LOST):
        return ranked
    lost = min(item.first for item in ranked if item.pattern.failure in (F.NCCL_TIMEOUT, F.NCCL_PEER_LOST))
    own = [
        item
        for item in ranked
        if item.first < lost and not item.demoted and item.pattern.failure == F.USER_ERROR
        and item.pattern.rank >= 50 and not _VICTIM.search(item.text)
    ]  # fmt: skip
    if not own:
        return ranked
    return [item for item in ranked if item.pattern.failure not in (F.NCCL_TIMEOUT, F.NCCL_PEER_LOST)]


def _is_teardown(best: Evidence, found: Findings, known: Known) -> bool:
    """Whether the log says that it ended well, and only then what usually goes wrong while resources are given back."""
    if known.exit_code or found.success_at < 0 or best.failure not in _TEARDOWN:
        return False
    worst = [item for item in found.found if item.rank >= DECIDES]
    return all(item.first > found.success_at and item.pattern.failure in _TEARDOWN for item in worst)


def _of_finding(item: Finding) -> Evidence:
    why = f" [{item.demoted}]" if item.demoted else ""
    text = item.text.strip()[:QUOTE_CHARS] + why
    return Evidence("log", text, item.pattern.failure, item.rank, item.pattern.source, item.offset)
