"""Stage gate: may this classifier ship? It must beat a baseline on people whom neither of them has seen.

The baseline is a linear probe on an untrained encoder, trained here with the same recipe on the same labelled clips:
the best of several, as the validation subject tells, since an untrained encoder can be lucky.
A verdict other than "pass" ends with an exit code of its own, and export does not start.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from bridgehead import names
from bridgehead.errors import VerificationError
from bridgehead.run import Run
from stages import clips_pool, evaluation, paired, sampling, training
from stages.clips_pool import ClipPool, Positions
from stages.config import read_config, require
from stages.entry import run_stage
from stages.model import Classifier, classifier_from, load_weights, new_encoder, weights_sha256
from stages.paired import Comparison, Verdict
from stages.probe import ProbeRecipe, clips_sha256, fit_probe, labelled_clips


@dataclass(frozen=True)
class GateConfig:
    """[stages.gate.config] of bridgehead.toml."""

    min_effect: float = 0.02  # accuracy that the candidate must win over the baseline
    confidence: float = 0.95
    resamples: int = 4000
    baselines: int = 3  # untrained encoders to choose the baseline from
    clips: int = 8000  # of a seeded permutation of the held-out subjects' clips
    seed: int = 0
    threads: int = 1


def main() -> int:
    return run_stage(gate)


def gate(run: Run) -> int:
    config = read_config(GateConfig, run.config, names.GATE)
    _check(config)
    device = training.prepare(config.seed, config.threads)
    record = load_weights(run.input(names.FINETUNE) / names.ARTIFACTS / names.CLASSIFIER_WEIGHTS, names.FINETUNE)
    check_no_leak(record["seen_subjects"], clips_pool.HELD_OUT_SUBJECTS)
    pool = clips_pool.open_pool(clips_pool.data_folder(run), stride=record["stride"])
    if pool.fingerprint != record["pool_fingerprint"]:
        raise VerificationError("the candidate was trained on another pool", hint="queue run:finetune again")
    held_out = pool.of_subjects(clips_pool.HELD_OUT_SUBJECTS)
    held_out = held_out[sampling.subset(pool.clip_ids(held_out), config.clips, config.seed)]
    candidate = classifier_from(record, "raw").to(device)
    baseline = best_baseline(pool, record, config)
    truth = pool.labels(held_out)
    comparison = paired.compare(
        evaluation.predict(candidate, pool, held_out, device) == truth,
        evaluation.predict(baseline, pool, held_out, device) == truth,
        pool.subjects(held_out),
        pool.recordings(held_out),
        min_effect=config.min_effect,
        confidence=config.confidence,
        resamples=config.resamples,
        seed=config.seed,
    )
    run.results(_results(config, record, baseline, pool, held_out, comparison))
    run.message(
        f"gate: {comparison.verdict}: {comparison.candidate:.3f} against {comparison.baseline:.3f}, "
        f"difference {comparison.effect:+.3f} [{comparison.low:+.3f}, {comparison.high:+.3f}]"
    )
    return 0 if comparison.verdict is Verdict.PASS else names.GATE_FAILED_EXIT_CODE


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


def _results(
    config: GateConfig,
    record: dict[str, Any],
    baseline: Classifier,
    pool: ClipPool,
    held_out: Positions,
    comparison: Comparison,
) -> dict[str, Any]:
    return {
        **paired.to_json(comparison),
        "min_effect": config.min_effect,
        "confidence": config.confidence,
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
    require(config.resamples >= 100 and config.clips >= 1 and config.threads >= 1, names.GATE, "resamples: from 100")


if __name__ == "__main__":
    sys.exit(main())
