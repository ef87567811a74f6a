"""The texts of a bundle: each figure of the model card is one of the records."""

from __future__ import annotations

from typing import Any

from stages import bundle_texts


def _gate(**more: Any) -> dict[str, Any]:
    side = {"who": "candidate", "trained_on": 4001, "judged_on": 502, "equal": 3, "near": 7, "shared_groups": [1, 2]}
    check = {"seen_subjects": [11, 12], "held_out_subjects": [13], "sides": [side]}
    figures = {"candidate_accuracy": 0.8125, "baseline_accuracy": 0.7031, "effect": 0.1094, "confidence": 0.9}
    criterion = {"metric": "accuracy", "verdict": "pass", "why": ["more than was asked for"]}
    rest = {"interval": [0.0512, 0.1678], "baseline": {"id": "untrained-77"}, "criteria": [criterion]}
    return {"leak_check": check, **figures, **rest, **more}


def test_the_model_card_is_filled_from_the_records() -> None:
    origin = {
        "pretrain": {"run_id": "pretrain-0001-abcdef"},
        "finetune": {"run_id": "finetune-0002-abcdef"},
        "pool": {"fingerprint": "f" * 12 + "0" * 52},
        "ship_sha256": "c" * 64,
    }
    card = bundle_texts.model_card("my-encoder", _gate(), origin)
    assert card.startswith("# my-encoder\n") and "{" not in card
    assert "used people 11, 12; it is judged on people 13" in card
    assert "0.812, against 0.703 of the baseline (untrained-77)" in card
    assert "Difference +0.109, 90% interval [+0.051, +0.168]" in card
    assert "Gate, accuracy: pass: more than was asked for." in card
    assert "candidate: 4001 clips against 502 evaluated ones, 3 equal, 7 nearly equal, shared people: 2." in card
    assert "Made by pretrain `pretrain-0001-abcdef`, finetune `finetune-0002-abcdef`" in card
    assert f"pool {'f' * 12}0000, code {'c' * 16}." in card


def test_another_record_makes_another_card() -> None:
    one, other = (bundle_texts.model_card("m", _gate(effect=effect), {}) for effect in (0.1, -0.1))
    assert "Difference +0.100" in one and "Difference -0.100" in other and "code unknown" in one
