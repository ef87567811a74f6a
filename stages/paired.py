"""Candidate against baseline on the same clips: the difference, its interval by groups, and a verdict.

Windows of one recording overlap and recordings of one person are alike, so clips are no independent draws. The
interval comes from a bootstrap that draws subjects and then recordings of each, never single clips. Three verdicts:
with an interval that reaches across the least effect asked for, the honest answer is "undecided".
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stages import sampling

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class Verdict(StrEnum):
    PASS = "pass"  # the whole interval lies above the least effect
    FAIL = "fail"  # none of it does
    UNDECIDED = "undecided"


@dataclass(frozen=True)
class Comparison:
    """Accuracies are means over subjects, so that no subject counts for more because it has more clips."""

    verdict: Verdict
    effect: float  # candidate - baseline
    low: float
    high: float
    candidate: float
    baseline: float
    by_subject: dict[str, dict[str, float]]
    clips: dict[str, int]  # right by both, by one alone, by neither


def compare(
    candidate_right: Bools,
    baseline_right: Bools,
    subjects: Ints,
    recordings: Ints,
    *,
    min_effect: float,
    confidence: float,
    resamples: int,
    seed: int,
) -> Comparison:
    """One entry of each array per clip."""
    by_subject = {
        str(subject): _subject(candidate_right[subjects == subject], baseline_right[subjects == subject])
        for subject in np.unique(subjects)
    }
    differences = candidate_right.astype(np.float64) - baseline_right.astype(np.float64)
    groups = [_recording_means(differences, recordings, subjects == subject) for subject in np.unique(subjects)]
    means = bootstrap(groups, resamples, seed)
    tail = (1.0 - confidence) / 2
    low, high = (float(value) for value in np.quantile(means, [tail, 1.0 - tail]))
    return Comparison(
        verdict=decide(low, high, min_effect, len(groups)),
        effect=_mean(by_subject, "difference"),
        low=low,
        high=high,
        candidate=_mean(by_subject, "candidate"),
        baseline=_mean(by_subject, "baseline"),
        by_subject=by_subject,
        clips={
            "both": int((candidate_right & baseline_right).sum()),
            "candidate_alone": int((candidate_right & ~baseline_right).sum()),
            "baseline_alone": int((~candidate_right & baseline_right).sum()),
            "neither": int((~candidate_right & ~baseline_right).sum()),
        },
    )


def decide(low: float, high: float, min_effect: float, subjects: int) -> Verdict:
    """From one subject nothing follows for the next one, so that is never a pass."""
    if high <= min_effect:
        return Verdict.FAIL
    return Verdict.PASS if low > min_effect and subjects >= 2 else Verdict.UNDECIDED


def bootstrap(groups: list[Floats], resamples: int, seed: int) -> Floats:
    """Means of `resamples` draws: as many subjects as there are, with replacement, then recordings of each."""
    draws = np.arange(resamples, dtype=np.int64)
    total = np.zeros(resamples)
    for slot in range(len(groups)):
        chosen = _pick(sampling.uniforms(draws, 1, sampling.BOOTSTRAP, seed, slot), len(groups))[:, 0]
        for number, group in enumerate(groups):
            rows = draws[chosen == number]
            picks = _pick(sampling.uniforms(rows, len(group), sampling.BOOTSTRAP, seed, slot, number), len(group))
            total[rows] += group[picks].mean(axis=1)
    return total / len(groups)


def _pick(uniforms: NDArray[np.float32], count: int) -> Ints:
    return np.minimum((uniforms * count).astype(np.int64), count - 1)


def _recording_means(differences: Floats, recordings: Ints, mask: Bools) -> Floats:
    here, where = differences[mask], recordings[mask]
    return np.array([here[where == recording].mean() for recording in np.unique(where)])


def _subject(candidate: Bools, baseline: Bools) -> dict[str, float]:
    first, second = float(candidate.mean()), float(baseline.mean())
    return {"candidate": first, "baseline": second, "difference": first - second, "clips": float(len(candidate))}


def _mean(by_subject: dict[str, dict[str, float]], name: str) -> float:
    return float(np.mean([values[name] for values in by_subject.values()]))


def to_json(comparison: Comparison) -> dict[str, Any]:
    return {
        "verdict": str(comparison.verdict),
        "effect": comparison.effect,
        "interval": [comparison.low, comparison.high],
        "candidate_accuracy": comparison.candidate,
        "baseline_accuracy": comparison.baseline,
        "by_subject": comparison.by_subject,
        "clips": comparison.clips,
    }
