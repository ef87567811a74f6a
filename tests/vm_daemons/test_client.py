"""The VM's client against a real bridge, and against one that lies."""

from __future__ import annotations

import hashlib
import http.server
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bridge_client import STAGE, LiveBridge, live_bridge, project
from bridgehead import names, processes, signing
from bridgehead.errors import NotFoundError, PairingError, SupersededError, TransferError
from bridgehead.pairing import Pairing
from bridgehead.records import AckRecord, Command, Heartbeat
from vm_daemons.client import Backoff, BridgeClient, OffsetConflict
from vm_support import KEY, paired_home, reply, scripted_server

CONTENT = b"clip" * 50_000
SHA = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def live(tmp_path: Path) -> Iterator[LiveBridge]:
    root = tmp_path / "project"
    root.mkdir()
    with live_bridge(root) as bridge:
        yield bridge


@pytest.fixture
def client(tmp_path: Path, live: LiveBridge) -> BridgeClient:
    return BridgeClient(paired_home(tmp_path / "vm", live))


def _queue(live: LiveBridge) -> str:
    return live.bridge.ledger.take([(1, f"run:{STAGE}")], project())[0].run_id


def test_a_command_comes_is_answered_and_comes_no_more(live: LiveBridge, client: BridgeClient) -> None:
    run_id = _queue(live)
    command = client.poll(0, 0)[0]
    assert (command.run_id, command.vm_id) == (run_id, client.vm_id)
    client.ack(command.id, AckRecord(client.vm_id, names.Ack.ACCEPTED, 1, at=time.time()))
    assert client.poll(command.delivery, 0) == []


def test_a_heartbeat_is_answered_with_hints(client: BridgeClient) -> None:
    hints = client.heartbeat(Heartbeat(client.vm_id, processes.boot_id(), time.time()))
    assert hints["revoked"] == []


def test_a_whole_file_arrives(live: LiveBridge, client: BridgeClient, tmp_path: Path) -> None:
    run_id = _queue(live)
    client.poll(0, 0)
    (tmp_path / "a").write_bytes(CONTENT)
    client.put(run_id, "artifacts/a+b=c@1.bin", tmp_path / "a", 1)
    assert (live.arrivals / run_id / "artifacts/a+b=c@1.bin").read_bytes() == CONTENT


def test_a_wrong_offset_is_answered_with_the_real_one(live: LiveBridge, client: BridgeClient) -> None:
    run_id = _queue(live)
    client.poll(0, 0)
    client.open_upload(run_id, names.LOG, 1, "g1")
    client.append(run_id, names.LOG, 1, "g1", 0, b"hello")
    with pytest.raises(OffsetConflict) as caught:
        client.append(run_id, names.LOG, 1, "g1", 2, b"hello")
    assert caught.value.offset == 5


def test_another_attempt_is_refused(live: LiveBridge, client: BridgeClient, tmp_path: Path) -> None:
    run_id = _queue(live)
    client.poll(0, 0)
    (tmp_path / "a").write_bytes(b"x")
    with pytest.raises(SupersededError):
        client.put(run_id, names.RESULTS, tmp_path / "a", 7)


def test_an_unknown_upload_is_none_and_an_unknown_run_not_found(live: LiveBridge, client: BridgeClient) -> None:
    run_id = _queue(live)
    client.poll(0, 0)
    assert client.offset(run_id, names.LOG, 1, "g1") is None
    with pytest.raises(NotFoundError):
        client.open_upload("pretrain-0999-abcdef", names.LOG, 1, "g1")


def test_a_wrong_key_is_a_pairing_error_that_does_not_show_it(live: LiveBridge, tmp_path: Path) -> None:
    home = paired_home(tmp_path / "other")
    right = live.bridge.pairing(f"http://127.0.0.1:{live.bridge.port}")
    home.save_pairing(Pairing(right.url, right.key_id, KEY, right.boot_sha256))
    with pytest.raises(PairingError) as caught:
        BridgeClient(home).poll(0, 0)
    assert home.pairing().encode()[4:40] not in f"{caught.value!r} {caught.value.hint}"


def test_nobody_there_is_a_transfer_error(tmp_path: Path) -> None:
    with pytest.raises(TransferError) as caught:
        BridgeClient(paired_home(tmp_path)).poll(0, 0)
    assert caught.value.retry and "does not answer" in caught.value.message


def test_a_forged_command_is_refused(tmp_path: Path) -> None:
    forged = signing.sign_document(b"x" * 32, "command", Command("i", 1, 1, "vm", "sh", "", 0.0).to_json())
    body = json.dumps({"commands": [forged]}).encode()
    with scripted_server(lambda request: reply(request, 200, body)) as url, pytest.raises(PairingError):
        BridgeClient(paired_home(tmp_path, url=url)).poll(0, 0)


def test_a_command_for_another_vm_is_dropped(tmp_path: Path) -> None:
    other = signing.sign_document(KEY, "command", Command("i", 1, 1, "vm-other", "sync", "", 0.0).to_json())
    body = json.dumps({"commands": [other]}).encode()
    with scripted_server(lambda request: reply(request, 200, body)) as url:
        assert BridgeClient(paired_home(tmp_path, url=url)).poll(0, 0) == []


def test_replayed_hints_are_refused(tmp_path: Path) -> None:
    old = signing.sign_document(KEY, "hints", {"reply_to": "an older nonce", "revoked": []})
    with scripted_server(lambda request: reply(request, 200, json.dumps(old).encode())) as url:
        client = BridgeClient(paired_home(tmp_path, url=url))
        with pytest.raises(PairingError, match="another request"):
            client.heartbeat(Heartbeat(client.vm_id, "boot", 0.0))


def test_a_tunnels_html_page_is_a_transfer_error(tmp_path: Path) -> None:
    with scripted_server(lambda request: reply(request, 200, b"<html>welcome</html>")) as url:
        with pytest.raises(TransferError, match="not JSON"):
            BridgeClient(paired_home(tmp_path, url=url)).poll(0, 0)


def test_a_slow_line_that_flows_is_no_timeout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vm_daemons.client.CONNECT_TIMEOUT_S", 1.0)
    (tmp_path / "a").write_bytes(bytes(24 << 20))
    pause = threading.Event()

    def take_slowly(request: http.server.BaseHTTPRequestHandler) -> None:
        left = int(request.headers["Content-Length"])
        while left > 0:
            left -= len(request.rfile.read(min(left, 1 << 20)))
            pause.wait(0.1)  # the whole takes over twice the timeout
        request.headers.replace_header("Content-Length", "0")
        reply(request, 201, b"{}")

    with scripted_server(take_slowly) as url:
        BridgeClient(paired_home(tmp_path / "vm", url=url)).put("train-0001-abc123", "artifacts/a", tmp_path / "a", 1)


def test_pauses_grow_to_their_limit_and_start_again() -> None:
    backoff = Backoff(0.2, 15.0)
    pauses = [backoff.next_s() for _ in range(12)]
    assert pauses[0] <= 0.2 and 10.0 <= pauses[-1] <= 15.0
    backoff.reset()
    assert backoff.next_s() <= 0.2
