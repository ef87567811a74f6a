"""The leakage check: equal items, nearly equal ones and shared groups, on either side of the comparison."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridgehead.errors import VerificationError
from stages import leakage
from stages.leakage import Side

RNG = np.random.default_rng(0)


def clips(count: int, *, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, 37, 3)).cumsum(axis=1).astype(np.float32)


def side(items: np.ndarray, group: int, first_id: int = 0) -> Side:
    ids = np.arange(first_id, first_id + len(items))
    return Side(ids, np.full(len(items), group), lambda places: items[places])


def test_different_people_and_clips_are_clean() -> None:
    found = leakage.check("candidate", side(clips(300, seed=1), 1), side(clips(80, seed=2), 2))
    assert found.clean and (found.trained_on, found.judged_on) == (300, 80)
    leakage.refuse([found])


def test_an_equal_clip_is_found_though_it_has_another_number_and_person() -> None:
    trained, judged = clips(3000, seed=1), clips(80, seed=2)
    judged[17] = trained[2900]
    found = leakage.check("baseline", side(trained, 1), side(judged, 2, first_id=10_000))
    assert (found.equal, found.near, found.examples) == (1, 1, [[10_017, 2900]])
    with pytest.raises(VerificationError, match="the baseline: 1 of 80 evaluated items are in its training set"):
        leakage.refuse([found])


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 79), st.integers(0, 2999), st.floats(0.1, 0.9), st.integers(0, 10_000))
def test_no_near_clip_is_missed_and_none_is_made_up(place: int, other: int, share: float, seed: int) -> None:
    """Noise just inside the tolerance is found; the same noise, doubled past it, is not."""
    trained, judged = TRAINED, JUDGED.copy()
    deviation = JUDGED.reshape(-1, 3).std(axis=0)
    noise = np.random.default_rng(seed).normal(size=(37, 3)).astype(np.float32)
    noise /= np.sqrt((noise**2).mean())
    judged[place] = trained[other] + noise * deviation * 0.05 * share
    found = leakage.check("candidate", side(trained, 1), side(judged, 2), tolerance=0.05)
    assert found.near == 1 and found.equal == 0 and found.examples == [[place, other]]
    judged[place] = trained[other] + noise * deviation * 0.12
    assert leakage.check("candidate", side(trained, 1), side(judged, 2), tolerance=0.05).clean


TRAINED, JUDGED = clips(3000, seed=3), clips(80, seed=4)


def test_a_shared_person_is_named() -> None:
    found = leakage.check("candidate", side(clips(20, seed=1), 9), side(clips(20, seed=2), 9))
    assert found.shared_groups == [9] and not found.clean
    with pytest.raises(VerificationError, match=r"groups \[9\] are in its training"):
        leakage.refuse([found])


def test_a_channel_that_never_moves_is_no_trouble() -> None:
    trained, judged = clips(50, seed=1), clips(50, seed=2)
    judged[:, :, 1] = trained[:, :, 1] = 0.0
    assert leakage.check("candidate", side(trained, 1), side(judged, 2)).clean
