"""A VM boots while the laptop is off: the payload from the store, signed by the laptop and checked to the last byte."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import tarfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bridge_client import LiveBridge, live_bridge
from bridgehead import files, names, signing
from bridgehead.errors import BridgeheadError, PairingError, TransferError, VerificationError
from bridgehead.pairing import Pairing
from bridgehead.records import StoreSpec, VmRules
from vm_daemons import boot, daemons, mounting, payload
from vm_daemons.client import BridgeClient
from vm_daemons.home import VmHome
from vm_daemons.storage import store_setup, stored_payload
from vm_daemons.storage.store import Store

DEAD = "http://127.0.0.1:9"


@pytest.fixture
def live(tmp_path: Path) -> Iterator[LiveBridge]:
    root = tmp_path / "project"
    (root / "data").mkdir(parents=True)
    (root / "data/a.txt").write_text("one")
    (root / "data/run.sh").write_text("#!/bin/sh\n")
    (root / "data/run.sh").chmod(0o755)
    with live_bridge(root) as bridge:
        yield bridge


@pytest.fixture
def pairing(live: LiveBridge) -> Pairing:
    return dataclasses.replace(live.bridge.pairing(f"http://127.0.0.1:{live.bridge.port}"))


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(names.ENV_STORE, str(tmp_path / "drive"))
    monkeypatch.setattr(daemons, "ensure", lambda _: dict.fromkeys(names.DAEMONS, "running"))
    monkeypatch.setattr(boot, "LAPTOP_FIRST_S", 0.0)
    monkeypatch.setattr(boot, "LAPTOP_PATIENCE_S", 0.0)
    # The project's one requirement is no business of these tests.
    monkeypatch.setattr("vm_daemons.requirements.install", lambda *_: None)


@pytest.fixture
def published(tmp_path: Path, live: LiveBridge, pairing: Pairing) -> Path:
    """What another VM has left in the store; the folder of its payload there."""
    home = VmHome(tmp_path / "dead")
    boot.boot(home, pairing.encode())
    folder = tmp_path / "drive/demo" / names.STORE_PAYLOAD
    folder.mkdir(parents=True)
    digest = home.record()["payload_sha256"]
    with tarfile.open(folder / f"{digest}.tar", "w") as archive:
        for name in ("data/a.txt", "data/run.sh"):
            archive.add(home.payload / name, name)
    (folder / f"{digest}.json").write_bytes((home.state / names.PAYLOAD_MANIFEST).read_bytes())
    return folder


def fresh(tmp_path: Path, pairing: Pairing, name: str = "vm") -> VmHome:
    home = VmHome(tmp_path / name)
    boot.boot(home, dataclasses.replace(pairing, url=DEAD).encode())
    return home


def test_the_payload_comes_from_the_store(
    tmp_path: Path, pairing: Pairing, published: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = fresh(tmp_path, pairing)
    assert (home.payload / "data/a.txt").read_text() == "one"
    assert os.access(home.payload / "data/run.sh", os.X_OK) and not os.access(home.payload / "data/a.txt", os.X_OK)
    record = home.record()
    assert (record["project"], record["payload_sha256"]) == ("demo", next(published.glob("*.tar")).stem)
    assert record["store"] == str(tmp_path / "drive")
    said = capsys.readouterr().out
    assert "the laptop does not answer: payload of demo from the store" in said and "ready after" in said


def test_it_can_be_published_again_from_there(tmp_path: Path, pairing: Pairing, published: Path) -> None:
    home = fresh(tmp_path, pairing)
    document = files.read_json(home.state / names.PAYLOAD_MANIFEST)
    assert document == json.loads(next(published.glob("*.json")).read_bytes())


def test_a_second_run_of_the_cell_needs_neither_laptop_nor_store(
    tmp_path: Path, pairing: Pairing, published: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fresh(tmp_path, pairing)
    for entry in published.iterdir():
        entry.unlink()
    fresh(tmp_path, pairing)
    assert "from this VM's own disk" in capsys.readouterr().out


def test_a_file_that_a_run_has_changed_comes_from_the_store_again(
    tmp_path: Path, pairing: Pairing, published: Path
) -> None:
    home = fresh(tmp_path, pairing)
    (home.payload / "data/a.txt").write_text("two")
    fresh(tmp_path, pairing)
    assert (home.payload / "data/a.txt").read_text() == "one"


def test_an_empty_store_is_no_laptop(tmp_path: Path, pairing: Pairing, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(TransferError, match="does not answer"):
        fresh(tmp_path, pairing)
    assert "The laptop is needed at the start" in capsys.readouterr().out


def test_of_several_payloads_the_newest_is_taken(
    tmp_path: Path, live: LiveBridge, pairing: Pairing, published: Path
) -> None:
    old = next(published.glob("*.json"))
    os.utime(old, (1.0, 1.0))
    (live.root / "data/a.txt").write_text("two")
    home = VmHome(tmp_path / "dead")
    payload.sync(BridgeClient(home), home)
    digest = home.record()["payload_sha256"]
    with tarfile.open(published / f"{digest}.tar", "w") as archive:
        for name in ("data/a.txt", "data/run.sh"):
            archive.add(home.payload / name, name)
    (published / f"{digest}.json").write_bytes((home.state / names.PAYLOAD_MANIFEST).read_bytes())
    assert (fresh(tmp_path, pairing).payload / "data/a.txt").read_text() == "two"


# --- a store that is not to be trusted ----------------------------------------------------------------------


def test_a_list_that_the_laptop_did_not_sign_is_not_used(tmp_path: Path, pairing: Pairing, published: Path) -> None:
    path = next(published.glob("*.json"))
    document = json.loads(path.read_bytes())
    document["body"]["requirements"] = ["evil"]
    path.write_bytes(files.canonical_json(document))
    with pytest.raises(TransferError):
        fresh(tmp_path, pairing)


def test_nor_is_one_of_another_ship_or_one_under_another_projects_name(
    tmp_path: Path, pairing: Pairing, published: Path
) -> None:
    path = next(published.glob("*.json"))
    body = json.loads(path.read_bytes())["body"]
    other = signing.sign_document(pairing.key, "manifest", {**body, "ship_sha256": "0" * 64})
    path.write_bytes(files.canonical_json(other))
    with pytest.raises(TransferError):
        fresh(tmp_path, pairing)
    path.write_bytes(files.canonical_json(signing.sign_document(pairing.key, "manifest", body)))
    published.parent.rename(published.parent.with_name("another"))
    with pytest.raises(TransferError):
        fresh(tmp_path, pairing)


@pytest.mark.parametrize("junk", [b"", b"[" * 100_000, b"\xff", b"null", b'{"kind": "manifest"}'])
def test_a_list_that_makes_no_sense_is_passed_over(
    tmp_path: Path, pairing: Pairing, published: Path, junk: bytes
) -> None:
    (published / f"{'e' * 64}.json").write_bytes(junk)
    assert (fresh(tmp_path, pairing).payload / "data/a.txt").read_text() == "one"


def _member(name: str, data: bytes = b"one", **changes: object) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    for key, value in changes.items():
        setattr(member, key, value)
    return member


def _archive(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for member, data in members:
            archive.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


SHELL = (_member("data/run.sh", b"#!/bin/sh\n"), b"#!/bin/sh\n")
HOSTILE: dict[str, Callable[[], bytes]] = {
    "a link": lambda: _archive((_member("data/a.txt", b"", type=tarfile.SYMTYPE, linkname="/etc/passwd"), b""), SHELL),
    "a hard link": lambda: _archive((_member("data/a.txt", b"", type=tarfile.LNKTYPE, linkname="data/run.sh"), b"")),
    "a device": lambda: _archive((_member("data/a.txt", b"", type=tarfile.CHRTYPE), b""), SHELL),
    "a fifo": lambda: _archive((_member("data/a.txt", b"", type=tarfile.FIFOTYPE), b""), SHELL),
    "a folder": lambda: _archive((_member("data/a.txt", b"", type=tarfile.DIRTYPE), b""), SHELL),
    "up and out": lambda: _archive((_member("../outside"), b"one"), SHELL),
    "an absolute path": lambda: _archive((_member("/tmp/outside"), b"one"), SHELL),
    "one more": lambda: _archive((_member("data/a.txt"), b"one"), SHELL, (_member("data/b.txt"), b"one")),
    "one twice": lambda: _archive((_member("data/a.txt"), b"one"), (_member("data/a.txt"), b"two"), SHELL),
    "one too few": lambda: _archive(SHELL),
    "other bytes": lambda: _archive((_member("data/a.txt", b"two"), b"two"), SHELL),
    "other size": lambda: _archive((_member("data/a.txt", b"three"), b"three"), SHELL),
    "too big": lambda: _archive((_member("data/a.txt"), b"one"), SHELL) + b"\0" * 2**20,
    "cut": lambda: _archive((_member("data/a.txt"), b"one"), SHELL)[:700],
    "no archive": lambda: b"PK\3\4" * 300,
    "compressed": lambda: b"\x1f\x8b" + b"\0" * 600,
    "empty": lambda: b"",
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_archive_brings_nothing_that_the_laptop_did_not_list(
    tmp_path: Path, pairing: Pairing, published: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    next(published.glob("*.tar")).write_bytes(HOSTILE[kind]())
    with pytest.raises(BridgeheadError):
        fresh(tmp_path, pairing)
    home = VmHome(tmp_path / "vm")
    genuine = {"data/a.txt": b"one", "data/run.sh": b"#!/bin/sh\n"}
    for path in home.payload.rglob("*"):
        assert path.is_dir() or path.read_bytes() == genuine[path.relative_to(home.payload).as_posix()]
    assert not (home.state / names.PAYLOAD_MANIFEST).exists()
    assert not (tmp_path / "outside").exists() and not Path("/tmp/outside").exists()
    said = capsys.readouterr().out
    assert "The laptop is needed at the start" in said and "Traceback" not in said


def test_a_damaged_archive_names_the_file(tmp_path: Path, pairing: Pairing, published: Path) -> None:
    next(published.glob("*.tar")).write_bytes(HOSTILE["other bytes"]())
    home = VmHome(tmp_path / "vm")
    home.create()
    home.save_pairing(pairing)
    with pytest.raises(VerificationError, match=r"data/a\.txt"):
        stored_payload.from_store(home, tmp_path / "drive")


# --- which store ----------------------------------------------------------------------------------------------


def _settled(home: VmHome, spec: StoreSpec) -> tuple[str, list[str]]:
    said: list[str] = []
    return store_setup.settle(home, spec.to_json(), said.append), said


def test_what_the_laptop_says_of_store_and_vm_is_kept(tmp_path: Path, pairing: Pairing, live: LiveBridge) -> None:
    home = VmHome(tmp_path / "vm")
    boot.boot(home, pairing.encode())
    assert StoreSpec.from_json(home.record()["store_spec"]) == StoreSpec()
    assert home.rules() == VmRules()


def test_a_folder_that_the_project_names_is_used(tmp_path: Path) -> None:
    home = VmHome(tmp_path / "vm")
    home.create()
    found, said = _settled(home, StoreSpec("folder", path=str(tmp_path / "disk")))
    assert (found, said) == (str(tmp_path / "disk"), [])
    assert home.store_path() == tmp_path / "disk"


def test_a_folder_that_can_not_be_used_is_said(tmp_path: Path) -> None:
    home = VmHome(tmp_path / "vm")
    home.create()
    (tmp_path / "file").write_text("")
    _, said = _settled(home, StoreSpec("folder", path=str(tmp_path / "file/below")))
    assert len(said) == 1 and "no durable store for now" in said[0] and "Not a directory" in said[0]


def test_a_store_that_can_not_be_used_at_the_moment_of_boot_stays_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or the VM would have none for its whole life, and nobody would hear of it."""
    home = VmHome(tmp_path / "vm")
    home.create()
    disk = tmp_path / "disk"
    disk.write_text("a plain file in its place")
    for spec in (StoreSpec("folder", path=str(disk)), StoreSpec("mount", path=str(disk))):
        assert _settled(home, spec)[0] == str(disk) and home.store_path() == disk
    monkeypatch.setenv(names.ENV_STORE, str(disk))
    assert _settled(home, StoreSpec())[0] == str(disk) and home.store_path() == disk
    assert "it is no folder" in Store(home).probe()["error"]
    disk.unlink()
    disk.mkdir()
    assert Store(home).probe()["ok"]


