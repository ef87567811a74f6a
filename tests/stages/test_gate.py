"""The gate: its arithmetic, and that nothing but a pass lets export start."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from bridgehead import names
from bridgehead.errors import UsageError, VerificationError
from bridgehead.files import sha256_file
from bridgehead.run import Run
from stage_support import Workshop, results
from stages import clips_pool, evaluation, export, gate, judging, model
from stages.judging import Bootstrap, Criterion, Verdict, decide

SUBJECTS = np.repeat([9, 10], 600)
RECORDINGS = np.repeat(np.arange(12), 100)


def compare(candidate: NDArray[np.bool_], baseline: NDArray[np.bool_], **values: Any) -> judging.Comparison:
    asked = Criterion("accuracy", **{"min_effect": 0.02, **values})
    sides = candidate.astype(np.float64), baseline.astype(np.float64)
    return judging.compare(*sides, SUBJECTS, RECORDINGS, asked, Bootstrap(0.95, 2000, 0))


def right(share: float, *, seed: int) -> NDArray[np.bool_]:
    return np.random.default_rng(seed).random(len(SUBJECTS)) < share


def test_a_clear_gain_on_every_recording_passes() -> None:
    found = compare(right(0.9, seed=1), right(0.5, seed=2))
    assert found.verdict is Verdict.PASS
    assert found.low < found.effect < found.high
    assert found.effect == pytest.approx(0.4, abs=0.05)


def test_a_tie_on_every_clip_fails_whatever_the_least_effect() -> None:
    same = right(0.7, seed=1)
    for min_effect in (0.0, 0.02):
        found = compare(same, same, min_effect=min_effect)
        assert (found.verdict, found.effect, found.low, found.high) == (Verdict.FAIL, 0.0, 0.0, 0.0)


def test_a_loss_fails() -> None:
    assert compare(right(0.5, seed=1), right(0.9, seed=2)).verdict is Verdict.FAIL


def test_a_gain_on_one_person_alone_is_undecided() -> None:
    """Averaged over clips it looks like +20 points; the next person may get none of it."""
    baseline = right(0.5, seed=2)
    candidate = baseline.copy()
    candidate[SUBJECTS == 9] |= right(0.8, seed=3)[SUBJECTS == 9]
    found = compare(candidate, baseline)
    assert found.effect > 0.15
    assert found.verdict is Verdict.UNDECIDED
    assert found.by_group["10"]["difference"] == 0.0


def test_a_gain_on_one_recording_alone_is_undecided() -> None:
    """100 clips are better, which is a lot for independent clips, and one draw for recordings."""
    baseline = np.zeros(len(SUBJECTS), dtype=bool)
    candidate = (RECORDINGS == 0) | (RECORDINGS == 6)
    assert compare(candidate, baseline).verdict is Verdict.UNDECIDED


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (0.03, 0.10, Verdict.PASS),
        (0.02, 0.10, Verdict.UNDECIDED),  # the end of the interval counts as not above
        (-0.10, 0.02, Verdict.FAIL),
        (0.01, 0.03, Verdict.UNDECIDED),
        (-0.10, -0.01, Verdict.FAIL),
    ],
)
def test_the_verdict_follows_from_the_interval(low: float, high: float, verdict: Verdict) -> None:
    assert decide(low, high, 0.02, groups=2) is verdict


def test_one_person_is_never_enough_for_a_pass() -> None:
    assert decide(0.3, 0.4, 0.02, groups=1) is Verdict.UNDECIDED


def test_each_person_counts_the_same_however_many_clips_there_are() -> None:
    keep = (SUBJECTS == 9) | (np.arange(len(SUBJECTS)) % 100 < 10)
    candidate, baseline = SUBJECTS == 9, np.zeros(len(SUBJECTS), dtype=bool)
    sides = candidate[keep].astype(np.float64), baseline[keep].astype(np.float64)
    found = judging.compare(*sides, SUBJECTS[keep], RECORDINGS[keep], Criterion("accuracy"), Bootstrap(0.9, 500, 0))
    assert found.effect == 0.5


def test_the_bootstrap_covers_what_it_says() -> None:
    """Against the plain arithmetic for one subject: 28 recordings' mean ± 1.96 standard errors."""
    values = np.random.default_rng(0).normal(0.1, 0.2, size=28)
    means = judging.bootstrap([values], 8000, seed=1)
    assert means.mean() == pytest.approx(values.mean(), abs=0.003)
    assert means.std() == pytest.approx(values.std() / np.sqrt(28), rel=0.05)


