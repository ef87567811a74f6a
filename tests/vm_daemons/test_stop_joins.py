"""Only stops of people count towards a kill: their first one joins a stop that the VM itself has begun."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bridgehead import names
from bridgehead.names import RunState
from bridgehead.queue_lines import Verb
from bridgehead.records import Command, Pins
from command_rig import SAVES_UNTIL_TOLD, Rig
from support import wait_until
from vm_daemons import budget
from vm_daemons.budget import Budgets
from vm_run_support import wait_for_log

BUDGET_S = 3600.0


@pytest.fixture
def used_s(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long the run has been running, to be changed by the test."""
    used = [0.0]
    monkeypatch.setattr(budget, "LOOK_EVERY_S", 0.0)
    monkeypatch.setattr(Budgets, "used_s", lambda *_: used[-1])
    return used


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path / "vm")
    yield rig
    rig.clean()


def _capped(rig: Rig) -> Command:
    train = rig.run(SAVES_UNTIL_TOLD)
    assert train.spec is not None
    return dataclasses.replace(train, spec=dataclasses.replace(train.spec, pins=Pins(budget_s=BUDGET_S)))


def _save_at_the_cap(rig: Rig, train: Command, used_s: list[float]) -> None:
    rig.laptop.queue(train)
    wait_for_log(rig.dir(train), "up", 20)
    used_s.append(BUDGET_S + 1)
    wait_for_log(rig.dir(train), "saving", 20)


def _stop(rig: Rig, train: Command) -> None:
    stop = rig.command(Verb.STOP, train.run_id)
    rig.laptop.queue(stop)
    wait_until(lambda: "finished" in rig.laptop.answers(stop), 20, what="the stop to be passed on")


def test_the_first_stop_of_a_person_joins_the_save_at_a_cap(rig: Rig, used_s: list[float]) -> None:
    train = _capped(rig)
    with rig.daemon():
        _save_at_the_cap(rig, train, used_s)
        _stop(rig, train)
        (rig.home.payload / "go").touch()
        ended = rig.wait_for_exit(train)
    assert (ended.state, ended.exit_code) == (RunState.STOPPED, 143)  # 143: it could save to the end
    assert "its cap of 1h00m of running is reached" in ended.message


@pytest.mark.parametrize("restarts", [False, True], ids=["same-daemon", "new-daemon"])
def test_the_second_one_of_a_person_kills(rig: Rig, used_s: list[float], restarts: bool) -> None:
    train = _capped(rig)
    with rig.daemon():
        _save_at_the_cap(rig, train, used_s)
        _stop(rig, train)
        if not restarts:
            _stop(rig, train)
            ended = rig.wait_for_exit(train)
    if restarts:
        with rig.daemon():
            _stop(rig, train)
            ended = rig.wait_for_exit(train)
    assert (ended.state, ended.signal) == (RunState.STOPPED, "SIGKILL")
    assert "its cap of 1h00m" in ended.message and "asked too" not in ended.message


def test_a_cap_that_is_reached_while_a_persons_stop_waits_for_its_turn_adds_none(rig: Rig, used_s: list[float]) -> None:
    train = _capped(rig)
    with rig.daemon():
        rig.laptop.queue(train)
        wait_for_log(rig.dir(train), "up", 20)
        used_s.append(BUDGET_S + 1)
        _stop(rig, train)
        wait_for_log(rig.dir(train), "saving", 20)
        (rig.home.payload / "go").touch()
        ended = rig.wait_for_exit(train)
    assert ended.exit_code == 143


def test_a_stop_that_joined_leaves_the_reason_alone(tmp_path: Path) -> None:
    (tmp_path / names.STOP_REQUEST).write_text("its cap of 1h00m of running is reached\n")
    command = Command("c" * 32, 1, 1, "vm-1", "run", "train", time.time(), run_id="train-0001-abcdef")
    assert Budgets().join(tmp_path, command) and not Budgets().join(tmp_path, command)
    assert budget.reason(tmp_path) == "its cap of 1h00m of running is reached"
    (tmp_path / names.STOP_REQUEST).write_text("")  # a person's
    assert not Budgets().join(tmp_path, command)
