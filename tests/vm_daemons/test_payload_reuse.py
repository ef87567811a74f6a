"""What the VM has already is not fetched again; and a stage that runs meanwhile never sees half of a file."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bridge_client import LiveBridge, live_bridge
from bridgehead import blocks, files
from bridgehead.errors import TransferError
from vm_daemons import payload
from vm_daemons.client import BridgeClient
from vm_daemons.home import VmHome
from vm_daemons.payload_line import SAY_EVERY_S, Line
from vm_daemons.payload_shelf import Shelf
from vm_daemons.storage.pace import Bucket
from vm_support import paired_home

BLOCK = blocks.LEAST_BYTES
BIG = os.urandom(12 * BLOCK + 1000)


@pytest.fixture
def live(tmp_path: Path) -> Iterator[LiveBridge]:
    root = tmp_path / "project"
    (root / "data").mkdir(parents=True)
    with live_bridge(root) as bridge:
        yield bridge


@pytest.fixture
def data(live: LiveBridge) -> Path:
    return live.root / "data"


@pytest.fixture
def home(tmp_path: Path, live: LiveBridge) -> VmHome:
    return paired_home(tmp_path / "vm", live)


@pytest.fixture
def client(home: VmHome) -> BridgeClient:
    return BridgeClient(home)


def _counts(told: dict[str, Any]) -> tuple[int, int]:
    return told["fetched"], told["copied"]


@pytest.mark.parametrize("content", [b"small", BIG], ids=["small", "big"])
def test_a_renamed_file_is_not_fetched_again(client: BridgeClient, home: VmHome, data: Path, content: bytes) -> None:
    (data / "old").write_bytes(content)
    payload.sync(client, home)
    (data / "old").rename(data / "new")
    told = payload.sync(client, home)
    assert (_counts(told), told["fetched_bytes"]) == ((0, 1), 0)
    assert (home.payload / "data/new").read_bytes() == content and not (home.payload / "data/old").exists()


def test_two_files_that_swap_names_are_not_fetched_again(client: BridgeClient, home: VmHome, data: Path) -> None:
    (data / "a").write_bytes(b"one")
    (data / "b").write_bytes(b"two")
    payload.sync(client, home)
    (data / "a").rename(data / "c")
    (data / "b").rename(data / "a")
    (data / "c").rename(data / "b")
    assert payload.sync(client, home)["fetched_bytes"] == 0
    assert [(home.payload / "data" / name).read_bytes() for name in "ab"] == [b"two", b"one"]


def test_a_copy_is_not_fetched_and_shares_nothing_with_the_first(
    client: BridgeClient, home: VmHome, data: Path
) -> None:
    (data / "a").write_bytes(b"one")
    payload.sync(client, home)
    for name in ("b", "c"):
        (data / name).write_bytes(b"one")
    told = payload.sync(client, home)
    assert (_counts(told), told["fetched_bytes"]) == ((0, 2), 0)
    with (home.payload / "data/b").open("r+b") as handle:  # a stage writes into its copy
        handle.write(b"ONE")
    assert [(home.payload / "data" / name).read_bytes() for name in "abc"] == [b"one", b"ONE", b"one"]


def test_two_new_files_of_one_content_are_fetched_once(client: BridgeClient, home: VmHome, data: Path) -> None:
    for name in ("a", "b"):
        (data / name).write_bytes(BIG)
    assert len(BIG) <= payload.sync(client, home)["fetched_bytes"] < 2 * len(BIG)
    assert (home.payload / "data/a").read_bytes() == (home.payload / "data/b").read_bytes() == BIG


def test_a_rebuild_of_the_same_bytes_costs_nothing(client: BridgeClient, home: VmHome, data: Path) -> None:
    (data / "pack").write_bytes(BIG)
    payload.sync(client, home)
    (data / "pack").unlink()
    (data / "pack").write_bytes(BIG)
    told = payload.sync(client, home)
    assert (_counts(told), told["fetched_bytes"]) == ((0, 0), 0)


def test_the_version_before_comes_back_without_the_line(client: BridgeClient, home: VmHome, data: Path) -> None:
    for content in (b"one", b"two"):
        (data / "a").write_bytes(content)
        payload.sync(client, home)
    (data / "a").write_bytes(b"one")
    assert _counts(payload.sync(client, home)) == (0, 1)
    assert (home.payload / "data/a").read_bytes() == b"one"


def test_an_old_version_that_was_changed_on_the_vm_is_not_believed(
    client: BridgeClient, home: VmHome, data: Path
) -> None:
    (data / "a").write_bytes(b"one")
    payload.sync(client, home)
    with (home.payload / "data/a").open("r+b") as held:
        (data / "a").write_bytes(b"two")
        payload.sync(client, home)
        held.write(b"ONE")  # a stage had it open for writing
    (data / "a").write_bytes(b"one")
    assert _counts(payload.sync(client, home)) == (1, 0)
    assert (home.payload / "data/a").read_bytes() == b"one"


def _changed(content: bytes, *places: int) -> bytes:
    changed = bytearray(content)
    for place in places:
        changed[place] ^= 1
    return bytes(changed)


def test_of_a_big_file_only_the_blocks_that_changed_are_fetched(client: BridgeClient, home: VmHome, data: Path) -> None:
    (data / "pack").write_bytes(BIG)
    payload.sync(client, home)
    changed = _changed(BIG, 10, 5 * BLOCK, len(BIG) - 1) + b"and some more"
    (data / "pack").write_bytes(changed)
    told = payload.sync(client, home)
    assert (home.payload / "data/pack").read_bytes() == changed
    assert told["fetched_bytes"] < 2.5 * BLOCK  # two whole blocks and the short last one


def test_a_changed_file_under_another_name_is_fetched_by_its_blocks_too(
    client: BridgeClient, home: VmHome, data: Path
) -> None:
    (data / "pack-1").write_bytes(BIG)
    payload.sync(client, home)
    (data / "pack-2").write_bytes(_changed(BIG, 10))
    assert payload.sync(client, home)["fetched_bytes"] < 1.5 * BLOCK
    assert (home.payload / "data/pack-2").read_bytes() == _changed(BIG, 10)


def test_an_old_version_without_a_list_of_its_blocks_serves_as_well(
    client: BridgeClient, home: VmHome, data: Path
) -> None:
    (home.payload / "data").mkdir()
    (home.payload / "data/pack").write_bytes(BIG)  # as from the store, while the laptop was off
    (data / "pack").write_bytes(_changed(BIG, 10))
    assert payload.sync(client, home)["fetched_bytes"] < 1.5 * BLOCK
    assert (home.payload / "data/pack").read_bytes() == _changed(BIG, 10)


def test_an_old_version_that_was_changed_in_secret_is_found_out(client: BridgeClient, home: VmHome, data: Path) -> None:
    (data / "pack").write_bytes(BIG)
    payload.sync(client, home)
    path = home.payload / "data/pack"
    stamp = path.stat().st_mtime_ns
    with path.open("r+b") as handle:
        handle.seek(7 * BLOCK)
        handle.write(b"not what it was")
    os.utime(path, ns=(stamp, stamp))
    (data / "pack").write_bytes(_changed(BIG, 10))
    assert payload.sync(client, home)["fetched_bytes"] < 2.5 * BLOCK  # the one that changed, and the one that lied
    assert path.read_bytes() == _changed(BIG, 10)


def test_after_a_boot_files_are_read_before_they_are_believed(client: BridgeClient, home: VmHome, data: Path) -> None:
    (data / "a").write_bytes(b"one")
    payload.sync(client, home)
    path, record = home.payload / "data/a", home.state / "payload.json"
    stamp = path.stat().st_mtime_ns
    path.write_bytes(bytes(3))  # as a power cut leaves what was never fsynced
    os.utime(path, ns=(stamp, stamp))
    files.write_json(record, {**files.read_json(record), "boot_id": "another"})
    assert _counts(payload.sync(client, home)) == (1, 0)
    assert path.read_bytes() == b"one"


def test_the_shelf_gives_up_old_versions_when_room_is_short(
    client: BridgeClient, home: VmHome, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for content in (b"one", b"two"):
        (data / "a").write_bytes(content)
        payload.sync(client, home)
    assert Shelf(home).room_made(2**62, set()) < 2**62
    assert [path for path in (home.state / "content").iterdir() if path.suffix != ".blocks"] == []


def test_old_versions_beyond_the_limit_go(
    client: BridgeClient, home: VmHome, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vm_daemons.payload_shelf.KEPT_MAX_BYTES", 5)
    for content in (b"one", b"two", b"six"):
        (data / "a").write_bytes(content)
        payload.sync(client, home)
    assert [path.read_bytes() for path in (home.state / "content").iterdir()] == [b"two"]


def test_a_disk_that_fills_up_is_told_and_the_old_payload_stays(
    client: BridgeClient, home: VmHome, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (data / "a").write_bytes(b"one")
    payload.sync(client, home)
    (data / "a").write_bytes(b"two")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Shelf, "add", full)
    with pytest.raises(TransferError, match="disk is full") as caught:
        payload.sync(client, home)
    assert caught.value.hint and (home.payload / "data/a").read_bytes() == b"one"


# --- beside running stages -----------------------------------------------------------------------------

_HOLDER = """\
import sys
with open(sys.argv[1], "rb") as held:
    print("open", flush=True)
    sys.stdin.readline()
    print(len(held.read()), flush=True)
