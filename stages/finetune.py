"""Stage finetune: a linear probe first, then everything (LP-FT), encoder and head each at a rate of their own.

A fresh head would wreck a pretrained encoder with its first gradients, so the head is trained alone until it is good
(A. Kumar et al., "Fine-Tuning can Distort Pretrained Features", 2022, arXiv:2202.10054). `method` can leave out either
phase, to see what it is worth: "plain" trains everything from the start, "probe" nothing but the head.
"""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from bridgehead import names
from bridgehead.errors import VerificationError
from bridgehead.run import Run
from stages import augment, clips_pool, evaluation, sampling, training
from stages.clips_pool import ClipPool, Positions
from stages.config import NEUTRAL, read_config, require
from stages.entry import run_stage
from stages.model import Classifier, Encoder, encoder_from, load_weights, new_encoder, save_weights, weights_sha256
from stages.probe import ProbeRecipe, clips_sha256, fit_probe, head_loss, head_on, labelled_clips, probe_batch

WEIGHTS = ("raw", "ema")
HEAD, ENCODER = "head", "encoder"  # the optimizer's two groups
LP_FT, PLAIN, PROBE = "lp-ft", "plain", "probe"


@dataclass(frozen=True)
class FinetuneConfig:
    """[stages.finetune.config] of bridgehead.toml."""

    method: str = LP_FT  # or plain, or probe
    label_subjects: list[int] = field(default_factory=lambda: list(clips_pool.TRAIN_SUBJECTS))
    clips: int = 4000
    validation_clips: int = 2000
    weights: str = "ema"  # which of the encoder's two sets to start from
    probe_epochs: int = 8
    tune_epochs: int = 10
    batch: int = 64
    probe_learning_rate: float = 1e-2
    head_learning_rate: float = 2e-3
    encoder_learning_rate: float = 1e-3
    warmup_steps: int = 20
    weight_decay: float = 1e-4
    augment: bool = True  # in the second phase; what it learns holds better for people it has not seen
    seed: int = 0
    threads: int = 1

    @property
    def phases(self) -> tuple[int, int]:
        """Epochs of the head alone, and of everything."""
        return (0 if self.method == PLAIN else self.probe_epochs, 0 if self.method == PROBE else self.tune_epochs)

    @property
    def probe(self) -> ProbeRecipe:
        """Of the head alone; the gate's baseline is trained by it, whichever method this is."""
        return ProbeRecipe(self.probe_epochs, self.batch, self.probe_learning_rate, self.weight_decay, self.seed)


def main() -> int:
    return run_stage(finetune)


def finetune(run: Run) -> int:
    config = read_config(FinetuneConfig, run.config, names.FINETUNE)
    _check(config)
    device = training.prepare(config.seed, config.threads)
    pretrained = load_weights(run.input(names.PRETRAIN) / names.ARTIFACTS / names.ENCODER_WEIGHTS, names.PRETRAIN)
    pool = clips_pool.open_pool(clips_pool.data_folder(run), stride=pretrained["stride"])
    if pool.fingerprint != pretrained["pool_fingerprint"]:
        raise VerificationError("the encoder was pretrained on another pool", hint="queue run:pretrain again")
    labelled = labelled_clips(pool, config.label_subjects, config.clips, config.seed)
    validation = validation_clips(pool, config)
    encoder = encoder_from(pretrained, config.weights).to(device)
    before = weights_sha256(encoder)
    classifier, loop = train(run, config, pool, labelled, validation, encoder, pretrained["weights_sha256"])
    random_encoder = new_encoder(encoder.width, pool.mean, pool.std, seed=config.seed).to(device)
    random_probe = fit_probe(random_encoder, pool, labelled, config.probe)
    record = _record(run, config, pool, labelled, pretrained, classifier)
    accuracy = evaluation.accuracy(classifier, pool, validation, device)
    results = {
        **loop.outcome(),
        "weights_sha256": record["weights_sha256"],
        "artifact_sha256": run.with_room(lambda: save_weights(run.artifact(names.CLASSIFIER_WEIGHTS), record)),
        "validation_subjects": list(clips_pool.VALIDATION_SUBJECTS),
        "method": config.method,
        "probe_accuracy": loop.notes.get("probe_accuracy", accuracy if config.method == PROBE else None),
        "random_probe_accuracy": evaluation.accuracy(random_probe, pool, validation, device),
        "accuracy": accuracy,
        "encoder_changed": weights_sha256(classifier.encoder) != before,
        "pool": clips_pool.describe(pool),
        "clips_used": len(labelled),
        "classes": sampling.histogram(pool.labels(labelled)),
        "subjects": sampling.histogram(pool.subjects(labelled)),
        "config": asdict(config),
    }
    run.results(results)
    probe = f"probe {results['probe_accuracy']:.3f}, " if config.method == LP_FT else ""
    run.message(
        f"finetune ({config.method}) done: accuracy on subject {clips_pool.VALIDATION_SUBJECTS[0]} {accuracy:.3f}, "
        f"{probe}probe of an untrained encoder {results['random_probe_accuracy']:.3f}"
    )
    return 0