def test_a_folder_that_hangs_holds_up_no_boot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, go = VmHome(tmp_path / "vm"), threading.Event()
    home.create()
    monkeypatch.setattr(mounting, "TRY_OUT_TIMEOUT_S", 0.1)
    monkeypatch.setattr(mounting, "_try_out", lambda root: go.wait(100))
    try:
        found, said = _settled(home, StoreSpec("folder", path=str(tmp_path / "disk")))
    finally:
        go.set()
    assert found == str(tmp_path / "disk") and "has not answered" in said[0]


def test_a_folder_that_the_pairing_code_names_is_where_the_payload_comes_from(
    tmp_path: Path, pairing: Pairing, published: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "drive").rename(tmp_path / "disk")
    fresh(tmp_path, dataclasses.replace(pairing, store=str(tmp_path / "disk")))
    assert f"payload of demo from the store {tmp_path / 'disk'}" in capsys.readouterr().out


def test_credentials_from_secrets_are_kept_where_only_the_owner_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = VmHome(tmp_path / "vm")
    home.create()
    monkeypatch.setenv(names.SECRET_S3_KEY_ID, "id")
    monkeypatch.setenv(names.SECRET_S3_SECRET, "secret\n")
    found, said = _settled(home, StoreSpec("s3", bucket="runs"))
    path = home.state / names.VM_STORE_SECRETS
    assert files.read_json(path) == {"access_key_id": "id", "secret_access_key": "secret"}
    assert path.stat().st_mode & 0o077 == 0
    assert found == "s3 runs" and "secret" not in "".join(said) and home.record()["store"] == ""


