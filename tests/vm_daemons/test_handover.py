"""A VM near its cap: runs are asked to save, then save and leave for the next VM; nothing new starts."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from bridgehead import files, names
from bridgehead.names import RunState
from bridgehead.queue_lines import Verb
from bridgehead.records import Command
from command_rig import DEAF, SAVES, SAVES_UNTIL_TOLD, SLEEP, Rig
from support import wait_until
from vm_daemons import lifetime, uploads
from vm_run_support import is_gone, log_of, python, wait_for_log, wait_for_stage

BEFORE_S = 1000.0
OPEN_S, SAVING_S, HANDING_S = 5000.0, 900.0, 100.0  # left until the cap


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    monkeypatch.setenv(names.ENV_LOCAL_VM, "vm-under-test")
    drive = tmp_path / "drive"
    drive.mkdir()
    rig = Rig(tmp_path / "vm", drive)
    yield rig
    rig.clean()


def leave(rig: Rig, left_s: float) -> None:
    """Make it so long until the cap."""
    age_s = 20_000.0
    rules = {"cap_h": (age_s + left_s) / 3600.0, "save_before_cap_s": BEFORE_S}
    rig.home.update_record(vm_rules=rules, started_clock_s=lifetime.boot_clock_s() - age_s)


def wait_for_handover(rig: Rig, command: Command) -> None:
    wait_until(lambda: rig.journal_has("handed_over"), what="the hand-over")
    assert lifetime.is_handed_over(rig.dir(command), command.attempt)
    last_moment = lifetime.outlook(rig.home).left_s < lifetime.LAST_MOMENT_S
    if (rig.dir(command) / names.LOG).exists() and not last_moment:  # from here nobody would take it afterwards
        assert lifetime.snapshot(rig.home)["handed_over"] == []
        let_the_log_arrive(rig.dir(command))
    assert lifetime.snapshot(rig.home)["handed_over"] == [command.run_id]


def let_the_log_arrive(run_dir: Path) -> None:
    size = (run_dir / names.LOG).stat().st_size
    files.write_json(run_dir / uploads.GENERATIONS, {names.LOG: {"base": 0, "acked": size}})


def test_near_the_cap_a_run_is_asked_for_a_checkpoint_and_goes_on(rig: Rig) -> None:
    leave(rig, OPEN_S)
    with rig.daemon():
        train = rig.run(SLEEP)
        rig.laptop.queue(train)
        wait_for_log(rig.dir(train), "up")
        assert not (rig.dir(train) / names.SAVE_REQUEST).exists()
        leave(rig, SAVING_S)
        wait_until((rig.dir(train) / names.SAVE_REQUEST).exists, what="the request")
        assert not is_gone(wait_for_stage(rig.dir(train)))
        assert not (rig.dir(train) / names.STOP_REQUEST).exists()


def test_at_last_it_saves_and_leaves_and_has_not_ended(rig: Rig) -> None:
    leave(rig, OPEN_S)
    with rig.daemon():
        train = rig.run(SAVES)
        rig.laptop.queue(train)
        wait_for_log(rig.dir(train), "up")
        wait_until(lambda: "started" in rig.laptop.answers(train), what="the answer")
        leave(rig, HANDING_S)
        wait_for_handover(rig, train)
    assert not (rig.dir(train) / names.EXIT).exists()
    assert "finished" not in rig.laptop.answers(train)


def test_one_that_does_not_listen_is_killed_after_its_grace_and_handed_over_too(rig: Rig) -> None:
    leave(rig, OPEN_S)
    with rig.daemon():
        train = rig.run(DEAF)
        assert train.spec is not None
        train = dataclasses.replace(train, spec=dataclasses.replace(train.spec, stop_grace_s=0.3))
        rig.laptop.queue(train)
        wait_for_log(rig.dir(train), "up")
        stage = wait_for_stage(rig.dir(train))
        leave(rig, HANDING_S)
        wait_for_handover(rig, train)
        assert is_gone(stage)


@pytest.mark.parametrize("left_s", [SAVING_S, HANDING_S, -1.0])
def test_a_run_that_has_not_started_goes_to_the_next_vm_at_once(rig: Rig, left_s: float) -> None:
    leave(rig, left_s)
    with rig.daemon():
        train = rig.run(SLEEP)
        rig.laptop.queue(train)
        wait_for_handover(rig, train)
    assert "up" not in log_of(rig.dir(train)).splitlines()


def test_a_shell_command_still_runs_near_the_cap(rig: Rig) -> None:
    leave(rig, HANDING_S)
    with rig.daemon():
        shell = rig.shell("echo hello")
        rig.laptop.queue(shell)
        assert rig.wait_for_exit(shell).state is RunState.DONE


def test_without_a_store_runs_go_on_to_the_end(rig: Rig) -> None:
    rig.home.update_record(store="")
    leave(rig, HANDING_S)
    with rig.daemon():
        train = rig.run(python("print('ran')"))
        rig.laptop.queue(train)
        assert rig.wait_for_exit(train).state is RunState.DONE


def test_a_stop_while_it_saves_for_the_next_vm_ends_it_here(rig: Rig) -> None:
    leave(rig, OPEN_S)
    with rig.daemon():
        train = rig.run(SAVES_UNTIL_TOLD)
        rig.laptop.queue(train)
        wait_for_log(rig.dir(train), "up")
        leave(rig, HANDING_S)
        wait_for_log(rig.dir(train), "saving")
        stop = rig.command(Verb.STOP, train.run_id)
        rig.laptop.queue(stop)
        rig.laptop.finished(stop)
        (rig.home.payload / "go").touch()
        ended = rig.wait_for_exit(train)
    assert (ended.state, ended.exit_code) == (RunState.STOPPED, 143)  # 143: it could save to the end


def test_a_daemon_that_died_meanwhile_hands_over_when_it_is_back(rig: Rig) -> None:
    leave(rig, OPEN_S)
    with rig.daemon():
        train = rig.run(SAVES_UNTIL_TOLD)
        rig.laptop.queue(train)
        wait_for_log(rig.dir(train), "up")
        leave(rig, HANDING_S)
        wait_for_log(rig.dir(train), "saving")
    (rig.home.payload / "go").touch()
    wait_until(lambda: lifetime.is_handed_over(rig.dir(train), 1), what="the stage's end")
    with rig.daemon():
        wait_for_handover(rig, train)
    assert log_of(rig.dir(train)).count("up\n") == 1
    assert not (rig.dir(train) / names.EXIT).exists()


def test_the_next_attempt_on_this_vm_begins_without_marks_of_the_last(rig: Rig) -> None:
    leave(rig, HANDING_S)
    with rig.daemon():
        train = rig.run(SLEEP)
        rig.laptop.queue(train)
        wait_for_handover(rig, train)
    rig.home.update_record(vm_rules={})
    with rig.daemon():
        again = rig.again(train, attempt=2)
        rig.laptop.queue(again)
        wait_for_log(rig.dir(train), "up")
    assert files.read_json(rig.dir(train) / names.HANDOVER) is None
