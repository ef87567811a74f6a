"""Growing files and artefacts on their way to a real bridge."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bridge_client import STAGE, LiveBridge, live_bridge, project
from bridgehead import names
from bridgehead.errors import TransferError
from bridgehead.records import AckRecord
from vm_daemons.client import BridgeClient
from vm_daemons.uploads import GENERATIONS, GrowingUpload, inherit, lives_to_leave
from vm_support import make_run, paired_home


class Rig:
    """One run, given to this VM, and its two ends."""

    def __init__(self, live: LiveBridge, root: Path) -> None:
        self.live = live
        self.home = paired_home(root, live)
        self.client = BridgeClient(self.home)
        self.run_id = live.bridge.ledger.take([(1, f"run:{STAGE}")], project())[0].run_id
        self.client.poll(0, 0)
        self.run_dir = make_run(self.home, self.run_id)
        self.log = self.run_dir / names.LOG
        self.arrived = live.arrivals / self.run_id / names.LOG

    def growing(self, client: BridgeClient | None = None, attempt: int = 1) -> GrowingUpload:
        return GrowingUpload(client or self.client, self.run_id, attempt, self.log, names.LOG)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    root = tmp_path / "project"
    root.mkdir()
    with live_bridge(root) as live:
        yield Rig(live, tmp_path / "vm")


_OTHER = {names.HEADER_COMPLETE: "?0", names.HEADER_GENERATION: "vm-other-2"}


def _ship_all(growing: GrowingUpload) -> None:
    while growing.ship():
        pass


def test_only_what_was_appended_is_sent(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[bytes] = []
    real = rig.client.append
    monkeypatch.setattr(rig.client, "append", lambda *given, **more: (sent.append(given[5]), real(*given, **more))[1])
    growing = rig.growing()
    rig.log.write_bytes(b"one\n")
    _ship_all(growing)
    with rig.log.open("ab") as log:
        log.write(b"\x00\xff progress\r")
    _ship_all(growing)
    assert sent == [b"one\n", b"\x00\xff progress\r"]
    assert rig.arrived.read_bytes() == rig.log.read_bytes()
    assert not growing.pending()


def test_a_restarted_daemon_goes_on_where_the_laptop_stands(rig: Rig) -> None:
    rig.log.write_bytes(b"one\n")
    _ship_all(rig.growing())
    rig.log.write_bytes(b"one\ntwo\n")
    _ship_all(rig.growing())
    assert rig.arrived.read_bytes() == b"one\ntwo\n"


def test_a_lost_answer_sends_nothing_twice(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    real = rig.client.append
    lost = [True]

    def flaky(*given: Any, **more: Any) -> int:
        offset = real(*given, **more)
        if lost and lost.pop():
            raise TransferError("cut after it arrived")
        return offset

    monkeypatch.setattr(rig.client, "append", flaky)
    growing = rig.growing()
    rig.log.write_bytes(b"one\n")
    with pytest.raises(TransferError):
        growing.ship()
    _ship_all(growing)
    assert rig.arrived.read_bytes() == b"one\n"


def test_a_shortened_log_begins_a_new_generation(rig: Rig) -> None:
    growing = rig.growing()
    rig.log.write_bytes(b"first life\n")
    _ship_all(growing)
    os.truncate(rig.log, 0)
    rig.log.write_bytes(b"second\n")
    _ship_all(growing)
    _ship_all(rig.growing())  # a restarted daemon knows the new generation
    assert rig.arrived.read_bytes() == b"first life\nsecond\n"


def test_a_new_attempt_in_the_same_file_repeats_nothing(rig: Rig) -> None:
    rig.log.write_bytes(b"attempt 1\n")
    _ship_all(rig.growing())
    ledger = rig.live.bridge.ledger
    ledger.sweep_lost(-1.0)  # silent for too long: another VM gets it, and is lost too
    rig.live.knows("vm-other")
    (lent,) = ledger.deliver("vm-other", 0)
    ledger.ack(lent.id, AckRecord("vm-other", names.Ack.ACCEPTED, lent.attempt))
    rig.live.client().ask("POST", f"/in/{rig.run_id}/{names.LOG}?vm=vm-other&attempt=2", b"", _OTHER)
    ledger.mark_vm_gone("vm-other", "test")
    attempt = rig.client.poll(0, 0)[0].attempt
    with rig.log.open("ab") as log:
        log.write(b"attempt 3\n")
    _ship_all(rig.growing(attempt=attempt))
    assert (attempt, rig.arrived.read_bytes()) == (3, b"attempt 1\nattempt 3\n")


def test_the_laptops_copy_was_removed(rig: Rig) -> None:
    growing = rig.growing()
    rig.log.write_bytes(b"one\n")
    _ship_all(growing)
    rig.arrived.unlink()
    with rig.log.open("ab") as log:
        log.write(b"two\n")
    _ship_all(growing)
    assert rig.arrived.read_bytes() == b"one\ntwo\n"


def test_a_hundred_megabytes_of_log(rig: Rig) -> None:
    line = b"x" * 1023 + b"\n"
    rig.log.write_bytes(line * (100 * 1024))
    _ship_all(rig.growing())
    assert rig.arrived.stat().st_size == 100 * 2**20


def test_a_file_that_does_not_exist_yet_is_no_trouble(rig: Rig) -> None:
    growing = rig.growing()
    assert not growing.pending() and growing.ship() is False


# --- logs of a VM that died -------------------------------------------------------------------------------------


def _inherited(rig: Rig, text: bytes, lives: bytes, attempt: int = 2) -> GrowingUpload:
    """The run as another VM goes on with it: a folder of its own, with what the store had of the log."""
    folder = rig.log.parent.with_name("elsewhere")
    folder.mkdir(exist_ok=True)
    temp = folder / "temp"
    temp.write_bytes(text)
    inherit(folder, names.LOG, temp, lives, attempt)
    temp.rename(folder / names.LOG)
    return GrowingUpload(rig.client, rig.run_id, attempt, folder / names.LOG, names.LOG)


@pytest.mark.parametrize("stored", [b"one\ntwo\nthree\n", b"one\ntwo\n", b"one\n", b""])
def test_what_a_dead_vm_had_put_into_the_store_arrives_once(rig: Rig, stored: bytes) -> None:
    rig.log.write_bytes(b"one\ntwo\n")
    _ship_all(rig.growing())
    lives = (rig.log.parent / GENERATIONS).read_bytes()
    _claim(rig, 2)
    mine = _inherited(rig, stored, lives)
    with mine._path.open("ab") as log:
        log.write(b"four\n")
    _ship_all(mine)
    with mine._path.open("ab") as log:
        log.write(b"five\n")
    _ship_all(mine)
    expected = max(stored, b"one\ntwo\n", key=len) + b"four\nfive\n"
    assert rig.arrived.read_bytes() == expected


def test_nothing_of_it_is_lost_while_the_laptop_does_not_know_yet_whose_the_run_is(rig: Rig) -> None:
    rig.log.write_bytes(b"one\n")
    _ship_all(rig.growing())
    mine = _inherited(rig, b"one\ntwo\n", (rig.log.parent / GENERATIONS).read_bytes())
    with pytest.raises(TransferError):
        mine.ship()
    _claim(rig, 2)
    _ship_all(mine)
    assert rig.arrived.read_bytes() == b"one\ntwo\n"


def test_what_a_vm_in_between_has_sent_is_not_sent_again(rig: Rig) -> None:
    rig.log.write_bytes(b"one\n")
    _ship_all(rig.growing())
    lives = (rig.log.parent / GENERATIONS).read_bytes()
    _claim(rig, 2)
    between = _inherited(rig, b"one\n", lives)
    with between._path.open("ab") as log:
        log.write(b"between\n")
    _ship_all(between)
    _claim(rig, 3)
    mine = _inherited(rig, b"one\n", lives, 3)
    with mine._path.open("ab") as log:
        log.write(b"last\n")
    _ship_all(mine)
    assert rig.arrived.read_bytes() == b"one\nbetween\nlast\n"


@pytest.mark.parametrize("began", [False, True])
def test_what_was_in_the_store_before_its_vm_had_sent_any_of_it_arrives(rig: Rig, began: bool) -> None:
    """A short run is saved before the first byte of its log has left: found by the chaos campaign."""
    rig.log.write_bytes(b"one\ntwo\n")
    lives = lives_to_leave(rig.log.parent, rig.client.vm_id, 1)
    if began:  # after the store was told
        _ship_all(rig.growing())
    _claim(rig, 2)
    mine = _inherited(rig, b"one\ntwo\n", lives)
    with mine._path.open("ab") as log:
        log.write(b"three\n")
    _ship_all(mine)
    assert rig.arrived.read_bytes() == b"one\ntwo\nthree\n"


def test_a_life_that_is_noted_is_left_as_it_is(rig: Rig) -> None:
    rig.log.write_bytes(b"one\n")
    _ship_all(rig.growing())
    noted = json.loads((rig.log.parent / GENERATIONS).read_bytes())
    assert json.loads(lives_to_leave(rig.log.parent, "vm-other", 7)) == noted


@pytest.mark.parametrize("lives", [b"", b"[]", b"{", b'{"log": {"generation": 1}}', b'{"log": {"generation": "x"}}'])
def test_without_a_note_of_what_had_arrived_nothing_comes_twice(rig: Rig, lives: bytes) -> None:
    rig.log.write_bytes(b"one\n")
    _ship_all(rig.growing())
    _claim(rig, 2)
    mine = _inherited(rig, b"one\n", lives)
    with mine._path.open("ab") as log:
        log.write(b"two\n")
    _ship_all(mine)
    assert rig.arrived.read_bytes() == b"one\ntwo\n"


def _claim(rig: Rig, attempt: int) -> None:
    (command,) = rig.live.bridge.ledger.commands()
    rig.live.bridge.ledger.ack(command.id, AckRecord(rig.client.vm_id, names.Ack.ACCEPTED, attempt))
