"""A key is replaced while its VM works: derived on both sides, kept before it is used, and nothing is lost by it."""

from __future__ import annotations

import base64
import dataclasses
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from whole_vm import Vm

from bridge import permits
from bridge.key_records import KeyState
from bridge.project import ProjectView
from bridge_client import LiveBridge, live_bridge
from bridgehead import names, rotation, signing
from bridgehead.errors import PairingError, TransferError
from bridgehead.names import Ack
from bridgehead.records import AckRecord, StageSpec
from support import wait_until
from vm_daemons import client as client_module
from vm_daemons import key_rotation, peers
from vm_daemons.client import BridgeClient
from vm_daemons.home import VmHome
from vm_run_support import python
from vm_support import KEY, paired_home, reply, scripted_server

STEPS = 60
PATIENCE_S = 40.0  # on a busy machine
WORKS = python(f"""
import bridgehead, time
run = bridgehead.current_run()
for step in range(1, {STEPS} + 1):
    print(f"step {{step}}", flush=True)
    time.sleep(0.1)
    while step == {STEPS // 2} and not (run.folder / "go-on").exists():
        time.sleep(0.05)
folder = run.folder / "artifacts"
folder.mkdir(exist_ok=True)
(folder / "model.bin").write_bytes(bytes(range(256)) * 8192)
run.results({{"steps": {STEPS}}})
""")


@pytest.fixture
def live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LiveBridge]:
    monkeypatch.setattr(permits, "LINGER_S", 0.2)
    root = tmp_path / "project"
    root.mkdir()
    with live_bridge(root) as bridge:
        yield bridge


def _hints(live: LiveBridge, home: VmHome) -> dict[str, object]:
    following = live.bridge.keys.next_of(home.pairing().key_id)
    assert following is not None
    return {"rotate": {"kid": following.id, "salt": base64.b64encode(following.salt).decode()}}


def test_a_run_goes_on_through_two_rotations(live: LiveBridge, tmp_path: Path) -> None:
    keys, ledger = live.bridge.keys, live.bridge.ledger
    vm = Vm(tmp_path / "vm", None, live)
    view = ProjectView("demo", {"pretrain": StageSpec("pretrain", WORKS)})
    run_id = ledger.take([(1, "run:pretrain")], view)[0].run_id
    log = live.arrivals / run_id / names.LOG
    try:
        vm.start()
        wait_until(lambda: log.exists() and "step 2\n" in log.read_text(), PATIENCE_S, what="its first steps")
        first = keys.current()[0]
        for old in (first, keys.rotate(first).id):
            if old != first:
                keys.rotate(old)
            new = keys.current()[0]
            wait_until(lambda new=new: vm.home.pairing().key_id == new, PATIENCE_S, what="the new key on the VM")  # type: ignore[misc]
            wait_until(lambda old=old: keys.get(old).state is KeyState.ENDED, PATIENCE_S, what="the end of the old one")  # type: ignore[misc,union-attr]
        (vm.home.run(run_id) / "go-on").touch()  # the run works in a folder of its own, not in the payload's
        wait_until(lambda: ledger.find_run(run_id).ended, PATIENCE_S, what="the end of the run")
    finally:
        vm.kill()
    row = ledger.find_run(run_id)
    assert (row.state, row.attempt, row.exit_code, row.vm_id) == ("done", 1, 0, vm.vm_id)
    assert log.read_text().split("\n")[1:-1] == [f"step {step}" for step in range(1, STEPS + 1)]
    assert (live.arrivals / run_id / "artifacts/model.bin").read_bytes() == bytes(range(256)) * 8192
    assert stat.S_IMODE((vm.home.state / names.VM_PAIRING).stat().st_mode) == 0o600
    assert len(vm.home.pairing().former) == 2
    assert [key_id for key_id, _ in keys.active()] == [keys.current()[0]]


def test_an_answer_is_opened_with_the_key_that_asked_for_it(live: LiveBridge, tmp_path: Path) -> None:
    """The poll that waits was signed with the old key; meanwhile another daemon has kept the new one."""
    home = paired_home(tmp_path / "home", live)
    client, found = BridgeClient(home), []
    polling = threading.Thread(target=lambda: found.extend(client.poll(0, 20.0)))
    polling.start()
    wait_until(lambda: any(row.vm_id == client.vm_id for row in live.bridge.ledger.vms()), what="its poll")
    live.bridge.keys.rotate(home.pairing().key_id)
    key_rotation.heed(home, _hints(live, home), home.pairing().key_id)
    live.bridge.ledger.take([(1, "sync:")], ProjectView("demo"))
    polling.join(100)
    assert [command.verb for command in found] == ["sync"]


