"""The payload folder follows the manifest of a real bridge."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bridge_client import LiveBridge, live_bridge
from bridgehead.errors import TransferError, UsageError, VerificationError
from vm_daemons import payload
from vm_daemons.client import BridgeClient
from vm_daemons.home import VmHome
from vm_support import paired_home


@pytest.fixture
def live(tmp_path: Path) -> Iterator[LiveBridge]:
    root = tmp_path / "project"
    (root / "data/deep").mkdir(parents=True)
    (root / "data/a.txt").write_text("one")
    (root / "data/deep/b.sh").write_text("#!/bin/sh\n")
    (root / "data/deep/b.sh").chmod(0o755)
    (root / "data/empty").write_text("")
    with live_bridge(root) as bridge:
        yield bridge


@pytest.fixture
def home(tmp_path: Path, live: LiveBridge) -> VmHome:
    return paired_home(tmp_path / "vm", live)


@pytest.fixture
def client(home: VmHome) -> BridgeClient:
    return BridgeClient(home)


def test_all_arrives_with_its_mode(client: BridgeClient, home: VmHome, live: LiveBridge) -> None:
    told = payload.sync(client, home)
    assert (told["files"], told["fetched"], told["project"], told["requirements"]) == (3, 3, "demo", ["numpy"])
    assert told["ship_sha256"] == live.bridge.boot_sha256
    assert home.record()["payload_sha256"] == told["payload_sha256"]
    assert (home.payload / "data/a.txt").read_text() == "one"
    assert (home.payload / "data/empty").read_bytes() == b""
    assert os.access(home.payload / "data/deep/b.sh", os.X_OK) and not os.access(home.payload / "data/nope", os.F_OK)


def test_only_what_changed_is_fetched(client: BridgeClient, home: VmHome, live: LiveBridge) -> None:
    payload.sync(client, home)
    assert payload.sync(client, home)["fetched"] == 0
    (live.root / "data/a.txt").write_text("two")
    assert payload.sync(client, home)["fetched"] == 1
    assert (home.payload / "data/a.txt").read_text() == "two"


def test_a_file_changed_on_the_vm_is_put_right(client: BridgeClient, home: VmHome) -> None:
    payload.sync(client, home)
    (home.payload / "data/a.txt").write_text("two")  # same size
    assert payload.sync(client, home)["fetched"] == 1
    assert (home.payload / "data/a.txt").read_text() == "one"


def test_a_dropped_file_goes_and_a_foreign_one_stays(client: BridgeClient, home: VmHome, live: LiveBridge) -> None:
    payload.sync(client, home)
    (home.payload / "data/made-on-the-vm").write_text("mine")
    (live.root / "data/deep/b.sh").unlink()
    assert payload.sync(client, home)["removed"] == 1
    assert not (home.payload / "data/deep").exists()
    assert (home.payload / "data/made-on-the-vm").read_text() == "mine"


def test_a_file_may_become_a_folder(client: BridgeClient, home: VmHome, live: LiveBridge) -> None:
    payload.sync(client, home)
    (live.root / "data/a.txt").unlink()
    (live.root / "data/a.txt").mkdir()
    (live.root / "data/a.txt/inner").write_text("x")
    payload.sync(client, home)
    assert (home.payload / "data/a.txt/inner").read_text() == "x"


def test_a_folder_of_the_vm_in_the_way_is_said(client: BridgeClient, home: VmHome) -> None:
    (home.payload / "data/a.txt").mkdir(parents=True)
    with pytest.raises(VerificationError, match=r"data/a\.txt"):
        payload.sync(client, home)


def _with_manifest(client: BridgeClient, monkeypatch: pytest.MonkeyPatch, relative: str, **changes: Any) -> None:
    document = client.manifest_document()
    for entry in document["body"]["files"]:
        if entry["path"] == relative:
            entry.update(changes)
    monkeypatch.setattr(client, "manifest_document", lambda: document)


def test_a_wrong_hash_names_the_file_and_keeps_the_old_one(
    client: BridgeClient, home: VmHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    payload.sync(client, home)
    _with_manifest(client, monkeypatch, "data/a.txt", sha256="0" * 64)
    with pytest.raises(VerificationError, match=r"data/a\.txt"):
        payload.sync(client, home)
    assert (home.payload / "data/a.txt").read_text() == "one"


def test_a_path_out_of_the_folder_is_refused(
    client: BridgeClient, home: VmHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    _with_manifest(client, monkeypatch, "data/a.txt", path="../outside")
    with pytest.raises(UsageError):
        payload.sync(client, home)
    assert not (home.root / "outside").exists()


def test_no_room_is_said_before_anything_is_fetched(
    client: BridgeClient, home: VmHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    _with_manifest(client, monkeypatch, "data/a.txt", size=2**60)
    with pytest.raises(TransferError, match="MiB free"):
        payload.sync(client, home)
    assert list(home.payload.iterdir()) == []
