"""The estimate of what checkpoints cost a step: turns that are made up, so that the true cost is known."""

from __future__ import annotations

import random

import pytest

from bench import checkpoints

TURN_S = 0.8
ROUNDS = 15


def turns(cost_s: float, *, seed: int, noise: float = 0.02) -> list[list[float]]:
    """Seconds of each turn without and with; the machine gets slower by half and falls asleep now and then."""
    chance = random.Random(seed)
    taken: list[list[float]] = [[], []]
    for turn in range(ROUNDS * checkpoints._EVERY):
        speed = 1.0 + turn / (2 * ROUNDS * checkpoints._EVERY)
        for with_them in (0, 1):
            extra = cost_s if with_them and turn % checkpoints._EVERY == 2 else 0.0
            asleep = 1.0 if chance.random() < 0.05 else 0.0
            taken[with_them].append(speed * (TURN_S * chance.gauss(1.0, noise) + extra) + asleep)
    return taken


@pytest.mark.parametrize("cost_s", [0.0, 0.01, 0.2])
def test_it_finds_the_true_cost_on_a_machine_that_drifts_and_stalls(cost_s: float) -> None:
    true = 1.0 + cost_s / (checkpoints._EVERY * TURN_S)
    errors, inside = [], 0
    for seed in range(40):
        rounds = checkpoints._rounds(turns(cost_s, seed=seed))
        low, high = checkpoints._between(rounds)
        inside += low <= true <= high
        errors.append(checkpoints._ratio(rounds)[0] - true)
    assert abs(sum(errors) / len(errors)) < 0.002 and max(map(abs, errors)) < 0.02
    assert inside >= 30, "what it says of its own certainty is worth something"


def test_a_last_round_that_is_not_whole_is_refused() -> None:
    taken = [times[:-1] for times in turns(0.0, seed=1)]
    with pytest.raises(ValueError):
        checkpoints._ratio(checkpoints._rounds(taken))
