"""What a key may do: under its own VMs alone, by the bridge's own name, and not too often."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ledger_support import Clock

from bridge import permits, rate
from bridge.key_records import PairingKey
from bridge.ledger import Ledger
from bridge_client import STAGE, VM, Client, LiveBridge, Uploader, live_bridge, project
from bridgehead import names, signing
from bridgehead.names import Ack
from bridgehead.records import AckRecord, Heartbeat

OTHER_VM = "vm-other1"


def _other(live: LiveBridge, **values: bool) -> Client:
    """A client with the key of another pairing."""
    item = live.bridge.keys.make("other", **values)
    return Client(live.bridge.port, item.id, item.key)


def _poll(client: Client, vm: str = VM) -> int:
    return client.get(f"/queue?vm={vm}&after=0&wait=0").status


def _beat(client: Client, vm: str, *runs: dict[str, object]) -> dict[str, object]:
    body = json.dumps(Heartbeat(vm, "boot", 1.0, runs=list(runs)).to_json()).encode()
    answer = client.ask("POST", f"/vms/{vm}/heartbeat", body)
    assert answer.status == 200, answer.body
    return signing.open_document(client.key, "hints", answer.json)


def _ack(client: Client, live: LiveBridge, run_id: str, vm: str, attempt: int = 1) -> int:
    row = live.bridge.ledger.find_run(run_id)
    body = json.dumps(AckRecord(vm, Ack.ACCEPTED, attempt).to_json()).encode()
    return client.ask("POST", f"/queue/{row.id}/ack", body).status


def test_a_vm_belongs_to_the_key_that_it_first_spoke_with(live: LiveBridge, client: Client) -> None:
    other = _other(live)
    assert _poll(client) == 200
    answer = other.get(f"/queue?vm={VM}&after=0&wait=0")
    assert (answer.status, answer.code) == (403, "pairing")
    assert VM in answer.json["error"]["message"] and "keys list" in answer.json["error"]["hint"]
    assert _poll(other, OTHER_VM) == 200 and _poll(client) == 200


@pytest.mark.parametrize("method", ["PUT", "POST", "HEAD", "PATCH", "DELETE"])
def test_another_key_writes_nothing_under_a_run_that_is_not_its_own(
    live: LiveBridge, client: Client, method: str
) -> None:
    assert _poll(client) == 200
    run_id = live.given_run()
    headers = {
        names.HEADER_GENERATION: "1",
        names.HEADER_OFFSET: "0",
        names.HEADER_COMPLETE: "?0",
        "Content-Type": "application/partial-upload",
    }
    target = f"/in/{run_id}/log?vm={VM}&attempt=1"
    answer = _other(live).ask(method, target, b"x" if method in ("PUT", "PATCH") else b"", headers)
    assert answer.status == 403
    assert not (live.arrivals / run_id).exists()


def test_another_key_speaks_for_no_vm_that_is_not_its_own(live: LiveBridge, client: Client) -> None:
    assert _poll(client) == 200
    run_id, other = live.given_run(), _other(live)
    assert _ack(other, live, run_id, VM) == 403
    body = json.dumps(Heartbeat(VM, "boot", 1.0).to_json()).encode()
    assert other.ask("POST", f"/vms/{VM}/heartbeat", body).status == 403
    assert live.bridge.ledger.find_run(run_id).state == "queued"


def test_a_stranger_learns_nothing_of_whose_vm_it_is(live: LiveBridge, client: Client) -> None:
    assert _poll(client) == 200
    unknown = Client(client.port, "k-00000000", bytes(32)).get(f"/queue?vm={VM}&after=0&wait=0")
    assert unknown.status == 401 and VM.encode() not in unknown.body


def test_a_key_claims_no_run_of_another_pairing(live: LiveBridge, client: Client) -> None:
    """A claim says that the run was taken over from the store; only VMs of one pairing can read each other there."""
    assert _poll(client) == 200
    run_id, other = live.given_run(), _other(live)
    assert _poll(other, OTHER_VM) == 200
    assert _ack(other, live, run_id, OTHER_VM, attempt=2) == 409
    hints = _beat(other, OTHER_VM, {"run_id": run_id, "attempt": 2, "state": "running"})
    assert hints["revoked"] == [{"run_id": run_id, "attempt": 2}]
    assert live.bridge.ledger.find_run(run_id).vm_id == VM


def test_a_vm_of_the_same_pairing_claims_a_run_as_before(live: LiveBridge, client: Client) -> None:
    assert _poll(client) == 200
    run_id = live.given_run()
    assert _poll(client, OTHER_VM) == 200
    assert _ack(client, live, run_id, OTHER_VM, attempt=2) == 204
    assert live.bridge.ledger.find_run(run_id).vm_id == OTHER_VM


def test_a_lost_run_is_given_to_no_vm_of_another_pairing(live: LiveBridge, client: Client) -> None:
    assert _poll(client) == 200
    run_id, other = live.given_run(), _other(live)
    live.bridge.ledger.mark_vm_gone(VM, "its processes are gone")
    target = f"/queue?vm={OTHER_VM}&after=0&wait=0"
    assert other.get(target).json["commands"] == []
    assert live.bridge.ledger.find_run(run_id).state == "lost"


def test_the_ledger_gives_a_lost_run_to_a_vm_of_the_heir_and_signs_for_that_one(
    live: LiveBridge, client: Client
) -> None:
    assert _poll(client) == 200
    run_id = live.given_run()
    _, item = live.bridge.keys.revoke(client.key_id)
    assert isinstance(item, PairingKey)
    heir = Client(client.port, item.id, item.key)
    live.bridge.ledger.mark_vm_gone(VM, "its processes are gone")
    live.bridge.ledger.heed_pairings(live.bridge.keys.pairings())
    documents = heir.get(f"/queue?vm={OTHER_VM}&after=0&wait=0").json["commands"]
    command = signing.open_document(heir.key, "command", documents[0])
    assert (command["run_id"], command["attempt"], command["vm_id"]) == (run_id, 2, OTHER_VM)
    assert _ack(heir, live, run_id, OTHER_VM, attempt=2) == 204
    assert Uploader(heir, run_id, "x", vm=OTHER_VM, attempt=2).put(b"y").status == 201
    assert Uploader(heir, run_id, "x").put(b"y").status == 409


def test_a_revoked_key_is_refused_from_its_next_request_on(live: LiveBridge, client: Client) -> None:
    assert _poll(client) == 200
    run_id = live.given_run()
    live.bridge.keys.revoke(client.key_id)
    for answer in (client.get("/queue.txt"), client.get("/serve/boot.zip"), Uploader(client, run_id, "x").put(b"y")):
        assert answer.status == 401


def test_a_poll_that_waits_brings_nothing_to_a_key_that_was_revoked_meanwhile(live: LiveBridge, client: Client) -> None:
    target = f"/queue?vm={VM}&after=0&wait=20"
    with client.half_sent("GET", target, client.signed("GET", target), b"") as sock:
        live.call(_until_live(live))
        live.bridge.keys.revoke(client.key_id)
        live.bridge.ledger.take([(1, f"run:{STAGE}")], project())
        assert sock.recv(1000).startswith(b"HTTP/1.1 401")


async def _until_live(live: LiveBridge) -> None:
    import asyncio

    while not any(row.vm_id == VM for row in live.bridge.ledger.vms()):
        await asyncio.sleep(0.01)


def test_after_a_revocation_a_vm_may_be_paired_anew_but_not_by_a_key_of_before(
    live: LiveBridge, client: Client
) -> None:
    other = _other(live)
    assert _poll(client) == 200
    _, heir = live.bridge.keys.revoke(client.key_id)
    assert isinstance(heir, PairingKey)
    rotated = live.bridge.keys.rotate(other.key_id)  # made later, and yet of a pairing of before
    assert _poll(other) == 403 and _poll(Client(client.port, rotated.id, rotated.key)) == 403
    assert _poll(Client(client.port, heir.id, heir.key)) == 200


def test_only_announced_names_and_loopback_are_answered(live: LiveBridge, client: Client) -> None:
    live.bridge.announce_host("https://quick-fox.example.com")
    live.bridge.announce_host("http://192.0.2.7:9000")
    for host in ("127.0.0.1", f"127.0.0.1:{client.port}", "LocalHost:1", "[::1]:8766", "quick-fox.example.com",
                 "Quick-Fox.example.com:443", "192.0.2.7:9000"):  # fmt: skip
        client.headers = {"Host": host}
        assert client.get("/queue.txt").status == 200, host


@pytest.mark.parametrize(
    "host",
    ["evil.example.com", "192.0.2.7", "127.0.0.1.evil.com", "127.0.0.1@evil.com", "localhost.", "127.1", "2130706433",
     "", "quick-fox.example.com:444"],
)  # fmt: skip
@pytest.mark.parametrize("target", ["/healthz", "/queue.txt", "/"])
def test_a_foreign_name_gets_an_empty_421(live: LiveBridge, client: Client, host: str, target: str) -> None:
    live.bridge.announce_host("https://quick-fox.example.com")
    client.headers = {"Host": host}
    answer = client.get(target)
    assert (answer.status, answer.body) == (421, b"")


def test_a_url_in_a_pairing_code_is_a_name_of_the_bridge(live: LiveBridge, client: Client) -> None:
    live.bridge.pairing("https://next.example.com")
    client.headers = {"Host": "next.example.com"}
    assert client.get("/queue.txt").status == 200


def test_a_key_that_asks_too_often_is_told_to_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rate.Limiter.__init__, "__kwdefaults__", {"per_vm_s": 0.2, "clock": lambda: 0.0})
    with live_bridge(tmp_path) as live:
        client, other = live.client(), _other(live)
        assert [client.get("/queue.txt").status for _ in range(3)] == [200, 200, 429]
        answer = client.get("/queue.txt")
        assert answer.headers["Retry-After"] == "5" and answer.code == "transfer"
        assert other.get("/queue.txt").status == 200  # each key has its own bucket


def test_a_key_that_makes_up_vms_without_end_is_stopped(
    live: LiveBridge, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(permits, "NEW_VMS_MAX", 5)
    other = _other(live)
    statuses = [_poll(client, f"vm-{number}") for number in range(8)]
    assert statuses == [200] * 5 + [429] * 3
    answer = client.get("/queue?vm=vm-8&after=0&wait=0")
    assert int(answer.headers["Retry-After"]) > 0 and "keys revoke" in answer.json["error"]["hint"]
    assert "5 VMs of this pairing" in answer.json["error"]["message"]
    assert len(live.bridge.ledger.vm_keys()) == 5 and len(live.bridge.ledger.vms()) == 5
    assert _poll(client, "vm-0") == 200 and _poll(other, OTHER_VM) == 200  # its own go on, and so do others'


def test_a_vm_that_is_gone_for_an_hour_makes_room_for_another(tmp_path: Path) -> None:
    clock = Clock()
    ledger = Ledger(tmp_path / names.LEDGER_FILE, clock=clock)
    for number in range(3):
        ledger.bind_vm(f"vm-{number}", "k", "k", allow_sh=True)
        ledger.heartbeat(Heartbeat(f"vm-{number}", "boot", 1.0))
    assert ledger.fresh_vms("k", 3600) == 3 and ledger.fresh_vms("other", 3600) == 0
    clock.now += 3601
    assert ledger.fresh_vms("k", 3600) == 3  # they are alive
    ledger.mark_vm_gone("vm-0", "killed")
    assert ledger.fresh_vms("k", 3600) == 2
    ledger.close()


def test_the_bucket_fills_again_and_grows_with_the_vms_of_the_key() -> None:
    now = 0.0
    limiter = rate.Limiter(per_vm_s=1.0, clock=lambda: now)
    assert [limiter.wait_s("k", 1) for _ in range(11)] == [0.0] * 10 + [1.0]
    now = 2.0
    assert [limiter.wait_s("k", 1) for _ in range(3)] == [0.0, 0.0, 1.0]
    assert [limiter.wait_s("many", 3) for _ in range(31)][-2:] == [0.0, pytest.approx(1 / 3)]
    assert [limiter.wait_s("liar", 10**6) for _ in range(641)][-2:] == [0.0, pytest.approx(1 / 64)]