"""


@pytest.mark.parametrize("gone", [False, True], ids=["changed", "dropped"])
def test_a_stage_keeps_the_file_that_it_has_open(client: BridgeClient, home: VmHome, data: Path, gone: bool) -> None:
    (data / "pack").write_bytes(BIG)
    payload.sync(client, home)
    argv = [sys.executable, "-c", _HOLDER, str(home.payload / "data/pack")]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as stage:
        assert stage.stdin is not None and stage.stdout is not None
        assert stage.stdout.readline() == "open\n"
        if gone:
            (data / "pack").unlink()
        else:
            (data / "pack").write_bytes(BIG[: 9 * BLOCK])
        payload.sync(client, home)
        stage.stdin.write("\n")
        stage.stdin.flush()
        assert int(stage.stdout.readline()) == len(BIG)


_IMPORTER = """\
import importlib, pathlib, sys
sys.path.insert(0, sys.argv[1])
sys.dont_write_bytecode = True
stop, count = pathlib.Path(sys.argv[2]), 0
while not stop.exists():
    importlib.invalidate_caches()
    sys.modules.pop("lazy", None)
    lazy = importlib.import_module("lazy")
    assert lazy.BEGIN == lazy.END, "half of one version and half of another"
    assert len(lazy.FILLING) == 200_000
    count += 1
    if count == 1:
        print("running", flush=True)
