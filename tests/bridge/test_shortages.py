"""What the laptop has no room for is known on the laptop, until it has arrived."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import pytest

from bridge.ledger import Ledger
from bridge.ledger_room import Shortage
from bridge.shortages import Shortages
from bridge_client import VM, Client, LiveBridge, Uploader
from bridgehead import names
from support import wait_until

FREE_BYTES = names.LAPTOP_RESERVE_BYTES + 100_000


@pytest.fixture
def small_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=FREE_BYTES))


def _paths(live: LiveBridge) -> list[tuple[str, int]]:
    live.bridge._shortages.flush()
    return [(item.path, item.wanted_bytes) for item in live.bridge.ledger.no_room()]


@pytest.mark.usefixtures("small_disk")
def test_one_artefact_that_has_no_room_is_known_until_it_arrives(live: LiveBridge, client: Client) -> None:
    run_id = live.given_run()
    big, log = (Uploader(client, run_id, name) for name in ("artifacts/big.bin", "log"))
    assert big.put(bytes(200_000)).status == big.put(bytes(200_000)).status == 507
    assert log.put(b"small").status == 201
    assert _paths(live) == [(f"{run_id}/artifacts/big.bin", 200_000)]
    assert live.bridge.ledger.no_room()[0].times == 2
    assert big.put(b"shrunk").status == 201
    assert _paths(live) == []


@pytest.mark.usefixtures("small_disk")
@pytest.mark.parametrize("in_parts", [False, True])
def test_an_upload_that_is_not_even_opened_counts(live: LiveBridge, client: Client, in_parts: bool) -> None:
    run_id = live.given_run()
    big = Uploader(client, run_id, "artifacts/big.bin")
    headers = {names.HEADER_GENERATION: "g", names.HEADER_COMPLETE: "?0", names.HEADER_LENGTH: "5000000"}
    body = b""
    if in_parts:
        headers[names.HEADER_PART_SIZE] = "5000000"
        body = bytes(32)
    assert client.ask("POST", big.target, body, headers).status == 507
    assert _paths(live) == [(f"{run_id}/artifacts/big.bin", 5_000_000)]


def test_one_that_was_opened_while_there_was_room_counts_too(
    live: LiveBridge, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = live.given_run()
    big = Uploader(client, run_id, "artifacts/big.bin")
    assert big.open("g", length=200_000).status == 201 and _paths(live) == []
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=FREE_BYTES))
    headers = {
        names.HEADER_GENERATION: "p",
        names.HEADER_COMPLETE: "?0",
        names.HEADER_LENGTH: "90000",
        names.HEADER_PART_SIZE: "90000",
    }
    assert client.ask("POST", Uploader(client, run_id, "artifacts/p.bin").target, bytes(32), headers).status == 201
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=names.LAPTOP_RESERVE_BYTES))
    assert client.ask("POST", Uploader(client, run_id, "artifacts/p.bin").target, bytes(32), headers).status == 201
    assert _paths(live) == [(f"{run_id}/artifacts/p.bin", 90_000)]


@pytest.mark.usefixtures("small_disk")
def test_a_batch_without_room_counts_as_small_files(live: LiveBridge, client: Client) -> None:
    run_id = live.given_run()
    target = f"/in/{run_id}/?vm={VM}&attempt=1"
    headers = {"Content-Type": names.BATCH_TYPE}
    assert client.ask("POST", target, bytes(200_000), headers).status == 507
    assert _paths(live) == [(f"{run_id}/", 200_000)]


def test_the_chores_bring_it_to_the_ledger(live: LiveBridge) -> None:
    live.bridge._shortages.note("run-1/x", 7)
    assert wait_until(live.bridge.ledger.no_room, 20)[0].path == "run-1/x"


def test_a_bridge_that_starts_anew_goes_on_and_forgets_what_has_arrived(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / names.LEDGER_FILE)
    ledger.set_no_room([Shortage("run-1/x", 7, 1, 1.0, 1.0), Shortage("run-1/y", 7, 1, 1.0, 1.0)])
    shortages = Shortages(ledger)
    shortages.arrived("run-1/x")
    shortages.arrived("run-1/never")
    shortages.flush()
    assert [item.path for item in ledger.no_room()] == ["run-1/y"]
    ledger.close()


def test_a_disk_too_full_for_the_note_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger(tmp_path / names.LEDGER_FILE)
    shortages = Shortages(ledger)
    shortages.note("run-1/x", 7)

    def full(_: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(ledger, "set_no_room", full)
        shortages.flush()
    shortages.flush()
    assert [item.path for item in ledger.no_room()] == ["run-1/x"]
    ledger.close()


def test_a_run_with_a_thousand_files_costs_fifty_lines(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / names.LEDGER_FILE)
    shortages = Shortages(ledger)
    for number in range(1000):
        shortages.note(f"run-1/{number}", 7)
    shortages.note("run-2/x", 7)
    shortages.flush()
    assert len(ledger.no_room()) == 51
    ledger.close()