def test_a_request_whose_key_ended_on_the_way_is_sent_again_with_the_new_one(live: LiveBridge, tmp_path: Path) -> None:
    home = paired_home(tmp_path / "home", live)
    client = BridgeClient(home)
    client.poll(0, 0.0)
    old = home.pairing()
    live.bridge.keys.rotate(old.key_id)
    key_rotation.heed(home, _hints(live, home), old.key_id)
    new = home.pairing()
    live.bridge.keys.end(old.key_id)
    answers = iter([old, new, new, new])
    object.__setattr__(client._home, "pairing", lambda: next(answers))  # read just before the new one was kept
    assert client.poll(0, 0.0) == []


def test_a_revoked_key_is_not_tried_twice(live: LiveBridge, tmp_path: Path) -> None:
    home = paired_home(tmp_path / "home", live)
    live.bridge.keys.revoke(home.pairing().key_id)
    with pytest.raises(PairingError, match="does not accept"):
        BridgeClient(home).poll(0, 0.0)


def test_another_pairings_vm_is_told_so_in_plain_words(live: LiveBridge, tmp_path: Path) -> None:
    home = paired_home(tmp_path / "home", live)
    client = BridgeClient(home)
    client.poll(0, 0.0)
    other = live.bridge.keys.make("other")
    home.save_pairing(dataclasses.replace(home.pairing(), key_id=other.id, key=other.key))
    with pytest.raises(PairingError, match="belongs to another pairing"):
        client.ack("0" * 32, AckRecord(client.vm_id, Ack.ACCEPTED, 1))


def test_a_bridge_that_says_wait_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr(client_module.time, "sleep", waits.append)
    statuses = iter([429, 429, 200])

    def answer(handler: object) -> None:
        status = next(statuses)
        reply(handler, status, b'{"commands":[]}', **({"Retry_After": "7"} if status == 429 else {}))  # type: ignore[arg-type]

    with scripted_server(answer) as url:
        assert BridgeClient(paired_home(tmp_path, url=url)).poll(0, 0.0) == []
    assert len(waits) == 2 and all(7.0 <= wait <= 10.5 for wait in waits)


def test_a_bridge_that_says_wait_for_ever_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr(client_module.time, "sleep", waits.append)
    with (
        scripted_server(lambda handler: reply(handler, 429, b"error code: 1015", Retry_After="999999")) as url,
        pytest.raises(TransferError),
    ):
        BridgeClient(paired_home(tmp_path, url=url)).poll(0, 0.0)
    assert 0 < len(waits) < 10 and max(waits) <= 45.0


@pytest.mark.parametrize(
    "rotate", [{}, {"kid": "k-2"}, {"kid": "k-new1", "salt": "!"}, {"kid": "k-new1", "salt": "c2hvcnQ="},
               {"kid": "../../x", "salt": base64.b64encode(bytes(32)).decode()}, {"kid": "", "salt": 5}]
)  # fmt: skip
def test_hints_that_make_no_sense_change_nothing(tmp_path: Path, rotate: dict[str, object]) -> None:
    home = paired_home(tmp_path)
    before = home.pairing()
    with pytest.raises(PairingError):
        key_rotation.heed(home, {"rotate": rotate}, before.key_id)
    assert home.pairing() == before


def test_hints_for_a_key_that_is_not_the_present_one_are_passed_over(tmp_path: Path) -> None:
    home = paired_home(tmp_path)
    before = home.pairing()
    salt = base64.b64encode(bytes(32)).decode()
    key_rotation.heed(home, {"rotate": {"kid": "k-new1", "salt": salt}}, "k-before")
    assert home.pairing() == before


def test_a_cell_with_the_code_of_before_does_not_undo_a_rotation(tmp_path: Path) -> None:
    home = paired_home(tmp_path)
    pasted = home.pairing()
    key_rotation.heed(home, {"rotate": {"kid": "k-new1", "salt": base64.b64encode(bytes(32)).decode()}}, pasted.key_id)
    kept = key_rotation.newest(home, dataclasses.replace(pasted, url="http://next.example.com"))
    assert (kept.key_id, kept.url) == ("k-new1", "http://next.example.com")
    assert kept.key == rotation.successor(KEY, bytes(32), pasted.key_id, "k-new1") and kept.former == (KEY,)
    other = dataclasses.replace(pasted, key=bytes(32), key_id="k-other")
    assert key_rotation.newest(home, other) == other


def test_what_was_signed_before_a_rotation_is_read_after_it_and_by_a_vm_with_the_new_code(tmp_path: Path) -> None:
    home = paired_home(tmp_path / "a")
    told = {"id": "c" * 32}
    signature = peers.signer(home)(told)
    key_rotation.heed(
        home, {"rotate": {"kid": "k-new1", "salt": base64.b64encode(bytes(32)).decode()}}, home.pairing().key_id
    )
    fresh = paired_home(tmp_path / "b")
    fresh.save_pairing(home.pairing())
    for reader in (home, fresh):
        document = {"kind": "command", "body": told, "sig": signature}
        assert signing.open_document_of_any(reader.pairing().document_keys, "command", document) == told
