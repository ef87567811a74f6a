"""Each of these once stopped or held up the bridge."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from pathlib import Path

import pytest

from bridge import bodies, raw_body
from bridge.ledger import Ledger
from bridge.upload_store import UPLOADS_FILE
from bridge_client import Client, LiveBridge, Uploader, live_bridge, project
from bridgehead import files, names, signing
from bridgehead.errors import VerificationError
from bridgehead.records import Heartbeat
from support import wait_until


@pytest.mark.parametrize("value", ["[" * 20_000, "[" * 600 + "]" * 600, "NaN", "1e999", "-Infinity"])
def test_a_value_that_no_reader_takes_is_one_rejected_line(live: LiveBridge, value: str) -> None:
    rows = live.bridge.ledger.take([(1, f"run:pretrain a={value}"), (2, "run:pretrain")], project())
    assert [row.state for row in rows] == ["rejected", names.RunState.QUEUED]
    assert "a is" in rows[0].reason


def test_a_line_that_breaks_our_own_code_does_not_hold_up_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(text: str) -> None:
        raise TypeError(text)

    ledger = Ledger(tmp_path / "ledger")
    monkeypatch.setattr("bridge.ledger_lines.parse_line", broken)
    (row,) = ledger.take([(1, "run:pretrain")], project())
    ledger.close()
    assert row.state == "rejected" and "report" in row.reason


def test_many_slow_uploads_hold_up_nobody_else(
    client: Client, live: LiveBridge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bodies, "STALL_S", 20.0)
    run_id = live.given_run()
    size = 2 * raw_body.FROM_BYTES
    with contextlib.ExitStack() as stack:
        for number in range(2 * raw_body.BODIES_MAX):
            target = Uploader(client, run_id, f"slow{number}").target
            headers = client.signed("PUT", target) | {"Content-Length": str(size)}
            stack.enter_context(client.half_sent("PUT", target, headers, bytes(1000)))
        assert client.get("/queue?vm=vm-other&after=0&wait=0").status == 200
        assert Uploader(client, run_id, "small").put(b"x").status == 201


def test_a_trickle_is_ended_by_the_whole_bodys_deadline(
    client: Client, live: LiveBridge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bodies, "STALL_S", 0.5)
    monkeypatch.setattr(raw_body, "MIN_BYTES_PER_S", 1e9)
    target = Uploader(client, live.given_run(), "trickle").target
    headers = client.signed("PUT", target) | {"Content-Length": str(2 * raw_body.FROM_BYTES)}
    with client.half_sent("PUT", target, headers, b"x") as sock:
        sock.settimeout(0.05)
        answer = b""
        for _ in range(200):
            with contextlib.suppress(TimeoutError):
                answer = sock.recv(100)
                break
            sock.sendall(b"x")
        assert answer.startswith(b"HTTP/1.1 408")


def test_a_created_of_400_digits_is_a_stranger(client: Client) -> None:
    headers = client.signed("GET", "/queue.txt")
    created = headers["Signature-Input"].partition("created=")[2].partition(";")[0]
    headers["Signature-Input"] = headers["Signature-Input"].replace(created, "9" * 400)
    assert client.send("GET", "/queue.txt", b"", headers).status == 401


@pytest.mark.parametrize("digest", ["sha-256=:" + "A" + "=" * 43 + ":", "sha-256=:" + "=" * 44 + ":"])
def test_a_digest_that_is_no_base64_is_none(digest: str) -> None:
    assert signing.parse_digest(digest) is None


def test_a_lone_surrogate_is_bad_input(client: Client) -> None:
    beat = files.canonical_json(Heartbeat("vm-abc123", "boot", 1.0, hostname="\ud800").to_json())
    assert client.ask("POST", "/vms/vm-abc123/heartbeat", beat).status == 400


def test_a_full_disk_under_the_ledger_is_507(client: Client, live: LiveBridge, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        error = sqlite3.OperationalError("database or disk is full")
        error.sqlite_errorcode = sqlite3.SQLITE_FULL
        raise error

    monkeypatch.setattr(live.bridge.ledger, "deliver", full)
    assert client.get("/queue?vm=vm-abc123&after=0&wait=0").status == 507


@pytest.mark.parametrize(
    "odd", ['"gpus": ["x"]', '"runs": [7]', '"load": NaN', '"started": Infinity', '"lifetime": {"age_s": 1e999}']
)
def test_a_heartbeat_that_the_status_table_could_not_show_is_refused(client: Client, odd: str) -> None:
    beat = json.dumps(Heartbeat("vm-aaaaaa", "b", 1.0).to_json())
    members = {name: value for name, value in json.loads(beat).items() if f'"{name}"' not in odd}
    body = f"{json.dumps(members)[:-1]}, {odd}}}".encode()
    assert client.ask("POST", "/vms/vm-aaaaaa/heartbeat", body).status == 400
    whole = json.dumps(members).encode()
    assert client.ask("POST", "/vms/vm-aaaaaa/heartbeat", whole).status == 200


def _stopped_after_a_line(root: Path) -> Path:
    """A project whose one line was taken, and its bridge stopped. Returns the ledger."""
    root.mkdir()
    (root / names.QUEUE_FILE).write_text("run:pretrain\n")
    with live_bridge(root) as live:
        wait_until(lambda: live.bridge.ledger.commands(), what="the line to be taken")
    return root / names.PRIVATE_FOLDER / names.LEDGER_FILE


def _lose(ledger: Path) -> None:
    for suffix in ("", "-wal", "-shm"):
        ledger.with_name(ledger.name + suffix).unlink(missing_ok=True)


def test_a_lost_ledger_does_not_run_the_queue_again(tmp_path: Path) -> None:
    root = tmp_path / "project"
    _lose(_stopped_after_a_line(root))
    with pytest.raises(VerificationError, match=r"1 lines of queue\.txt that were taken"), live_bridge(root):
        raise AssertionError("it came up")
    (root / names.QUEUE_FILE).write_text("# begun anew\n")
    with live_bridge(root) as live:
        assert live.bridge.ledger.commands() == []


def test_a_damaged_database_of_uploads_is_named_with_what_to_do(tmp_path: Path) -> None:
    root = tmp_path / "project"
    _stopped_after_a_line(root)
    database = root / names.PRIVATE_FOLDER / UPLOADS_FILE
    for suffix in ("-wal", "-shm"):
        database.with_name(database.name + suffix).unlink(missing_ok=True)
    database.write_bytes(b"\x07" * 4096)
    with pytest.raises(VerificationError, match="uploads.sqlite3 is damaged") as caught, live_bridge(root):
        raise AssertionError("it came up")
    assert "start again" in caught.value.hint