def test_people_in_training_and_in_the_gate_stop_it() -> None:
    with pytest.raises(VerificationError, match=r"\[9\]"):
        gate.check_no_leak([1, 2, 9], [9, 10])


# --- the stage -----------------------------------------------------------------------------------


def rerun(pipeline: Workshop, name: str, **config: Any) -> tuple[int, dict[str, Any], Run]:
    run = pipeline.run(names.GATE, name, {"min_effect": 0.0, "resamples": 500, **config})
    return pipeline.here(gate.gate, run), results(run), run


def test_the_passing_gate_judged_on_people_nobody_trained_on(pipeline: Workshop) -> None:
    outcome = results(pipeline.inputs[names.GATE])
    assert outcome["verdict"] == "pass" and sorted(outcome["by_subject"]) == ["10", "9"]
    assert outcome["leak_check"]["disjoint"]
    assert not set(outcome["leak_check"]["seen_subjects"]) & set(outcome["leak_check"]["held_out_subjects"])
    sides = {side["who"]: side for side in outcome["leak_check"]["sides"]}
    assert all(sides[who]["clean"] and sides[who]["trained_on"] > 0 for who in ("candidate", "baseline"))
    assert sum(outcome["clips"].values()) == outcome["evaluated_clips"]
    assert outcome["candidate"]["weights_sha256"] == results(pipeline.inputs[names.FINETUNE])["weights_sha256"]


def test_an_undecided_gate_blocks_too(pipeline: Workshop) -> None:
    effect = results(pipeline.inputs[names.GATE])["effect"]
    code, outcome, run = rerun(pipeline, "gate-0002-aaaaaa", min_effect=effect, confidence=0.95)
    assert (code, outcome["verdict"]) == (names.GATE_FAILED_EXIT_CODE, "undecided")
    _assert_export_refuses(pipeline, run.folder, "undecided")


def test_a_failing_gate_writes_its_results_and_ends_with_its_own_code(pipeline: Workshop) -> None:
    code, outcome, run = rerun(pipeline, "gate-0003-bbbbbb", min_effect=0.9)
    assert (code, outcome["verdict"]) == (names.GATE_FAILED_EXIT_CODE, "fail")
    _assert_export_refuses(pipeline, run.folder, "fail")


def test_a_candidate_that_is_the_baseline_ties_and_fails(pipeline: Workshop, tmp_path: Path) -> None:
    folder, record = _copy_of_finetune(pipeline, tmp_path)
    baseline = gate.train_baseline(pipeline.pool, record, seed=0)
    _put(folder, {**record, "raw": baseline.state_dict(), "weights_sha256": model.weights_sha256(baseline)})
    run = pipeline.run(names.GATE, "gate-0004-cccccc", {"min_effect": 0.0})
    assert pipeline.with_inputs(**{names.FINETUNE: folder}).here(gate.gate, run) == names.GATE_FAILED_EXIT_CODE
    assert results(run)["verdict"] == "fail" and results(run)["clips"]["candidate_alone"] == 0


def test_a_candidate_that_has_seen_a_held_out_person_is_not_judged(pipeline: Workshop, tmp_path: Path) -> None:
    folder, record = _copy_of_finetune(pipeline, tmp_path)
    _put(folder, {**record, "seen_subjects": [*record["seen_subjects"], 10]})
    run = pipeline.run(names.GATE, "gate-0005-dddddd", {})
    with pytest.raises(VerificationError, match=r"\[10\]"):
        pipeline.with_inputs(**{names.FINETUNE: folder}).here(gate.gate, run)


def test_the_baseline_is_the_best_of_several_on_the_validation_subject(pipeline: Workshop) -> None:
    folder = pipeline.inputs[names.FINETUNE]
    record = model.load_weights(folder / names.ARTIFACTS / names.CLASSIFIER_WEIGHTS, names.FINETUNE)
    pool, device = pipeline.pool, torch.device("cpu")
    validation = pool.of_subjects(clips_pool.VALIDATION_SUBJECTS)
    best = gate.best_baseline(pool, record, gate.GateConfig(baselines=3))
    each = [evaluation.accuracy(gate.train_baseline(pool, record, seed), pool, validation, device) for seed in range(3)]
    assert evaluation.accuracy(best, pool, validation, device) == max(each) > min(each)


@pytest.mark.parametrize("config", [{"confidence": 1.0}, {"min_effect": -0.1}, {"resamples": 5}])
def test_settings_that_can_not_work_are_refused(pipeline: Workshop, config: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="stages.gate.config"):
        rerun(pipeline, "gate-0006-eeeeee", **config)


