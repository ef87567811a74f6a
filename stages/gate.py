"""Stage gate: may this classifier ship? It must beat a baseline on people whom neither of them has seen.

The baseline is a linear probe on an untrained encoder, trained here with the same recipe on the same labelled clips:
the best of several, as the validation subject tells, since an untrained encoder can be lucky.
A verdict other than "pass" ends with an exit code of its own, and export does not start.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from bridgehead import names
from bridgehead.errors import UsageError, VerificationError
from bridgehead.run import Run
from stages import cells, clips_pool, evaluation, judging, leakage, sampling, training
from stages.clips_pool import ClipPool, Positions
from stages.config import read_config, require
from stages.entry import run_stage
from stages.judging import Bootstrap, Comparison, Criterion, Direction, Verdict
from stages.leakage import Leakage, Side
from stages.model import Classifier, classifier_from, load_weights, new_encoder, weights_sha256
from stages.probe import ProbeRecipe, clips_sha256, fit_probe, labelled_clips


@dataclass(frozen=True)
class GateConfig:
    """[stages.gate.config] of bridgehead.toml."""

    min_effect: float = 0.02  # accuracy that the candidate must win over the baseline
    min_accuracy: float = 0.0  # accuracy that it must reach by itself; 0: any
    criteria: list[dict[str, Any]] = field(default_factory=list)  # more of them, each a table: metric, direction, …
    confidence: float = 0.95
    resamples: int = 4000
    baselines: int = 3  # untrained encoders to choose the baseline from
    clips: int = 8000  # of a seeded permutation of the held-out subjects' clips
    near_tolerance: float = leakage.TOLERANCE  # clips no further apart than this are one clip to the leakage check
    seed: int = 0
    threads: int = 1

    @property
    def bootstrap(self) -> Bootstrap:
        return Bootstrap(self.confidence, self.resamples, self.seed)


def main() -> int:
    return run_stage(gate)


def gate(run: Run) -> int:
    config = read_config(GateConfig, run.config, names.GATE)
    _check(config)
    asked = criteria(config)
    device = training.prepare(config.seed, config.threads)
    record = load_weights(run.input(names.FINETUNE) / names.ARTIFACTS / names.CLASSIFIER_WEIGHTS, names.FINETUNE)
    check_no_leak(record["seen_subjects"], clips_pool.HELD_OUT_SUBJECTS)
    pool = clips_pool.open_pool(clips_pool.data_folder(run), stride=record["stride"])
    if pool.fingerprint != record["pool_fingerprint"]:
        raise VerificationError("the candidate was trained on another pool", hint="queue run:finetune again")
    held_out = pool.of_subjects(clips_pool.HELD_OUT_SUBJECTS)
    held_out = held_out[sampling.subset(pool.clip_ids(held_out), config.clips, config.seed)]
    leaks = find_leaks(pool, record, held_out, config)
    leakage.refuse(leaks)
    baseline = best_baseline(pool, record, config)
    candidate = classifier_from(record, "raw").to(device)
    mine, theirs = (evaluation.measure(model, pool, held_out, device) for model in (candidate, baseline))
    subjects, recordings = pool.subjects(held_out), pool.recordings(held_out)
    verdict, found = judging.judge(mine, theirs, subjects, recordings, asked, config.bootstrap)
    slices = {"label": [clips_pool.LABELS[label] for label in pool.labels(held_out).tolist()]}
    run.results(
        {
            **_verdict(verdict, found, mine, theirs),
            "cells": {
                who: cells.make(values, subjects, recordings, slices)
                for who, values in (("candidate", mine), ("baseline", theirs))
            },
            **_results(config, record, baseline, pool, held_out, leaks),
        }
    )
    first = found[0]
    run.message(
        f"gate: {verdict}: {first.candidate:.3f} against {first.baseline:.3f}, "
        f"difference {first.effect:+.3f} [{first.low:+.3f}, {first.high:+.3f}]"
    )
    for line in (line for item in found for line in item.why):
        print(f"gate: {line}", flush=True)
    return 0 if verdict is Verdict.PASS else names.GATE_FAILED_EXIT_CODE


def criteria(config: GateConfig) -> list[Criterion]:
    """Accuracy first, then what the project adds. Raises UsageError that names the table and the key."""
    first = Criterion(
        evaluation.ACCURACY,
        min_effect=config.min_effect,
        threshold=config.min_accuracy if config.min_accuracy else None,
    )
    more = []
    for number, table in enumerate(config.criteria, start=1):
        place = f"{names.GATE}.config.criteria, number {number}"
        given = dict(table)
        metric = str(given.get("metric", ""))
        if metric not in evaluation.METRICS:
            known = ", ".join(evaluation.METRICS)
            raise UsageError(f"[stages.{place}] measures {metric!r}", hint=f"one of {known}")
        given.setdefault("direction", str(evaluation.METRICS[metric]))
        wrong = {"higher": "lower", "lower": "higher"}[str(evaluation.METRICS[metric])]
        if given["direction"] == wrong:
            raise UsageError(f"[stages.{place}] direction: {wrong} {metric} is no better", hint="leave it out")
        read = read_config(Criterion, {**given, "direction": _direction(given["direction"], place)}, place)
        more.append(read)
    if len({item.metric for item in [first, *more]}) <= len(more):
        raise UsageError(f"[stages.{names.GATE}.config.criteria] asks twice about one metric")
    return [first, *more]


def _direction(text: object, place: str) -> Direction:
    try:
        return Direction(str(text))
    except ValueError:
        raise UsageError(f"[stages.{place}] direction = {text!r}", hint=" or ".join(Direction)) from None


def find_leaks(pool: ClipPool, record: dict[str, Any], held_out: Positions, config: GateConfig) -> list[Leakage]:
    """Candidate and baseline against the evaluated clips.

    The candidate's side is every clip of the people whom its encoder or its head has seen, whichever of them were
    drawn; the baseline's those that were labelled, and the validation subject's, by which the best one is chosen.
    """
    validation = pool.of_subjects(clips_pool.VALIDATION_SUBJECTS)
    labelled = labelled_clips(pool, record["label_subjects"], record["labelled_clips"], record["labelled_seed"])
    sides = {
        "candidate": pool.of_subjects(record["seen_subjects"]),
        "baseline": np.union1d(labelled, validation),
    }
    judged = _side(pool, held_out)
    return [
        leakage.check(who, _side(pool, positions), judged, tolerance=config.near_tolerance)
        for who, positions in sides.items()
    ]


def _side(pool: ClipPool, positions: Positions) -> Side:
    return Side(pool.clip_ids(positions), pool.subjects(positions), lambda places: pool.read(positions[places]))


def check_no_leak(seen: Iterable[int], held_out: Iterable[int]) -> None:
    """Raises VerificationError when the candidate has seen a person whom it is judged on."""
    both = sorted(set(seen) & set(held_out))
    if both:
        raise VerificationError(
            f"subjects {both} are in training and in the gate: the comparison would mean nothing",
            hint="train without them and queue the gate again",
        )


def best_baseline(pool: ClipPool, record: dict[str, Any], config: GateConfig) -> Classifier:
    """The one of several baselines that does best on the validation subjects; the held-out ones have no say."""
    validation = pool.of_subjects(clips_pool.VALIDATION_SUBJECTS)
    validation = validation[sampling.subset(pool.clip_ids(validation), config.clips, config.seed)]
    seeds = range(config.seed, config.seed + config.baselines)
    found = [train_baseline(pool, record, seed) for seed in seeds]
    return max(found, key=lambda item: evaluation.accuracy(item, pool, validation, training.device()))


def train_baseline(pool: ClipPool, record: dict[str, Any], seed: int) -> Classifier:
    """finetune's own probe recipe on finetune's own clips, with an encoder that never learnt anything."""
    labelled = labelled_clips(pool, record["label_subjects"], record["labelled_clips"], record["labelled_seed"])
    if clips_sha256(pool, labelled) != record["labelled_sha256"]:
        raise VerificationError("the candidate's labelled clips can't be found again", hint="queue run:finetune again")
    device = training.device()
    encoder = new_encoder(record["width"], pool.mean, pool.std, seed=seed).to(device)
    return fit_probe(encoder, pool, labelled, ProbeRecipe(**record["probe"])).eval()


def _verdict(
    verdict: Verdict, found: list[Comparison], candidate: evaluation.Measured, baseline: evaluation.Measured
) -> dict[str, Any]:
    """The whole verdict, and accuracy's figures once more by the names that readers of older records know."""
    first = found[0].to_json()
    mine, theirs = candidate[evaluation.ACCURACY] > 0.5, baseline[evaluation.ACCURACY] > 0.5
    return {
        "verdict": str(verdict),
        "why": [line for item in found for line in item.why],
        "effect": first["effect"],
        "interval": first["interval"],
        "candidate_accuracy": first["candidate"],
        "baseline_accuracy": first["baseline"],
        "by_subject": {
            group: {**{key: row[key] for key in ("candidate", "baseline", "difference")}, "clips": row["items"]}
            for group, row in first["by_group"].items()
        },
        "clips": {
            "both": int((mine & theirs).sum()),
            "candidate_alone": int((mine & ~theirs).sum()),
            "baseline_alone": int((~mine & theirs).sum()),
            "neither": int((~mine & ~theirs).sum()),
        },
        "criteria": [item.to_json() for item in found],
    }


