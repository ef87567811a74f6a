"""Candidate against baseline on the same items: differences, their intervals by groups, and a verdict. Pure numpy.

Windows of one recording overlap and recordings of one person are alike, so items are no independent draws. An interval
comes from a bootstrap that draws groups (people) and then parts of each (recordings), never single items (B. Efron,
R. Tibshirani, "An Introduction to the Bootstrap", 1993, ch. 8: percentile intervals of clustered data). Three verdicts:
with an interval that reaches across what was asked for, the honest answer is "undecided".

A metric is a number for each item whose mean is the metric, such as 1 for a right answer. Effects are gains: positive
is better, whatever the metric's direction.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bridgehead.errors import UsageError
from bridgehead.records import is_number
from stages import sampling

# Resampled groups understate the spread when there are few of them (A. C. Cameron, J. B. Gelbach, D. L. Miller,
# "Bootstrap-Based Improvements for Inference with Clustered Errors", 2008): below this many it is said.
FEW_GROUPS = 6
_ROUNDING = 1e-9  # of the values: what differs by less, from a threshold or from the other side, is equal to it

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class Verdict(StrEnum):
    PASS = "pass"  # the whole interval lies above what was asked for
    FAIL = "fail"  # none of it does
    UNDECIDED = "undecided"


class Direction(StrEnum):
    HIGHER = "higher"  # is better
    LOWER = "lower"


@dataclass(frozen=True)
class Criterion:
    """What is asked of one metric. All numbers are in the metric's own unit; UsageError for what can't be meant."""

    metric: str
    direction: Direction = Direction.HIGHER
    min_effect: float = 0.0  # the gain over the baseline that is asked for
    margin: float = 0.0  # the loss that is put up with, instead of a gain
    threshold: float | None = None  # what the candidate's own value has to reach, whatever the baseline's

    def __post_init__(self) -> None:
        numbers = [self.min_effect, self.margin, self.threshold or 0.0]
        if not all(is_number(number) for number in numbers):
            raise UsageError(f"criterion {self.metric}: a number of it is not finite")
        if self.min_effect < 0 or self.margin < 0:
            raise UsageError(
                f"criterion {self.metric}: min_effect and margin can't be negative",
                hint="margin = 0.01 allows a loss of 0.01",
            )
        if self.min_effect and self.margin:
            raise UsageError(f"criterion {self.metric}: min_effect asks for a gain and margin allows a loss: give one")

    @property
    def sign(self) -> float:
        return 1.0 if self.direction is Direction.HIGHER else -1.0

    @property
    def bar(self) -> float:
        """What the gain has to lie above."""
        return self.min_effect - self.margin


@dataclass(frozen=True)
class Bootstrap:
    """How intervals are drawn."""

    confidence: float = 0.95
    resamples: int = 4000
    seed: int = 0


@dataclass(frozen=True)
class Comparison:
    """One metric. Values are means over groups, so that none counts for more because it has more items."""

    metric: str
    verdict: Verdict
    why: list[str]
    effect: float  # the gain; NaN where a value was none
    low: float
    high: float
    candidate: float
    baseline: float
    by_group: dict[str, dict[str, float]] = field(default_factory=dict)
    criterion: Criterion | None = None

    def to_json(self) -> dict[str, Any]:
        """JSON has no NaN: null."""
        numbers = {name: _number(getattr(self, name)) for name in ("effect", "candidate", "baseline")}
        return {
            "metric": self.metric,
            "verdict": str(self.verdict),
            "why": self.why,
            **numbers,
            "interval": [_number(self.low), _number(self.high)],
            "by_group": {
                group: {name: _number(value) for name, value in row.items()} for group, row in self.by_group.items()
            },
            "criterion": asdict(self.criterion) if self.criterion else None,
        }


def judge(
    candidate: Mapping[str, Floats],
    baseline: Mapping[str, Floats],
    groups: Ints,
    parts: Ints,
    criteria: Sequence[Criterion],
    how: Bootstrap,
) -> tuple[Verdict, list[Comparison]]:
    """One entry of each array per item. It passes when every criterion does, so no correction for their number is due.

    Raises UsageError when there is nothing to judge, or a metric that nobody measured.
    """
    if not criteria:
        raise UsageError("no criterion: nothing is asked of the candidate")
    found = []
    for asked in criteria:
        if asked.metric not in candidate or asked.metric not in baseline:
            raise UsageError(f"nobody measured {asked.metric!r}", hint=f"measured: {', '.join(sorted(candidate))}")
        found.append(compare(candidate[asked.metric], baseline[asked.metric], groups, parts, asked, how))
    return worst(item.verdict for item in found), found


def worst(verdicts: Any) -> Verdict:
    """The verdict on several criteria that all count."""
    found = list(verdicts)
    for verdict in (Verdict.FAIL, Verdict.UNDECIDED):
        if verdict in found:
            return verdict
    return Verdict.PASS


def compare(
    candidate: Floats, baseline: Floats, groups: Ints, parts: Ints, asked: Criterion, how: Bootstrap
) -> Comparison:
    """One metric: paired by item. Raises UsageError for no items, or arrays of several lengths."""
    lengths = {len(candidate), len(baseline), len(groups), len(parts)}
    if lengths == {0}:
        raise UsageError("the evaluation set is empty", hint="name held-out data that exists")
    if len(lengths) != 1:
        raise UsageError(f"the comparison's arrays have several lengths: {sorted(lengths)}")
    candidate, baseline = candidate.astype(np.float64), baseline.astype(np.float64)
    broken = _not_finite(candidate, baseline, asked)
    if broken is not None:
        return broken
    chosen = [groups == group for group in np.unique(groups)]
    return _decided(
        [_part_means(candidate, parts, mask) for mask in chosen],
        [_part_means(baseline, parts, mask) for mask in chosen],
        {
            str(group): _group(candidate[mask], baseline[mask], asked.sign)
            for group, mask in zip(np.unique(groups), chosen, strict=True)
        },
        asked,
        how,
    )


def compare_parts(
    candidate: Mapping[str, Mapping[str, float]],
    baseline: Mapping[str, Mapping[str, float]],
    asked: Criterion,
    how: Bootstrap,
) -> Comparison:
    """The same from group → part → mean of the part's items, as records keep it; both sides must hold the same parts.

    Raises UsageError when they do not: then they were not measured on the same items.
    """
    shapes = [{group: sorted(parts) for group, parts in side.items()} for side in (candidate, baseline)]
    if shapes[0] != shapes[1] or not shapes[0]:
        raise UsageError("the two were not measured on the same groups and parts: they can't be compared")
    order = sorted(candidate, key=_numeric)
    first, second = (
        [np.array([side[group][part] for part in sorted(side[group], key=_numeric)]) for group in order]
        for side in (candidate, baseline)
    )
    broken = _not_finite(np.concatenate(first), np.concatenate(second), asked)
    if broken is not None:
        return broken
    rows = {group: _group(a, b, asked.sign) for group, a, b in zip(order, first, second, strict=True)}
    return _decided(first, second, rows, asked, how)


def decide(low: float, high: float, bar: float, groups: int) -> Verdict:
    """From one group nothing follows for the next one, so that is never a pass."""
    if high <= bar:
        return Verdict.FAIL
    return Verdict.PASS if low > bar and groups >= 2 else Verdict.UNDECIDED


def interval(groups: list[Floats], how: Bootstrap) -> tuple[float, float]:
    """The central `how.confidence` of the resampled means."""
    means = bootstrap(groups, how.resamples, how.seed)
    tail = (1.0 - how.confidence) / 2
    low, high = (float(value) for value in np.quantile(means, [tail, 1.0 - tail]))
    return low, high


def bootstrap(groups: list[Floats], resamples: int, seed: int) -> Floats:
    """Means of `resamples` draws: as many groups as there are, with replacement, then parts of each."""
    draws = np.arange(resamples, dtype=np.int64)
    total = np.zeros(resamples)
    single = np.concatenate(groups) if all(len(group) == 1 for group in groups) else None
    for slot in range(len(groups)):
        chosen = _pick(sampling.uniforms(draws, 1, sampling.BOOTSTRAP, seed, slot), len(groups))[:, 0]
        if single is not None:  # of thousands of groups with one part each there is nothing more to draw
            total += single[chosen]
            continue
        for number, group in enumerate(groups):
            rows = draws[chosen == number]
            picks = _pick(sampling.uniforms(rows, len(group), sampling.BOOTSTRAP, seed, slot, number), len(group))
            total[rows] += group[picks].mean(axis=1)
    return total / len(groups)


# --- inside -------------------------------------------------------------------------------------------


def _decided(
    candidate: list[Floats], baseline: list[Floats], rows: dict[str, dict[str, float]], asked: Criterion, how: Bootstrap
) -> Comparison:
    gains = [(first - second) * asked.sign for first, second in zip(candidate, baseline, strict=True)]
    low, high = interval(gains, how)
    bar = asked.bar + _ROUNDING * max(abs(asked.bar), *(float(np.abs(part).max()) for part in [*candidate, *baseline]))
    value = float(np.mean([row["candidate"] for row in rows.values()]))
    verdicts = [decide(low, high, bar, len(gains))]
    why = _words(verdicts[0], low, high, rows, gains, asked, clear=low > bar)
    if asked.threshold is not None:
        own = interval([part * asked.sign for part in candidate], how)
        reached = decide(*own, asked.threshold * asked.sign - _ROUNDING * max(1.0, abs(asked.threshold)), len(gains))
        verdicts.append(reached)
        shown = sorted(number * asked.sign for number in own)
        word = "reaches" if reached is Verdict.PASS else "misses" if reached is Verdict.FAIL else "may miss"
        why.append(f"its own value {value:.4g} [{shown[0]:.4g}, {shown[1]:.4g}] {word} {asked.threshold:g}")
    return Comparison(
        metric=asked.metric,
        verdict=worst(verdicts),
        why=why,
        effect=float(np.mean([row["difference"] for row in rows.values()])),
        low=low,
        high=high,
        candidate=value,
        baseline=float(np.mean([row["baseline"] for row in rows.values()])),
        by_group=rows,
        criterion=asked,
    )


def _words(
    verdict: Verdict,
    low: float,
    high: float,
    rows: dict[str, dict[str, float]],
    gains: list[Floats],
    asked: Criterion,
    *,
    clear: bool,
) -> list[str]:
    where = {Verdict.PASS: "lies above", Verdict.FAIL: "does not reach above", Verdict.UNDECIDED: "reaches across"}
    what = where[Verdict.PASS if clear else verdict]
    told = [f"the gain in {asked.metric} [{low:+.4g}, {high:+.4g}] {what} {asked.bar:+g}"]
    if sum(row["items"] for row in rows.values()) == 1:
        told.append("one item: no interval can be drawn from it")
    elif len(gains) == 1:
        told.append("all of one group: nothing follows from it for the next one")
    elif len(gains) < FEW_GROUPS:
        told.append(f"only {len(gains)} groups: from so few an interval comes out too narrow")
    if not any(part.any() for part in gains):
        told.append("a tie: the two are equal everywhere")
    return told


def _numeric(name: str) -> tuple[int, str]:
    """Numbers in their own order, as `compare` has them, so that the same draws give the same interval."""
    return (len(name), name)


def _not_finite(candidate: Floats, baseline: Floats, asked: Criterion) -> Comparison | None:
    """A candidate whose metric is no number has failed; against such a baseline nothing can be decided."""
    bad = [int((~np.isfinite(side)).sum()) for side in (candidate, baseline)]
    if not any(bad):
        return None
    who = "candidate" if bad[0] else "baseline"
    why = f"the {who}'s {asked.metric} is no finite number on {bad[0] or bad[1]} of {len(candidate)}"
    nothing = math.nan
    verdict = Verdict.FAIL if bad[0] else Verdict.UNDECIDED
    first, second = (
        float(side.mean()) if not count else nothing for side, count in zip((candidate, baseline), bad, strict=True)
    )
    return Comparison(asked.metric, verdict, [why], nothing, nothing, nothing, first, second, criterion=asked)


def _pick(uniforms: NDArray[np.float32], count: int) -> Ints:
    return np.minimum((uniforms * count).astype(np.int64), count - 1)


def _part_means(values: Floats, parts: Ints, mask: NDArray[np.bool_]) -> Floats:
    here = values[mask]
    _, place = np.unique(parts[mask], return_inverse=True)
    means: Floats = np.bincount(place, weights=here) / np.bincount(place)
    return means


def _group(candidate: Floats, baseline: Floats, sign: float) -> dict[str, float]:
    first, second = float(candidate.mean()), float(baseline.mean())
    return {
        "candidate": first,
        "baseline": second,
        "difference": (first - second) * sign,
        "items": float(len(candidate)),
    }


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None
