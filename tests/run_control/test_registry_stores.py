"""The registry in an object store and in Drive: two laptops that write at once lose nothing and agree on one order."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cli_process import in_process

from bridgehead import names
from doubles.drive_v3 import DriveServer
from doubles.google_cloud import Cloud
from drive_rig import drive_api, token_file
from registry_support import TRAIN, Lab
from run_control.project import Project
from run_control.registry import catalog, entries
from run_control.registry.entries import Entry, Kind
from run_control.registry.journal import Draft, Journal
from s3_rig import BUCKET, KEYS, s3_endpoint, store_at
from vm_daemons.storage.objects import ObjectStore

EACH = 3
PREFIX = "watch/registry"


@pytest.fixture
def s3() -> Iterator[str]:
    with s3_endpoint() as url:
        yield url


@pytest.fixture
def drive(tmp_path: Path) -> Iterator[DriveServer]:
    with DriveServer(Cloud(tmp_path / "cloud")) as running:
        yield running


def _two_write(tmp_path: Path, open_store: Callable[[], ObjectStore]) -> list[Entry]:
    """Two laptops, each with its own client, write EACH entries; what a third one reads."""
    failed: list[Exception] = []

    def write(laptop: str) -> None:
        mine = Journal(tmp_path / laptop, open_store(), PREFIX, laptop, claim_s=300.0, wait_s=100.0)
        try:
            for number in range(EACH):
                mine.append(lambda _: Draft(Kind.REGISTER, f"{laptop}.{number}", {"name": "m"}))  # noqa: B023
        except Exception as error:  # noqa: BLE001 - a thread's edge
            failed.append(error)

    threads = [threading.Thread(target=write, args=(laptop,)) for laptop in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    store = open_store()
    assert not [token for seq in store.list(f"{PREFIX}/claims") for token in store.list(f"{PREFIX}/claims/{seq}")]
    return Journal(tmp_path / "three", store, PREFIX, "three").entries()


def _is_whole(found: list[Entry]) -> bool:
    return sorted(entry.model for entry in found) == [f"{one}.{n}" for one in ("one", "two") for n in range(EACH)]


def test_two_writers_on_s3_lose_nothing_and_share_one_order(s3: str, tmp_path: Path) -> None:
    found = _two_write(tmp_path, lambda: store_at(s3))
    assert _is_whole(found) and [entry.seq for entry in found] == list(range(1, 2 * EACH + 1))
    assert entries.check_chain(found) == []


def test_two_writers_on_drive_lose_nothing_and_share_one_order(drive: DriveServer, tmp_path: Path) -> None:
    token = token_file(tmp_path)
    found = _two_write(tmp_path, lambda: drive_api(drive, token))
    assert _is_whole(found) and [entry.seq for entry in found] == list(range(1, 2 * EACH + 1))
    assert entries.check_chain(found) == []


def test_on_a_drive_that_lists_late_nothing_is_lost_either(drive: DriveServer, tmp_path: Path) -> None:
    """Claims may not see each other then: two entries can get one number, and both stay in an order that all share."""
    drive.list_lag_s, token = 0.3, token_file(tmp_path)
    _two_write(tmp_path, lambda: drive_api(drive, token))
    drive.list_lag_s = 0.0
    orders = []
    for reader in ("one", "two", "four"):
        found = Journal(tmp_path / reader, drive_api(drive, token), PREFIX, reader).entries()
        assert _is_whole(found)
        orders.append([entry.digest for entry in found])
    assert orders[0] == orders[1] == orders[2]


def test_a_model_climbs_in_a_bucket_and_another_laptop_sees_it(
    s3: str, fresh: Project, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = f'\n[store]\nkind = "s3"\nbucket = "{BUCKET}"\nendpoint = "{s3}"\n'
    fresh.file.write_text(fresh.file.read_text() + store)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEYS["access_key_id"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", KEYS["secret_access_key"])
    lab = Lab(fresh)
    lab.train()
    lab.judge()
    where = ("-C", str(fresh.root))
    assert in_process(capsys, *where, "promote", TRAIN, "--to", "benchmarked", "--json").data["state"] == "benchmarked"
    assert not list(fresh.drive.iterdir())  # all of it is in the bucket
    other = Journal(tmp_path / "other", store_at(s3), f"{fresh.root.name}/registry", "other")
    [model] = catalog.replay(other.entries()).models.values()
    assert model.run_id == TRAIN and model.state is catalog.State.BENCHMARKED
    other.fetch(model.artifacts[0]["sha256"], tmp_path / names.CLASSIFIER_WEIGHTS)
