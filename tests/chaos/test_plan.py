"""A campaign can be repeated: what strikes when is a function of seed and round alone."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest

from chaos import faults, plan
from chaos.fault import Missed
from chaos.faults import FAULTS, ON_DRIVE, RESUMING
from chaos.plan import When

KINDS = plan.Kinds(list(FAULTS), RESUMING, ON_DRIVE)


def test_the_same_seed_and_round_give_the_same_plan_and_another_seed_another_one() -> None:
    def whole(seed: int) -> list[plan.Plan]:
        return [plan.plan(seed, number, KINDS) for number in range(60)]

    assert whole(3) == whole(3)
    assert whole(3) != whole(4)


def test_every_kind_comes_in_as_many_rounds_as_there_are_kinds() -> None:
    for seed in range(5):
        first = {plan.plan(seed, number, KINDS).strikes[0].kind for number in range(len(FAULTS))}
        assert first == set(FAULTS)


def test_faults_strike_at_all_the_moments_that_the_issue_names() -> None:
    strikes = [strike for number in range(200) for strike in plan.plan(0, number, KINDS).strikes]
    assert {strike.when for strike in strikes} == set(When)


def test_a_second_fault_during_a_resume_follows_one_that_makes_the_run_resume() -> None:
    for number in range(200):
        strikes = plan.plan(1, number, KINDS).strikes
        if strikes[-1].when is When.RESUME:
            assert strikes[0].kind in RESUMING


def test_what_only_a_mounted_drive_does_strikes_on_one() -> None:
    for number in range(200):
        made = plan.plan(2, number, KINDS)
        assert made.on_drive or not {strike.kind for strike in made.strikes} & ON_DRIVE


def test_what_stands_still_can_do_so_for_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in faults.STANDING_STILL:
        monkeypatch.setattr(faults.FAULTS[kind], "hold_range_s", faults.FAULTS[kind].hold_range_s)
    assert faults.STANDING_STILL == {"stop-stage", "stop-daemons", "stop-bridge", "freeze-vm", "two-vms"}
    faults.stand_still_for(60.0)
    assert {faults.FAULTS[kind].hold_range_s for kind in faults.STANDING_STILL} == {(60.0, 60.0)}
    assert faults.FAULTS["tunnel-cut"].hold_range_s[1] < 60.0


def test_a_laptop_that_was_not_switched_off_does_not_stay_off() -> None:
    world = SimpleNamespace(laptop_is_off=False, bridge_pid=lambda: None, living=lambda: [SimpleNamespace(name="vm")])
    world.frozen = set()
    watch = SimpleNamespace(current=lambda: None)
    fault = faults.FAULTS["laptop-off-vm-dies"](world, watch, random.Random(1))  # type: ignore[arg-type]
    with pytest.raises(Missed):
        fault.strike()
    assert world.laptop_is_off is False