print(count, flush=True)
"""


def _module(number: int) -> str:
    return f"BEGIN = {number}\nFILLING = '{'x' * 200_000}'\nEND = {number}\n"


def test_a_stage_that_imports_lazily_sees_whole_modules_alone(
    client: BridgeClient, home: VmHome, data: Path, tmp_path: Path
) -> None:
    (data / "lazy.py").write_text(_module(0))
    payload.sync(client, home)
    argv = [sys.executable, "-c", _IMPORTER, str(home.payload / "data"), str(tmp_path / "stop")]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as stage:
        assert stage.stdout is not None
        try:
            assert stage.stdout.readline() == "running\n"
            for number in range(1, 12):
                (data / "lazy.py").write_text(_module(number % 3))
                payload.sync(client, home)
        finally:
            (tmp_path / "stop").touch()
        assert int(stage.stdout.readline()) > 1
    assert stage.returncode == 0


def test_a_payload_changes_only_once_all_of_it_is_here(
    client: BridgeClient, home: VmHome, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (data / "code.py").write_bytes(b"old")
    (data / "pack").write_bytes(BIG)
    payload.sync(client, home)
    (data / "code.py").write_bytes(b"new")
    (data / "pack").write_bytes(BIG[::-1])
    monkeypatch.setattr("vm_daemons.payload_line.TRIES", 1)
    monkeypatch.setattr("vm_daemons.payload_ranges.TRIES", 1)
    monkeypatch.setattr(client, "content", lambda *_: (_ for _ in ()).throw(TransferError("cut")))
    with pytest.raises(TransferError, match="cut"):
        payload.sync(client, home)
    assert (home.payload / "data/code.py").read_bytes() == b"old"
    monkeypatch.undo()
    payload.sync(client, home)
    assert (home.payload / "data/code.py").read_bytes() == b"new"
    assert (home.payload / "data/pack").read_bytes() == BIG[::-1]


# --- what the cell hears ------------------------------------------------------------------------------


def test_progress_is_a_line_a_minute_with_bytes_rate_and_time_to_go() -> None:
    said: list[str] = []
    now = [0.0]
    line = Line(100 * 2**20, said.append, clock=lambda: now[0])
    for _ in range(100):
        now[0] += 2.0
        line.took(2**19)
        line.done(2**19)
    assert said[0] == "payload: 2 of 100 MiB, 0.2 MiB/s, 6m30s to go"
    assert len(said) == 1 + int((200 - 10) // SAY_EVERY_S)


def test_a_limit_is_kept() -> None:
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    line = Line(10**8, limit=Bucket(10**6, 250_000, clock=lambda: now[0], sleep=sleep))
    for _ in range(10):
        line.took(10**6)
    assert 9.5 < now[0] < 10.0


def test_the_projects_limit_is_told_to_the_vm(live: LiveBridge, client: BridgeClient) -> None:
    assert client.manifest_document()["body"]["down_mb_s"] == 0.0