def test_a_bucket_without_keys_is_said_at_boot_with_the_names_of_the_secrets(tmp_path: Path) -> None:
    home = VmHome(tmp_path / "vm")
    home.create()
    found, said = _settled(home, StoreSpec("s3", bucket="runs"))
    assert found == "s3 runs" and len(said) == 1
    assert said[0].startswith("WARNING: no durable store") and names.SECRET_S3_KEY_ID in said[0]


def test_a_drive_without_a_sign_in_is_said_at_boot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = VmHome(tmp_path / "vm")
    home.create()
    monkeypatch.setenv(names.SECRET_DRIVE, "no credentials file")
    _, said = _settled(home, StoreSpec("drive"))
    assert len(said) == 1 and names.SECRET_DRIVE in said[0] and "no credentials file" not in said[0]
    monkeypatch.setenv(names.SECRET_DRIVE, '{"token": "t"}')
    assert _settled(home, StoreSpec("drive"))[1] == []


# --- the laptop is there, at another address -----------------------------------------------------------------


def _announced(tmp_path: Path, live: LiveBridge, url: str) -> None:
    """What the laptop leaves in the store."""
    key_id, key = live.bridge.keys.current()
    folder = tmp_path / "drive/demo" / names.STORE_ADDRESS
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{key_id}.json").write_text(json.dumps(live.bridge.address.renew("demo", url).signed(key)))


