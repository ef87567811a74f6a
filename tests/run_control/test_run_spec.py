"""A run spec: frozen, one text for equal specs, an id that follows from it, and what it refuses to read."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from bridgehead.errors import UsageError, VerificationError
from run_control import run_spec
from run_control.run_spec import RunSpec

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**40), 2**40)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)

SLOW = settings(deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow])


def _spec(**more: Any) -> RunSpec:
    return RunSpec(project="p", stage="train", command="python train.py", **more)


def test_the_id_of_a_spec_never_changes_by_accident() -> None:
    spec = _spec(config={"epochs": 3, "rate": 0.5, "layers": [1, 2]}, seeds={"seed": 7}, tags=("a",))
    assert spec.id == "07f44c8f9ff60008055fe876793e1fe189a5a1ed407834ffd69c603ec305e2f5", (
        "the canonical form changed: raise SPEC_VERSION and write a migration"
    )


@SLOW
@given(st.dictionaries(st.text(max_size=8), JSON, max_size=4))
def test_a_spec_survives_its_json_with_the_same_id(config: dict[str, Any]) -> None:
    spec = _spec(config=config)
    again = run_spec.read(json.loads(json.dumps(spec.to_json())), "a file")
    assert again.id == spec.id and again == spec


@SLOW
@given(st.permutations(["a", "b", "c"]), st.integers(-1000, 1000))
def test_the_order_of_keys_and_the_way_to_write_a_number_change_nothing(order: list[str], number: int) -> None:
    assert _spec(config=dict.fromkeys(order, number)).id == _spec(config=dict.fromkeys("abc", float(number))).id


def test_true_is_not_1() -> None:
    assert _spec(config={"a": True}).id != _spec(config={"a": 1}).id


def test_nothing_in_it_can_be_changed() -> None:
    spec = _spec(config={"inner": {"a": [1]}})
    with pytest.raises(ValidationError):
        spec.stage = "other"
    for change in (
        lambda: spec.config.update(a=1),
        lambda: spec.config["inner"].pop("a"),
        lambda: spec.config["inner"].setdefault("b", 1),
    ):
        with pytest.raises(TypeError, match="frozen"):
            change()
    assert isinstance(spec.config["inner"]["a"], tuple)


UNREADABLE = {
    "a newer version": ({"v": 2}, "version 2", "newer Bridgehead"),
    "true as a version": ({"v": True}, "version True", "no run spec"),
    "an unknown key": ({"stages": 1}, "stages", ""),
    "a number for text": ({"stage": 3}, "stage", ""),
    "nan": ({"resources": {"max_hours": float("nan")}}, "resources.max_hours", ""),
    "half a hash": ({"code": {"sha256": "ab"}}, "code.sha256", ""),
}


@pytest.mark.parametrize("case", UNREADABLE)
def test_what_it_can_not_read_is_named(case: str) -> None:
    change, words, hint = UNREADABLE[case]
    with pytest.raises(UsageError, match=words) as caught:
        run_spec.read({**_spec().to_json(), **change}, "spec.json")
    assert caught.value.message.startswith("spec.json: ") and hint in caught.value.hint


def test_a_stored_spec_that_was_edited_is_refused() -> None:
    spec = _spec(config={"epochs": 3})
    data = spec.to_json() | {"config": {"epochs": 4}}
    with pytest.raises(VerificationError, match="was edited"):
        run_spec.digest_checked(data, spec.id, "specs/x.json")


def test_what_differs_is_named_leaf_by_leaf() -> None:
    one, other = _spec(config={"a": {"b": 1, "c": 2}}), _spec(config={"a": {"b": 1, "c": 3}, "d": "x"})
    assert run_spec.differences(one, other) == [("config.a.c", "2", "3"), ("config.d", "", "x")]
    assert run_spec.differences(one, one) == []


def test_seeds_are_the_integers_that_say_so() -> None:
    config = {"seed": 1, "subset_seed": 2, "seeded": 3, "my_seed": True, "other_seed": "x"}
    assert run_spec.seeds_of(config) == {"seed": 1, "subset_seed": 2}


def test_a_circle_of_parents_is_named() -> None:
    parents = {"a": ["b"], "b": ["c", "d"], "c": ["a"], "d": []}
    with pytest.raises(UsageError, match="a comes from b comes from c comes from a"):
        run_spec.check_lineage("a", lambda name: parents[name])


def test_two_ways_to_one_ancestor_are_no_circle() -> None:
    parents = {"a": ["b", "c"], "b": ["d"], "c": ["d"], "d": []}
    assert sorted(run_spec.check_lineage("a", lambda name: parents[name])) == ["b", "c", "d"]