def rates(step: int, config: FinetuneConfig, clips: int) -> dict[str, float]:
    """Both groups' learning rates, a pure function of the step: in phase 1 the encoder's is 0, in phase 2 never."""
    probe_steps = config.phases[0] * (clips // config.batch)
    if step < probe_steps:
        return {HEAD: config.probe.rate(step, clips), ENCODER: 0.0}
    horizon = config.tune_epochs * (clips // config.batch)
    peaks = {HEAD: config.head_learning_rate, ENCODER: config.encoder_learning_rate}
    warmup = config.warmup_steps
    return {
        name: training.learning_rate(step - probe_steps, horizon, peak=peak, warmup_steps=warmup)
        for name, peak in peaks.items()
    }


def validation_clips(pool: ClipPool, config: FinetuneConfig) -> Positions:
    found = pool.of_subjects(clips_pool.VALIDATION_SUBJECTS)
    return found[sampling.subset(pool.clip_ids(found), config.validation_clips, config.seed)]


def train(
    run: Run,
    config: FinetuneConfig,
    pool: ClipPool,
    labelled: Positions,
    validation: Positions,
    encoder: Encoder,
    encoder_sha256: str,
) -> tuple[Classifier, training.Loop]:
    """Both phases in one loop; which phase a step belongs to follows from its number, so a resume can't mistake it."""
    device = encoder.mean.device
    frozen = evaluation.embed(encoder, pool, labelled, device)  # of the untouched encoder: also after a resume
    labels = torch.from_numpy(pool.labels(labelled)).to(device)
    classifier = head_on(encoder, frozen, config.seed)
    optimizer = new_optimizer(classifier, config)
    plan = training.Plan(sum(config.phases), len(labelled) // config.batch, config.batch)
    run.declare(config={**asdict(config), "encoder": encoder_sha256}, neutral=NEUTRAL, pool=pool.fingerprint)
    loop = training.Loop(run, plan, {"classifier": classifier, "optimizer": optimizer})
    loop.resume()
    for at in loop:
        batch = probe_batch(pool, labelled, config.probe, at.epoch, at.index, device)
        training.set_learning_rates(optimizer, rates(at.step, config, len(labelled)))
        if at.epoch < config.phases[0]:
            loss = head_loss(classifier, frozen[batch], labels[batch])
        else:
            if config.method == LP_FT and "probe_accuracy" not in loop.notes:
                loop.notes["probe_accuracy"] = evaluation.accuracy(classifier, pool, validation, device)
            loss = _whole_loss(classifier, config, pool, labelled[batch.cpu().numpy()], at.epoch)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        loop.report(loss)
    return classifier.eval(), loop


def new_optimizer(classifier: Classifier, config: FinetuneConfig) -> torch.optim.AdamW:
    groups = [
        {"params": list(classifier.head.parameters()), "name": HEAD},
        {"params": list(classifier.encoder.parameters()), "name": ENCODER},
    ]
    return torch.optim.AdamW(groups, weight_decay=config.weight_decay)


def _whole_loss(
    classifier: Classifier, config: FinetuneConfig, pool: ClipPool, positions: Positions, epoch: int
) -> Tensor:
    std = classifier.encoder.std
    clips = torch.from_numpy(pool.read(positions)).to(std.device)
    labels = torch.from_numpy(pool.labels(positions)).to(std.device)
    if config.augment:
        clips = augment.one_view(clips, pool.clip_ids(positions), config.seed, epoch, std)
    logits, _ = classifier(clips)
    return nn.functional.cross_entropy(logits, labels)


def _record(
    run: Run,
    config: FinetuneConfig,
    pool: ClipPool,
    labelled: Positions,
    pretrained: dict[str, Any],
    classifier: Classifier,
) -> dict[str, Any]:
    """classifier.pt: the weights, and all that the gate needs to train its baseline on the same clips."""
    seen = {*pretrained["train_subjects"], *config.label_subjects, *clips_pool.VALIDATION_SUBJECTS}
    return {
        "method": config.method,
        "width": classifier.encoder.width,
        "labels": list(clips_pool.LABELS),
        "raw": {name: value.cpu() for name, value in classifier.state_dict().items()},
        "weights_sha256": weights_sha256(classifier),
        "pool_fingerprint": pool.fingerprint,
        "stride": pool.stride,
        "seen_subjects": sorted(seen),
        "label_subjects": list(config.label_subjects),
        "labelled_clips": len(labelled),
        "labelled_seed": config.seed,
        "labelled_sha256": clips_sha256(pool, labelled),
        "probe": asdict(config.probe),
        "encoder_sha256": pretrained["weights_sha256"],
        "encoder_run_id": pretrained["run_id"],
        "run_id": run.run_id,
    }


def _check(config: FinetuneConfig) -> None:
    require(config.method in (LP_FT, PLAIN, PROBE), names.FINETUNE, f"method must be {LP_FT}, {PLAIN} or {PROBE}")
    require(config.weights in WEIGHTS, names.FINETUNE, f"weights must be one of {', '.join(WEIGHTS)}")
    require(min(config.probe_epochs, config.tune_epochs) >= 1, names.FINETUNE, "both phases need an epoch at least")
    require(1 <= config.batch <= config.clips, names.FINETUNE, "batch must be 1 to the number of clips")
    require(config.encoder_learning_rate > 0, names.FINETUNE, "encoder_learning_rate must be above 0")
    require(config.threads >= 1 and config.validation_clips >= 1, names.FINETUNE, "threads, validation_clips: from 1")


if __name__ == "__main__":
    sys.exit(main())