def test_a_fresh_vm_with_an_old_code_finds_the_laptop_through_the_store(
    tmp_path: Path, live: LiveBridge, pairing: Pairing, capsys: pytest.CaptureFixture[str]
) -> None:
    _announced(tmp_path, live, pairing.url)
    home = fresh(tmp_path, pairing)
    said = capsys.readouterr().out
    host = f"127.0.0.1:{live.bridge.port}"
    assert f"the bridge moved to {host} (told by the store)" in said and "2 fetched" in said
    assert "the laptop does not answer" not in said and home.pairing().url == pairing.url


def test_a_vm_that_was_booted_before_finds_it_in_its_own_store(
    tmp_path: Path, live: LiveBridge, pairing: Pairing, capsys: pytest.CaptureFixture[str]
) -> None:
    home = VmHome(tmp_path / "vm")
    boot.boot(home, pairing.encode())
    _announced(tmp_path, live, pairing.url)
    fresh(tmp_path, pairing)
    said = capsys.readouterr().out
    assert "the bridge moved to" in said and "from this VM's own disk" not in said
    assert home.pairing().seq == live.bridge.address.seq_of(pairing.url)


def test_where_another_laptops_bridge_answers_by_now_the_store_is_asked_too(
    tmp_path: Path, live: LiveBridge, pairing: Pairing, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "other").mkdir()
    with live_bridge(tmp_path / "other") as other:
        wrong = dataclasses.replace(pairing, url=f"http://127.0.0.1:{other.bridge.port}")
        with pytest.raises(PairingError, match="does not accept"):
            boot.boot(VmHome(tmp_path / "vm"), wrong.encode())
        _announced(tmp_path, live, pairing.url)
        boot.boot(VmHome(tmp_path / "vm"), wrong.encode())
    assert "the bridge moved to" in capsys.readouterr().out


def test_an_address_that_leads_nowhere_either_does_not_keep_a_vm_from_booting_without_the_laptop(
    tmp_path: Path, live: LiveBridge, pairing: Pairing, published: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _announced(tmp_path, live, "http://127.0.0.1:10")
    home = fresh(tmp_path, pairing)
    said = capsys.readouterr().out
    assert "payload of demo from the store" in said and home.pairing().url == "http://127.0.0.1:10"
