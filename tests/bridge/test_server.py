"""The bridge as a whole: queue, acks, heartbeats, start and stop, and what outlives it."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from bridge.server import Bridge, BridgeSettings
from bridge_client import STAGE, VM, Answer, Client, LiveBridge, Uploader, live_bridge, project
from bridgehead import files, names, pairing, signing
from bridgehead.errors import BridgeDownError
from bridgehead.names import Ack
from bridgehead.records import AckRecord, Command, Heartbeat, VmRules
from support import wait_until


def poll(client: Client, after: int = 0, wait: int = 0, vm: str = VM) -> list[Command]:
    answer = client.get(f"/queue?vm={vm}&after={after}&wait={wait}")
    assert answer.status == 200
    documents = answer.json["commands"]
    return [Command.from_json(signing.open_document(client.key, "command", document)) for document in documents]


def post(client: Client, target: str, record: Any) -> Answer:
    return client.ask("POST", target, files.canonical_json(record), {"Content-Type": "application/json"})


class Poller(threading.Thread):
    """One long poll under way."""

    def __init__(self, client: Client, wait: int) -> None:
        super().__init__(daemon=True)
        self.ask = (client, 0, wait)
        self.commands: list[Command] | None = None
        self.start()

    def run(self) -> None:
        self.commands = poll(*self.ask)


# --- commands ------------------------------------------------------------------------------------


def test_a_line_of_the_file_reaches_the_vm_as_a_signed_command(client: Client, live: LiveBridge) -> None:
    poller = Poller(client, 20)
    (live.root / names.QUEUE_FILE).write_text(f"run:{STAGE} epochs=3\n")
    poller.join(100)
    assert poller.commands is not None
    (command,) = poller.commands
    assert (command.verb, command.argument, command.vm_id, command.seq) == ("run", STAGE, VM, 1)
    assert command.spec is not None and command.spec.config == {"epochs": 3}


def test_what_is_there_is_given_at_once_and_again_until_it_is_known(client: Client, live: LiveBridge) -> None:
    live.bridge.ledger.take([(1, "sync:"), (2, "sync:")], project())
    first = poll(client, wait=20)
    assert [command.seq for command in first] == [1, 2]
    assert poll(client) == first
    assert poll(client, after=first[0].delivery) == first[1:]
    assert poll(client, after=first[1].delivery) == []


def test_a_poll_ends_empty_after_its_wait(tmp_path: Path) -> None:
    with live_bridge(tmp_path, long_poll_max_s=0.2) as live:
        assert poll(live.client(), wait=25) == []


def test_a_poll_whose_caller_hung_up_takes_no_command(client: Client, live: LiveBridge) -> None:
    target = "/queue?vm=vm-gone&after=0&wait=20"
    with client.half_sent("GET", target, client.signed("GET", target), b""):
        wait_until(lambda: [vm.vm_id for vm in live.bridge.ledger.vms()] == ["vm-gone"], what="the poll to wait")
    assert client.get("/queue.txt").status == 200  # sent after the hang-up, so the bridge has seen that too
    live.bridge.ledger.take([(1, f"run:{STAGE}")], project())
    assert [command.vm_id for command in poll(client, wait=20)] == [VM]


@pytest.mark.parametrize(
    "query", ["", "?vm=vm-1&after=x", "?vm=vm-1&after=-1", "?vm=../x&after=0", "?after=0", "?vm=vm-1&after=0&wait=1e9"]
)
def test_a_poll_that_makes_no_sense_is_refused(client: Client, query: str) -> None:
    answer = client.get("/queue" + query)
    assert (answer.status, answer.code) == (400, "usage")


def test_the_queue_can_be_read_as_text(client: Client, live: LiveBridge) -> None:
    assert client.get("/queue.txt").body == b""
    (live.root / names.QUEUE_FILE).write_bytes("# für später\r\n".encode())
    answer = client.get("/queue.txt")
    assert (answer.body.decode(), answer.headers["Content-Type"]) == ("# für später\r\n", "text/plain; charset=utf-8")


# --- acks and heartbeats -----------------------------------------------------------------------------


def test_an_ack_reaches_the_ledger_and_can_be_repeated(client: Client, live: LiveBridge) -> None:
    live.given_run()
    (command,) = poll(client)
    record = AckRecord(VM, Ack.FINISHED, 1, exit_code=0, state="done").to_json()
    for _ in range(2):
        assert post(client, f"/queue/{command.id}/ack", record).status == 204
    assert live.bridge.ledger.commands()[0].state == "done"


def test_an_ack_of_another_vm_is_superseded_and_of_nothing_unknown(client: Client, live: LiveBridge) -> None:
    live.given_run()
    (command,) = poll(client)
    record = AckRecord("vm-other", Ack.STARTED, 1).to_json()
    answer = post(client, f"/queue/{command.id}/ack", record)
    assert (answer.status, answer.code) == (409, "superseded")
    assert post(client, f"/queue/{'0' * 32}/ack", record).status == 404


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"[" * 100_000, b'{"vm_id": 1}', b'{"v": 99}', b"\xff"])
def test_a_body_that_is_no_record_is_refused(client: Client, live: LiveBridge, body: bytes) -> None:
    live.given_run()
    (command,) = poll(client)
    assert client.ask("POST", f"/queue/{command.id}/ack", body).status == 400
    assert client.ask("POST", f"/vms/{VM}/heartbeat", body).status == 400


def test_a_heartbeat_is_answered_with_hints_for_the_very_request(client: Client, live: LiveBridge) -> None:
    run_id = live.given_run()
    runs = [{"run_id": run_id, "state": "running", "attempt": attempt} for attempt in (0, 1)]
    body = files.canonical_json(Heartbeat(VM, "boot", time.time(), runs=runs).to_json())
    target = f"/vms/{VM}/heartbeat"
    headers = client.signed("POST", target, body, nonce="this-very-request")
    hints = signing.open_document(client.key, "hints", client.send("POST", target, body, headers).json)
    assert hints["reply_to"] == "this-very-request"
    assert hints["revoked"] == [{"run_id": run_id, "attempt": 0}]
    assert hints["heartbeat_s"] > 0


def test_a_heartbeat_speaks_for_its_own_vm(client: Client) -> None:
    assert post(client, "/vms/vm-other/heartbeat", Heartbeat(VM, "boot", 0.0).to_json()).status == 400


@pytest.mark.parametrize("target", ["/queue", "/queue/x/ack", "/vms/a/b/heartbeat", "/serve/boot.zip", "/queue.txt"])
def test_there_is_nothing_else_to_post_to(client: Client, target: str) -> None:
    assert client.ask("POST", target, b"{}").status == 404


def test_the_runs_of_a_silent_vm_are_offered_to_the_next(tmp_path: Path) -> None:
    impatient = dataclasses.replace(project(), vm=VmRules(lost_after_s=0.5))
    with live_bridge(tmp_path, load_project=lambda: impatient) as live:
        run_id = live.given_run("vm-first")
        commands = wait_until(lambda: poll(live.client(), vm="vm-second"), 20, what="the run to be offered again")
        assert [(command.run_id, command.attempt) for command in commands] == [(run_id, 2)]


def test_a_vm_whose_requests_are_refused_is_unpaired_and_not_silent(tmp_path: Path) -> None:
    impatient = dataclasses.replace(project(), vm=VmRules(lost_after_s=1.0))
    with live_bridge(tmp_path, load_project=lambda: impatient) as live:
        live.given_run()
        client, target = live.client(), f"/queue?vm={VM}&after=0&wait=0"
        seen = live.bridge.ledger.vms()[0].last_seen
        deadline = time.monotonic() + 2.5
        while time.monotonic() < deadline:
            stale = client.signed("GET", target, created=int(time.time()) - 3600)
            assert client.send("GET", target, b"", stale).status == 401
        vm = live.bridge.ledger.vms()[0]
        assert (vm.state, vm.unpaired, vm.last_seen) == ("live", True, seen)
        assert live.bridge.ledger.commands()[0].vm_id == VM
        wait_until(lambda: live.bridge.ledger.vms()[0].state == "silent", what="the end of its requests")


def test_a_stranger_with_a_key_id_of_his_own_keeps_no_vm_alive(client: Client, live: LiveBridge) -> None:
    live.given_run()
    stranger = dataclasses.replace(client, key_id="k-stranger")
    assert stranger.get(f"/queue?vm={VM}&after=0&wait=0").status == 401
    assert not live.bridge.ledger.vms()[0].unpaired


# --- start and stop --------------------------------------------------------------------------------------


def test_a_taken_port_is_said_so(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(BridgeDownError, match=f"port {port} of 127.0.0.1 is taken") as caught:
            asyncio.run(Bridge(BridgeSettings(tmp_path, project, port=port)).start())
    assert "bridgehead down" in caught.value.hint
    assert list(tmp_path.iterdir()) == []


def test_only_this_machine_can_connect(live: LiveBridge) -> None:
    with socket.create_connection(("127.0.0.1", live.bridge.port)):
        pass
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.2", live.bridge.port), timeout=5)


def test_stopping_answers_the_polls_that_wait(tmp_path: Path) -> None:
    with live_bridge(tmp_path) as live:
        poller = Poller(live.client(), 25)
        wait_until(live.bridge.ledger.vms, what="the poll to wait")
        live.call(live.bridge.stop())
        poller.join(100)
        assert poller.commands == []
        live.call(live.bridge.stop())  # nothing happens


def test_everything_goes_on_after_a_restart(tmp_path: Path) -> None:
    with live_bridge(tmp_path) as live:
        client, run_id = live.client(), live.given_run()
        log, big = Uploader(client, run_id, "log"), Uploader(client, run_id, "model")
        log.open("1")
        log.patch("1", 0, b"before ")
        big.open("1", length=10)
        big.patch("1", 0, b"12345")
        used = client.signed("GET", "/queue.txt")
        assert client.send("GET", "/queue.txt", b"", used).status == 200
        commands = poll(client)
    with live_bridge(tmp_path) as live:
        client.port = live.bridge.port
        assert client.send("GET", "/queue.txt", b"", used).status == 401
        assert log.patch("1", 7, b"after").status == 204
        assert big.patch("1", 5, b"67890", last=True).status == 204
        assert poll(client) == commands
        assert (live.arrivals / run_id / "log").read_bytes() == b"before after"
        assert (live.arrivals / run_id / "model").read_bytes() == b"1234567890"


def test_a_log_cut_by_a_kill_goes_on_from_its_size(tmp_path: Path) -> None:
    with live_bridge(tmp_path) as live:
        client, run_id = live.client(), live.given_run()
        log = Uploader(client, run_id, "log")
        log.open("1")
        log.patch("1", 0, b"0123456789")
    os.truncate(tmp_path / names.IN_FOLDER / run_id / "log", 6)  # as if the write had been cut there
    with live_bridge(tmp_path) as live:
        client.port = live.bridge.port
        assert log.open("1").headers[names.HEADER_OFFSET] == "6"
        assert log.patch("1", 6, b"6789").status == 204
        assert (live.arrivals / run_id / "log").read_bytes() == b"0123456789"


def test_what_a_killed_bridge_left_is_swept_at_the_next_start(tmp_path: Path) -> None:
    folder = tmp_path / names.IN_FOLDER / "pretrain-0001-aaaaaa"
    folder.mkdir(parents=True)
    (folder / f"{files.TEMP_PREFIX}just-now").write_bytes(b"half")
    (folder / names.LOG).write_bytes(b"whole")
    with live_bridge(tmp_path):
        assert [path.name for path in folder.iterdir()] == [names.LOG]


def test_the_pairing_code_holds_what_a_vm_needs(live: LiveBridge) -> None:
    read = pairing.decode(live.bridge.pairing("https://example.trycloudflare.com").encode())
    assert (read.key_id, read.key) == live.bridge.keys.current()
    assert (read.boot_sha256, read.store) == (live.bridge.boot_sha256, "")
    key_file = live.root / names.PRIVATE_FOLDER / names.KEYS_FILE
    assert key_file.stat().st_mode & 0o077 == 0
    assert key_file.parent.stat().st_mode & 0o077 == 0


def test_a_bug_is_answered_without_its_traceback(
    client: Client, live: LiveBridge, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a detail")

    monkeypatch.setattr(live.bridge.ledger, "deliver", broken)
    with caplog.at_level(logging.ERROR):
        answer = client.get(f"/queue?vm={VM}&after=0&wait=0")
    assert (answer.status, answer.code) == (500, "internal")
    assert b"detail" not in answer.body and b"Traceback" not in answer.body
    assert "a detail" in caplog.text
    assert client.key.hex() not in caplog.text and client.signed("GET", "/x")["Signature"] not in caplog.text
