"""The gate's statistics: a golden sample, and what must hold for any numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridgehead.errors import UsageError
from stages import cells, judging
from stages.judging import Bootstrap, Criterion, Direction, Verdict

GOLDEN = Path(__file__).parents[1] / "golden" / "judgement.json"
QUICK = Bootstrap(0.9, 200, 3)
GROUPS = np.array([1, 1, 1, 1, 2, 2, 2, 2, 3, 3])
PARTS = np.array([10, 10, 11, 11, 20, 20, 21, 21, 30, 31])
numbers = st.lists(st.floats(-5, 5, allow_nan=False, width=32), min_size=10, max_size=10).map(np.array)


def compare(first: Any, second: Any, how: Bootstrap = QUICK, **asked: Any) -> judging.Comparison:
    return judging.compare(np.array(first), np.array(second), GROUPS, PARTS, Criterion("loss", **asked), how)


def test_the_golden_sample() -> None:
    """The same numbers on every machine and in every version of numpy: the draws are arithmetic on integers."""
    candidate = [0.9, 0.8, 0.7, 0.9, 0.6, 0.7, 0.8, 0.7, 0.5, 0.6]
    baseline = [0.5, 0.6, 0.7, 0.6, 0.5, 0.6, 0.4, 0.5, 0.5, 0.4]
    found = compare(candidate, baseline, Bootstrap(0.95, 1000, 7), min_effect=0.02, threshold=0.5).to_json()
    golden = json.loads(GOLDEN.read_text())
    assert found["verdict"] == golden["verdict"] and found["why"] == golden["why"]
    assert found["interval"] == pytest.approx(golden["interval"], abs=1e-12)
    assert found["by_group"] == {name: pytest.approx(row) for name, row in golden["by_group"].items()}


@settings(max_examples=20, deadline=None)
@given(numbers, numbers)
def test_swapping_the_two_turns_the_interval_round(first: Any, second: Any) -> None:
    there, back = compare(first, second), compare(second, first)
    assert there.effect == pytest.approx(-back.effect, abs=1e-9)
    assert (there.low, there.high) == (pytest.approx(-back.high, abs=1e-9), pytest.approx(-back.low, abs=1e-9))


@settings(max_examples=20, deadline=None)
@given(numbers, numbers)
def test_for_a_metric_where_lower_is_better_the_gain_has_the_other_sign(first: Any, second: Any) -> None:
    higher, lower = compare(first, second), compare(second, first, direction=Direction.LOWER)
    assert (higher.effect, higher.low, higher.high) == pytest.approx((lower.effect, lower.low, lower.high), abs=1e-9)
    assert higher.verdict == lower.verdict


@settings(max_examples=20, deadline=None)
@given(numbers, numbers, st.randoms(use_true_random=False))
def test_the_order_of_the_items_does_not_matter(first: Any, second: Any, random: Any) -> None:
    order = np.array(random.sample(range(10), 10))
    mixed = judging.compare(first[order], second[order], GROUPS[order], PARTS[order], Criterion("loss"), QUICK)
    straight = compare(first, second)
    assert (mixed.low, mixed.high) == pytest.approx((straight.low, straight.high), abs=1e-9)


@settings(max_examples=20, deadline=None)
@given(numbers, numbers, st.floats(0, 2), st.floats(0, 2))
def test_asking_for_more_never_turns_a_verdict_to_the_better(first: Any, second: Any, one: float, two: float) -> None:
    ranks = {Verdict.FAIL: 0, Verdict.UNDECIDED: 1, Verdict.PASS: 2}
    easy, hard = sorted((one, two))
    found = [ranks[compare(first, second, min_effect=bar).verdict] for bar in (easy, hard)]
    allowed = [ranks[compare(first, second, margin=bar).verdict] for bar in (hard, easy)]
    assert found[0] >= found[1] and allowed[0] >= allowed[1]


@settings(max_examples=15, deadline=None)
@given(numbers, numbers)
def test_cells_tell_the_same_as_the_items_that_they_are_of(first: Any, second: Any) -> None:
    made = [cells.make({"loss": side}, GROUPS, PARTS, {}) for side in (first, second)]
    again = cells.compare(*made, Criterion("loss"), QUICK)
    straight = compare(first, second)
    assert (again.low, again.high) == pytest.approx((straight.low, straight.high), abs=1e-9)


def test_a_margin_lets_an_equal_pass_and_a_tie_is_told() -> None:
    same = np.linspace(0, 1, 10)
    found = compare(same, same, margin=0.01)
    assert found.verdict is Verdict.PASS and "a tie: the two are equal everywhere" in found.why
    assert compare(same, same).verdict is Verdict.FAIL


@pytest.mark.parametrize(
    ("first", "second", "asked"), [(0.8, 0.7, 0.1), (0.3, 0.2, 0.1), (0.7, 0.4, 0.3), (9e6, 8e6, 1e6)]
)
def test_a_gain_that_is_exactly_what_was_asked_for_is_no_pass_by_the_rounding_of_its_digits(
    first: float, second: float, asked: float
) -> None:
    """0.8 - 0.7 is 0.10000000000000009."""
    found = compare(np.full(10, first), np.full(10, second), min_effect=asked)
    assert found.verdict is Verdict.FAIL and "does not reach above" in found.why[0]
    assert compare(np.full(10, first), np.full(10, second), min_effect=asked * 0.999).verdict is Verdict.PASS


@settings(max_examples=25, deadline=None)
@given(numbers, st.integers(-2, 2), st.sampled_from([Direction.HIGHER, Direction.LOWER]))
def test_what_differs_in_the_last_bit_alone_is_a_tie(first: Any, bits: int, direction: Direction) -> None:
    second = first * (1.0 + bits * np.finfo(np.float64).eps)
    assert compare(first, second, direction=direction).verdict is Verdict.FAIL


def test_a_small_metric_has_small_gains_that_count() -> None:
    assert compare(np.full(10, 3e-12), np.full(10, 2e-12)).verdict is Verdict.PASS


def test_groups_of_one_item_each_are_judged_and_one_that_is_no_number_fails() -> None:
    ids = np.arange(8)
    gains = np.full(8, 0.5)
    assert judging.compare(gains, gains - 0.1, ids, ids, Criterion("loss"), QUICK).verdict is Verdict.PASS
    gains[3] = np.nan
    assert judging.compare(gains, np.zeros(8), ids, ids, Criterion("loss"), QUICK).verdict is Verdict.FAIL


def test_a_threshold_is_about_the_candidate_alone() -> None:
    good, bad = np.full(10, 0.8), np.full(10, 0.1)
    assert compare(good, bad, threshold=0.8).verdict is Verdict.PASS
    found = compare(good, bad, threshold=0.9)
    assert found.verdict is Verdict.FAIL and found.why[-1].endswith("misses 0.9")
    assert compare(bad, good, direction=Direction.LOWER, threshold=0.1).verdict is Verdict.PASS
    assert compare(bad, good, direction=Direction.LOWER, threshold=0.05).verdict is Verdict.FAIL


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_metric_that_is_no_number_fails_the_candidate_and_decides_nothing_about_a_baseline(value: float) -> None:
    good, broken = np.ones(10), np.ones(10)
    broken[3] = value
    mine, theirs = compare(broken, good), compare(good, broken)
    assert (mine.verdict, theirs.verdict) == (Verdict.FAIL, Verdict.UNDECIDED)
    assert mine.why == ["the candidate's loss is no finite number on 1 of 10"]
    assert "NaN" not in json.dumps(mine.to_json(), allow_nan=False)


def test_one_item_and_one_group_are_undecided_in_words() -> None:
    one = np.array([1])
    single = judging.compare(one * 1.0, one * 0.0, one, one, Criterion("loss"), QUICK)
    assert single.verdict is Verdict.UNDECIDED and "one item: no interval can be drawn from it" in single.why
    several = judging.compare(np.ones(4), np.zeros(4), np.ones(4, int), np.arange(4), Criterion("loss"), QUICK)
    assert several.verdict is Verdict.UNDECIDED and "nothing follows from it for the next one" in several.why[-1]


def test_items_without_groups_are_groups_of_their_own_and_quick() -> None:
    ids = np.arange(3000)
    gain = np.random.default_rng(0).normal(0.1, 0.5, 3000)
    found = judging.compare(gain, np.zeros(3000), ids, ids, Criterion("loss"), Bootstrap(0.95, 1000, 0))
    half = 1.96 * gain.std() / np.sqrt(3000)
    assert (found.low, found.high) == pytest.approx((gain.mean() - half, gain.mean() + half), abs=0.004)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"min_effect": -0.1}, "can't be negative"),
        ({"min_effect": 0.1, "margin": 0.1}, "give one"),
        ({"threshold": float("nan")}, "not finite"),
        ({"threshold": 10**400}, "not finite"),
    ],
)
def test_a_criterion_that_can_not_be_meant(values: dict[str, float], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Criterion("loss", **values)  # type: ignore[arg-type]


def test_nothing_to_judge_is_said() -> None:
    none = np.zeros(0)
    with pytest.raises(UsageError, match="empty"):
        judging.compare(none, none, none.astype(int), none.astype(int), Criterion("loss"), QUICK)
    with pytest.raises(UsageError, match="several lengths"):
        judging.compare(np.ones(2), np.ones(3), np.ones(2, int), np.ones(2, int), Criterion("loss"), QUICK)
    with pytest.raises(UsageError, match="measured 'loss'"):
        judging.judge({}, {}, GROUPS, PARTS, [Criterion("loss")], QUICK)


def test_cells_of_other_items_are_not_compared() -> None:
    first = cells.make({"loss": np.ones(10)}, GROUPS, PARTS, {})
    with pytest.raises(UsageError, match="not measured on the same"):
        cells.compare(first, first[1:], Criterion("loss"), QUICK)


def test_the_table_of_regressions_puts_the_worst_first() -> None:
    slices = {"label": ["a" if part % 2 == 0 else "b" for part in PARTS.tolist()]}
    before, after = np.full(10, 0.5), np.full(10, 0.5)
    after[PARTS % 2 == 1] = 0.2
    made = [cells.make({"right": side}, GROUPS, PARTS, slices) for side in (after, before)]
    rows = cells.regressions(*made, Criterion("right"), QUICK)
    assert (rows[0]["slice"], rows[1]["slice"], rows[1]["word"]) == ("all", "label b", "worse")
    assert rows[-1]["slice"] == "label a" and rows[-1]["word"] == "same"
