"""The laptop's record of its bridge's address: numbers that never go back, and what VMs are told of it."""

from __future__ import annotations

import json
import stat
import time
from pathlib import Path

import pytest

from bridge.address_record import AddressRecord, Published
from bridge_client import VM, LiveBridge
from bridgehead import announcement, names, signing
from bridgehead.records import Heartbeat

URL, NEXT = "https://a.example", "https://b.example"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / names.ADDRESS


def test_each_address_has_a_higher_number_also_after_a_restart(path: Path) -> None:
    first = AddressRecord(path).renew("demo", URL)
    second = AddressRecord(path).renew("demo", NEXT)
    assert second.seq > first.seq and AddressRecord(path).newest() == second
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_clock_that_is_put_back_takes_no_number_back(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = AddressRecord(path)
    first = record.renew("demo", URL)
    monkeypatch.setattr(time, "time", lambda: 1000.0)
    assert record.renew("demo", NEXT).seq == first.seq + 1


def test_a_private_folder_that_was_restored_does_not_go_back(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = AddressRecord(path)
    record.renew("demo", URL)
    backup = path.read_bytes()
    later = record.renew("demo", NEXT)
    path.write_bytes(backup)
    now_s = time.time()
    monkeypatch.setattr(time, "time", lambda: now_s + 60)
    assert AddressRecord(path).renew("demo", URL).seq > later.seq


@pytest.mark.parametrize("text", ["", "{", "[]", '{"seq": "x"}', '{"v": 1, "seq": -5, "url": "x", "project": "d"}'])
def test_a_damaged_record_counts_as_none(path: Path, text: str) -> None:
    path.write_text(text)
    record = AddressRecord(path)
    assert record.newest() is None and record.published() == Published()
    assert record.renew("demo", URL).seq >= int(time.time()) - 60


def test_what_came_of_it_in_the_store_is_kept_for_the_newest_alone(path: Path) -> None:
    record = AddressRecord(path)
    first = record.renew("demo", URL)
    record.note(Published(first.seq, ["a store"]))
    assert AddressRecord(path).published() == Published(first.seq, ["a store"])
    second = record.renew("demo", NEXT)
    record.note(Published(first.seq, [], "late"))
    assert record.published() == Published() and record.newest() == second


def _hints(live: LiveBridge, known: int) -> dict[str, object]:
    client = live.client()
    beat = Heartbeat(VM, "boot", time.time(), address_seq=known)
    answer = client.ask("POST", f"{names.VMS_PREFIX}{VM}/heartbeat", json.dumps(beat.to_json()).encode())
    assert answer.status == 200
    return signing.open_document(client.key, "hints", answer.json)


def test_the_hints_tell_of_a_newer_address_and_only_of_a_newer_one(live: LiveBridge) -> None:
    assert announcement.KIND not in _hints(live, 0), "nothing has been announced"
    # Another process has announced it: this bridge is the one that still answers.
    told = AddressRecord(live.root / names.PRIVATE_FOLDER / names.ADDRESS).renew("demo", NEXT)
    document = _hints(live, told.seq - 1)[announcement.KIND]
    assert announcement.opened([live.client().key], document) == told
    assert announcement.KIND not in _hints(live, told.seq)


def test_a_pairing_code_bears_the_number_of_the_announced_address_alone(live: LiveBridge) -> None:
    assert live.bridge.pairing(URL).seq == 0
    told = live.bridge.address.renew("demo", URL)
    assert live.bridge.pairing(URL).seq == told.seq and live.bridge.pairing(NEXT).seq == 0
