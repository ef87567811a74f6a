"""finetune: the probe first, then everything; both groups of weights learn at rates of their own."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from bridgehead import names
from bridgehead.errors import NotFoundError, UsageError, VerificationError
from bridgehead.run import Run
from stage_support import Workshop, results
from stages import evaluation, finetune, model, probe
from stages.finetune import ENCODER, HEAD, FinetuneConfig, rates

CONFIG = FinetuneConfig(clips=640, batch=64, probe_epochs=3, tune_epochs=4, warmup_steps=5)
STEPS = 640 // 64


def test_in_the_first_phase_the_head_learns_alone() -> None:
    told = [rates(step, CONFIG, 640) for step in range(3 * STEPS)]
    assert all(rate[ENCODER] == 0.0 and rate[HEAD] > 0.0 for rate in told)


def test_in_the_second_phase_the_encoders_rate_is_never_stuck_at_0() -> None:
    told = [rates(step, CONFIG, 640) for step in range(3 * STEPS, 7 * STEPS)]
    assert all(rate[ENCODER] > 0.0 and rate[HEAD] > 0.0 for rate in told)
    assert max(rate[ENCODER] for rate in told) == pytest.approx(CONFIG.encoder_learning_rate, rel=0.1)
    assert all(rate[ENCODER] < rate[HEAD] for rate in told)


def _classifier(pipeline: Workshop) -> tuple[dict[str, Any], model.Classifier]:
    folder = pipeline.inputs[names.FINETUNE]
    record = model.load_weights(folder / names.ARTIFACTS / names.CLASSIFIER_WEIGHTS, names.FINETUNE)
    return record, model.classifier_from(record, "raw")


def _pretrained(pipeline: Workshop) -> model.Encoder:
    folder = pipeline.inputs[names.PRETRAIN]
    record = model.load_weights(folder / names.ARTIFACTS / names.ENCODER_WEIGHTS, names.PRETRAIN)
    return model.encoder_from(record, "ema")


def test_every_weight_of_the_encoder_has_changed_in_the_end(pipeline: Workshop) -> None:
    _, classifier = _classifier(pipeline)
    before = dict(_pretrained(pipeline).named_parameters())
    unchanged = [name for name, value in classifier.encoder.named_parameters() if torch.equal(value, before[name])]
    assert not unchanged and results(pipeline.inputs[names.FINETUNE])["encoder_changed"]


def test_the_optimizer_holds_the_rates_of_the_second_phase(pipeline: Workshop) -> None:
    """The whole way from `rates` into the optimizer's groups: a group left out would train at AdamW's default."""
    _, classifier = _classifier(pipeline)
    optimizer = finetune.new_optimizer(classifier, CONFIG)
    finetune.training.set_learning_rates(optimizer, rates(3 * STEPS + 5, CONFIG, 640))
    in_use = {group["name"]: group["lr"] for group in optimizer.param_groups}
    assert 0 < in_use[ENCODER] < in_use[HEAD]
    held = {id(weight) for group in optimizer.param_groups for weight in group["params"]}
    assert held == {id(weight) for weight in classifier.parameters()}


def test_the_first_phase_is_the_very_probe_that_the_gate_repeats(pipeline: Workshop) -> None:
    record, _ = _classifier(pipeline)
    pool = pipeline.pool
    labelled = probe.labelled_clips(pool, record["label_subjects"], record["labelled_clips"], record["labelled_seed"])
    fitted = probe.fit_probe(_pretrained(pipeline), pool, labelled, probe.ProbeRecipe(**record["probe"]))
    validation = finetune.validation_clips(pool, FinetuneConfig(validation_clips=200))
    found = evaluation.accuracy(fitted, pool, validation, torch.device("cpu"))
    assert found == results(pipeline.inputs[names.FINETUNE])["probe_accuracy"]


def test_pretraining_helps_the_probe_on_a_person_not_trained_on(pipeline: Workshop) -> None:
    outcome = results(pipeline.inputs[names.FINETUNE])
    assert outcome["probe_accuracy"] > outcome["random_probe_accuracy"]


def _config(**values: Any) -> dict[str, Any]:
    return {"clips": 320, "validation_clips": 100, "probe_epochs": 2, "tune_epochs": 3, **values}


class Killed(BaseException):
    """Stands in for SIGKILL inside this process."""


@pytest.mark.parametrize("kill_at", [7, 17])  # 5 steps an epoch: in the probe, and in the second phase
def test_killed_in_either_phase_it_ends_bit_for_bit_the_same(
    pipeline: Workshop, kill_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = pipeline.run(names.FINETUNE, "finetune-0002-aaaaaa", _config())
    assert pipeline.here(finetune.finetune, whole) == 0
    run = pipeline.run(names.FINETUNE, f"finetune-00{kill_at}-bbbbbb", _config(), checkpoint_every_epochs=1)
    with monkeypatch.context() as patch:
        patch.setattr(finetune, "rates", lambda step, *rest: _dies(run, step == kill_at) or rates(step, *rest))
        with pytest.raises(Killed):
            pipeline.here(finetune.finetune, run)
    assert pipeline.here(finetune.finetune, run) == 0
    assert results(run)["resumed_from_step"] == kill_at // 5 * 5
    assert results(run)["weights_sha256"] == results(whole)["weights_sha256"]
    assert results(run)["probe_accuracy"] == results(whole)["probe_accuracy"]


@pytest.mark.parametrize("method", [finetune.PLAIN, finetune.PROBE])
def test_either_phase_can_be_left_out(pipeline: Workshop, method: str) -> None:
    number = 20 + (method == finetune.PROBE)
    run = pipeline.run(names.FINETUNE, f"finetune-00{number}-bbbbbb", _config(method=method))
    assert pipeline.here(finetune.finetune, run) == 0
    outcome = results(run)
    assert outcome["encoder_changed"] is (method == finetune.PLAIN)
    assert outcome["probe_accuracy"] == (outcome["accuracy"] if method == finetune.PROBE else None)
    record = model.load_weights(run.folder / names.ARTIFACTS / names.CLASSIFIER_WEIGHTS, names.FINETUNE)
    assert record["probe"]["epochs"] == 2  # the gate's baseline is the same for every method


def test_a_method_that_does_not_exist_is_refused(pipeline: Workshop) -> None:
    run = pipeline.run(names.FINETUNE, "finetune-0022-cccccc", _config(method="lpft"))
    with pytest.raises(UsageError, match="method must be lp-ft, plain or probe"):
        pipeline.here(finetune.finetune, run)


def _dies(run: Run, now: bool) -> None:
    run.finish_saving()  # or it would be chance which checkpoint the kill leaves
    if now:
        raise Killed


def test_labels_of_held_out_people_are_refused(pipeline: Workshop) -> None:
    run = pipeline.run(names.FINETUNE, "finetune-0003-cccccc", _config(label_subjects=[1, 9]))
    with pytest.raises(UsageError, match=r"\[9\]"):
        pipeline.here(finetune.finetune, run)


def test_without_a_pretrain_run_the_error_says_what_to_add(workshop: Workshop) -> None:
    run = workshop.run(names.FINETUNE, "finetune-0004-dddddd", _config())
    with pytest.raises(NotFoundError) as caught:
        workshop.here(finetune.finetune, run)
    assert names.PRETRAIN in caught.value.hint


def test_an_encoder_file_that_its_results_do_not_name_is_refused(pipeline: Workshop, workshop: Workshop) -> None:
    folder = workshop.home / "runs" / "pretrain-0099-999999"
    (folder / names.ARTIFACTS).mkdir(parents=True)
    source = pipeline.inputs[names.PRETRAIN]
    (folder / names.RESULTS).write_bytes((source / names.RESULTS).read_bytes())
    whole = bytearray((source / names.ARTIFACTS / names.ENCODER_WEIGHTS).read_bytes())
    whole[len(whole) // 2] ^= 1  # torch.load would not notice
    (folder / names.ARTIFACTS / names.ENCODER_WEIGHTS).write_bytes(whole)
    run: Run = workshop.run(names.FINETUNE, "finetune-0005-eeeeee", _config())
    with pytest.raises(VerificationError, match=names.ENCODER_WEIGHTS):
        workshop.with_inputs(**{names.PRETRAIN: folder}).here(finetune.finetune, run)
