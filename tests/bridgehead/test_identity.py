"""What a run is made of, and how a difference is told."""

from __future__ import annotations

from typing import Any

import pytest

from bridgehead import identity
from bridgehead.identity import Identity
from bridgehead.records import RunRecord, StageSpec

MINE = Identity("a" * 64, {"epochs": 10, "lr": 0.1, "name": "x"}, "p1")


def test_the_same_does_not_differ() -> None:
    assert MINE.differences(MINE.meta()) == {}


def test_each_difference_is_named_by_what_would_allow_it() -> None:
    other = Identity("b" * 64, {"epochs": 20, "name": "x", "wd": 0.5}, "p2")
    assert other.differences(MINE.meta()) == {
        "code": f"code: {'a' * 12} → {'b' * 12}",
        "pool": "pool: p1 → p2",
        "config": "config: epochs 10 → 20, lr 0.1 → (not set), wd (not set) → 0.5",
    }


def test_what_one_side_does_not_know_is_not_compared() -> None:
    assert MINE.differences({}) == {}
    assert Identity("", {"epochs": 10, "lr": 0.1, "name": "x"}, "").differences(MINE.meta()) == {}


@pytest.mark.parametrize(
    ("old", "new", "same"), [(1, 1.0, True), (1, True, False), ([1], [1, 2], False), (None, 0, False)]
)
def test_values_are_compared_as_values(old: Any, new: Any, same: bool) -> None:
    assert (Identity(config={"k": new}).differences(Identity(config={"k": old}).meta()) == {}) is same


def test_a_config_that_was_not_noted_is_told_by_its_hash_alone() -> None:
    meta = {key: value for key, value in MINE.meta().items() if key != identity.CONFIG_VALUES}
    assert "not noted" in Identity(MINE.code, {"epochs": 1}, "p1").differences(meta)["config"]


def test_long_differences_are_cut() -> None:
    many = Identity(config={f"k{number:02d}": "v" * 500 for number in range(30)})
    told = many.differences(Identity().meta())["config"]
    assert "and 22 more" in told and len(told) < 800


@pytest.mark.parametrize(("command", "code"), [("bridgehead:pretrain", "ship"), ("python train.py", "payload")])
def test_a_shipped_stage_is_what_was_shipped(command: str, code: str) -> None:
    spec = StageSpec("t", command)
    record = RunRecord("t-1", "t", "p", "c", 1, "vm", 0.0, spec, ship_sha256="ship", payload_sha256="payload")
    assert identity.code_of(record) == code
