"""`@vm release:` on the VM: runs leave for the next one, the cell goes without any setting, the wish is spent once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bridgehead import files, names
from bridgehead.names import Ack, RunState
from bridgehead.queue_lines import Verb
from bridgehead.records import Command
from command_rig import SAVES, SLEEP, Rig
from support import wait_until
from vm_daemons import asked_release, beats, daemons, lifetime, release
from vm_daemons.release import Release
from vm_run_support import log_of, python, wait_for_log


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    monkeypatch.setenv(names.ENV_LOCAL_VM, "vm-under-test")
    monkeypatch.setattr(release, "LAST_WORD_S", 0.05)
    (tmp_path / "drive").mkdir()
    made = Rig(tmp_path / "vm", tmp_path / "drive")
    yield made
    made.clean()


def ask(rig: Rig) -> Command:
    line = rig.command(Verb.RELEASE, "")
    rig.laptop.queue(line)
    wait_until(lambda: asked_release.pending(rig.home), what="the wish")
    return line


def test_a_run_that_is_under_way_saves_and_leaves_for_the_next_vm(rig: Rig) -> None:
    with rig.daemon():
        train = rig.run(SAVES)
        rig.laptop.queue(train)
        wait_for_log(rig.dir(train), "up", 30.0)
        line = ask(rig)
        wait_until(lambda: lifetime.is_handed_over(rig.dir(train), 1), what="the hand-over")
        wait_until(lambda: "started" in rig.laptop.answers(line), what="the answer")
    assert not (rig.dir(train) / names.EXIT).exists()
    assert "finished" not in rig.laptop.answers(train) + rig.laptop.answers(line)


def test_a_run_that_waits_goes_to_the_next_vm_at_once(rig: Rig) -> None:
    with rig.daemon():
        ask(rig)
        train = rig.run(SLEEP)
        rig.laptop.queue(train)
        wait_until(lambda: rig.journal_has("handed_over"), what="the hand-over")
    assert "up" not in log_of(rig.dir(train)).splitlines()


def test_without_a_store_runs_go_on_to_the_end_and_the_cell_waits_for_them(rig: Rig) -> None:
    rig.home.update_record(store="")
    with rig.daemon():
        train = rig.run(
            python("import os, time\nprint('up', flush=True)\nwhile not os.path.exists('go'): time.sleep(.02)")
        )
        rig.laptop.queue(train)
        wait_for_log(rig.dir(train), "up", 30.0)
        ask(rig)
        beats.beat(rig.home, names.COMMAND_DAEMON)
        assert Release(rig.home, lambda _: None).look().because == f"{train.run_id} runs"
        assert "no durable store" in lifetime.outlook(rig.home).note
        (rig.home.payload / "go").touch()
        assert rig.wait_for_exit(train).state is RunState.DONE


def test_the_cell_gives_it_back_at_once_without_any_setting(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemons, "stop", lambda _: None)
    with rig.daemon():
        line = ask(rig)
    beats.beat(rig.home, names.COMMAND_DAEMON)
    giving = Release(rig.home, lambda _: None)
    assert giving.look().now
    assert giving.go()
    told = lifetime.snapshot(rig.home)
    assert (
        told["released"] and told["released_because"] == f"asked for by line #{line.seq}, everything is done and safe"
    )
    assert asked_release.pending(rig.home) is None


def test_on_a_home_that_outlives_it_the_wish_is_spent(rig: Rig) -> None:
    with rig.daemon():
        line = ask(rig)
    asked_release.met(rig.home)
    with rig.daemon():
        assert rig.laptop.finished(line).state == RunState.DONE
    assert lifetime.outlook(rig.home).phase is lifetime.Phase.OPEN


def test_a_daemon_that_died_meanwhile_still_knows_of_it(rig: Rig) -> None:
    with rig.daemon():
        line = ask(rig)
    (rig.home.state / names.VM_RELEASE).unlink()
    with rig.daemon():
        wait_until(lambda: asked_release.pending(rig.home), what="the wish")
    assert Ack.FINISHED not in rig.laptop.answers(line)


def test_a_shell_command_is_waited_for(rig: Rig) -> None:
    with rig.daemon():
        shell = rig.shell("echo up; sleep 60")
        rig.laptop.queue(shell)
        wait_for_log(rig.dir(shell), "up", 30.0)
        ask(rig)
        beats.beat(rig.home, names.COMMAND_DAEMON)
        assert Release(rig.home, lambda _: None).look().because == f"{shell.run_id} runs"


def test_a_wish_that_can_not_be_read_is_none(rig: Rig) -> None:
    for record in ("[]", "{}", "x", '{"seq": "one"}'):
        files.write_atomic(rig.home.state / names.VM_RELEASE, record.encode())
        assert asked_release.pending(rig.home) is None
