"""The VM refuses shell commands by itself, whoever signed them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from bridgehead import files, names
from bridgehead.names import Ack
from bridgehead.pairing import Pairing
from command_rig import Rig
from support import wait_until
from vm_daemons import key_rotation
from vm_support import KEY


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path / "vm")
    made.home.save_pairing(Pairing("http://127.0.0.1:9", "test-key", KEY, "0" * 64))
    yield made
    made.clean()


def _forbid_by_code(rig: Rig) -> None:
    rig.home.save_pairing(dataclasses.replace(rig.home.pairing(), allow_sh=False))


def _forbid_by_hints(rig: Rig) -> None:
    key_rotation.heed_switch(rig.home, {key_rotation.ALLOW_SH: False})


@pytest.mark.parametrize(
    ("forbid", "reason"), [(_forbid_by_code, "paired without sh:"), (_forbid_by_hints, "switched off")]
)
def test_a_shell_command_is_rejected_with_the_reason_and_not_run(rig: Rig, forbid: object, reason: str) -> None:
    forbid(rig)  # type: ignore[operator]
    command = rig.shell("touch ran")
    with rig.daemon():
        rig.laptop.queue(command)
        wait_until(lambda: rig.laptop.acks, 20, what="an answer")
    [(_, record)] = rig.laptop.acks
    assert record.ack is Ack.REJECTED and reason in record.reason
    assert not rig.home.run(command.run_id).exists()


def test_a_run_is_still_run(rig: Rig) -> None:
    _forbid_by_code(rig)
    command = rig.run("true")
    with rig.daemon():
        rig.laptop.queue(command)
        assert rig.wait_for_exit(command).exit_code == 0


def test_no_bridge_turns_on_what_the_code_forbids(rig: Rig) -> None:
    _forbid_by_code(rig)
    key_rotation.heed_switch(rig.home, {key_rotation.ALLOW_SH: True})
    assert key_rotation.refuses_shell(rig.home) == "this VM was paired without sh:"


def test_the_switch_of_the_project_can_be_turned_back(rig: Rig) -> None:
    _forbid_by_hints(rig)
    assert key_rotation.refuses_shell(rig.home)
    key_rotation.heed_switch(rig.home, {key_rotation.ALLOW_SH: True})
    assert key_rotation.refuses_shell(rig.home) == ""


@pytest.mark.parametrize("told", [{}, {"allow_sh": None}, {"allow_sh": "yes"}, {"allow_sh": 1}])
def test_what_is_no_yes_or_no_changes_nothing(rig: Rig, told: dict[str, object]) -> None:
    _forbid_by_hints(rig)
    key_rotation.heed_switch(rig.home, told)
    assert files.read_json(rig.home.state / names.VM_SHELL) == {"v": 1, "allow_sh": False}