def test_each_criterion_counts_and_the_verdict_says_which_one_was_missed(pipeline: Workshop) -> None:
    asked = [{"metric": "log_loss", "threshold": 0.001}]
    code, outcome, _ = rerun(pipeline, "gate-0007-ffffff", criteria=asked, confidence=0.6)
    assert (code, outcome["verdict"]) == (names.GATE_FAILED_EXIT_CODE, "fail")
    assert [item["verdict"] for item in outcome["criteria"]] == ["pass", "fail"]
    assert any("misses 0.001" in line for line in outcome["why"])


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"metric": "acuracy"}, "measures 'acuracy'"),
        ({"metric": "log_loss", "direction": "higher"}, "is no better"),
        ({"metric": "log_loss", "min_efect": 1.0}, "no key 'min_efect'"),
        ({"metric": "log_loss", "margin": -1.0}, "can't be negative"),
        ({"metric": "accuracy"}, "asks twice"),
    ],
)
def test_a_criterion_that_can_not_be_meant_is_refused(pipeline: Workshop, table: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        rerun(pipeline, "gate-0008-aaaabb", criteria=[table])


def test_a_model_that_gives_no_numbers_fails_in_words(pipeline: Workshop, tmp_path: Path) -> None:
    folder, record = _copy_of_finetune(pipeline, tmp_path)
    state = {name: value.clone() for name, value in record["raw"].items()}
    state["head.bias"][0] = float("nan")
    _put(folder, {**record, "raw": state})
    run = pipeline.run(names.GATE, "gate-0009-abbbbb", {"min_effect": 0.0, "resamples": 500})
    assert pipeline.with_inputs(**{names.FINETUNE: folder}).here(gate.gate, run) == names.GATE_FAILED_EXIT_CODE
    outcome = results(run)
    assert outcome["verdict"] == "fail" and outcome["effect"] is None
    assert "the candidate's accuracy is no finite number" in outcome["why"][0]


def test_what_a_gate_leaves_lets_two_models_be_compared_later(pipeline: Workshop) -> None:
    """Each recording's mean, of both sides: comparing them again gives the verdict's own figures."""
    from stages import cells

    outcome = results(pipeline.inputs[names.GATE])
    both = [outcome["cells"][who] for who in ("candidate", "baseline")]
    again = cells.compare(*both, Criterion("accuracy"), Bootstrap(outcome["confidence"], 1000, 0))
    assert [again.low, again.high] == pytest.approx(outcome["interval"])
    rows = cells.regressions(*both, Criterion("accuracy"), Bootstrap(0.9, 500, 0))
    assert rows[0]["slice"] == "all" and {row["slice"] for row in rows} >= {"group 9", "label PEN"}


def test_export_refuses_the_verdict_on_other_weights(pipeline: Workshop, tmp_path: Path) -> None:
    """The mistake of this project's ancestor: a pass, of another run."""
    shutil.copytree(pipeline.inputs[names.GATE], tmp_path / "gate")
    outcome = results(tmp_path / "gate")
    outcome["candidate"]["weights_sha256"] = "0" * 64
    (tmp_path / "gate" / names.RESULTS).write_text(json.dumps(outcome))
    _assert_export_refuses(pipeline, tmp_path / "gate", "judged other weights")


def test_export_refuses_without_a_verdict(pipeline: Workshop, tmp_path: Path) -> None:
    _assert_export_refuses(pipeline, tmp_path, "left no verdict")


def _assert_export_refuses(pipeline: Workshop, gate_folder: Path, why: str) -> None:
    run = pipeline.run(names.EXPORT, f"export-0002-{gate_folder.name[-6:]}", {})
    with pytest.raises(VerificationError, match=why):
        pipeline.with_inputs(**{names.GATE: gate_folder}).here(export.export_bundle, run)
    assert not run.bundle_folder.exists()


def _copy_of_finetune(pipeline: Workshop, tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path / "finetune"
    shutil.copytree(pipeline.inputs[names.FINETUNE], folder)
    return folder, model.load_weights(folder / names.ARTIFACTS / names.CLASSIFIER_WEIGHTS, names.FINETUNE)


def _put(folder: Path, record: dict[str, Any]) -> None:
    path = folder / names.ARTIFACTS / names.CLASSIFIER_WEIGHTS
    torch.save(record, path)
    outcome = results(folder)
    outcome["artifact_sha256"] = sha256_file(path)
    (folder / names.RESULTS).write_text(json.dumps(outcome))