def _results(
    config: GateConfig,
    record: dict[str, Any],
    baseline: Classifier,
    pool: ClipPool,
    held_out: Positions,
    leaks: list[Leakage],
) -> dict[str, Any]:
    return {
        "min_effect": config.min_effect,
        "confidence": config.confidence,
        "resamples": config.resamples,
        "resampled": "subjects, then recordings of each",
        "candidate": {"run_id": record["run_id"], "weights_sha256": record["weights_sha256"]},
        "baseline": {
            "id": f"linear probe on an untrained encoder, the best of {config.baselines}",
            "weights_sha256": weights_sha256(baseline),
            "recipe": record["probe"],
        },
        "leak_check": {
            "seen_subjects": record["seen_subjects"],
            "held_out_subjects": list(clips_pool.HELD_OUT_SUBJECTS),
            "disjoint": True,
            "sides": [item.to_json() for item in leaks],
        },
        "evaluated_clips": len(held_out),
        "evaluated_sha256": clips_sha256(pool, held_out),
        "pool": clips_pool.describe(pool),
        "config": asdict(config),
    }


def _check(config: GateConfig) -> None:
    require(0 < config.confidence < 1, names.GATE, "confidence must lie between 0 and 1")
    require(config.min_effect >= 0, names.GATE, "min_effect can't be negative")
    require(config.baselines >= 1, names.GATE, "baselines must be at least 1")
    require(0 <= config.min_accuracy <= 1, names.GATE, "min_accuracy must lie between 0 and 1")
    require(0 <= config.near_tolerance < 10, names.GATE, "near_tolerance must lie between 0 and 10")
    require(config.resamples >= 100 and config.clips >= 1 and config.threads >= 1, names.GATE, "resamples: from 100")


if __name__ == "__main__":
    sys.exit(main())
