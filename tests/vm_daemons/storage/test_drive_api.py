"""Objects in Google Drive: whole under their keys, confirmed by Drive's own digests, nobody else's files touched."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bridgehead.errors import NotFoundError, UsageError, VerificationError
from bridgehead.records import StoreSpec
from doubles.drive_v3 import DriveServer
from doubles.drivefs_mount import DriveFsMount, why_not
from doubles.google_cloud import ROOT_ID, Cloud
from drive_rig import drive_api, quick, token_file
from support import wait_until
from vm_daemons.storage.drive_api import DriveApi
from vm_daemons.storage.drive_auth import DriveAuth
from vm_daemons.storage.objects import ObjectStore

KEY = "demo/runs/train-0001-abc123/checkpoints/slot-a/step-00000010-0-state.pt"
BIG = os.urandom(1_700_000)  # more than goes in one request, and no whole number of chunks


def source(tmp_path: Path, data: bytes) -> Path:
    path = tmp_path / "source"
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("data", [b"", b"weights\r\n--", BIG, BIG[: 1 << 20]], ids=["empty", "small", "big", "edge"])
def test_what_is_put_is_confirmed_and_comes_back(api: DriveApi, cloud: Cloud, tmp_path: Path, data: bytes) -> None:
    store: ObjectStore = api
    sent = store.put(KEY, source(tmp_path, data))
    assert (sent.size, sent.sha256) == (len(data), hashlib.sha256(data).hexdigest())
    assert cloud.read(f"Bridgehead/{KEY}") == data
    assert store.find(KEY) == [sent]
    came = store.get(KEY, tmp_path / "target")
    assert (tmp_path / "target").read_bytes() == data
    assert came == sent
    assert store.read(KEY, len(data)) == data


def test_what_is_not_there(api: DriveApi, cloud: Cloud, tmp_path: Path) -> None:
    assert api.find(KEY) == []
    assert api.read(KEY, 10) is None
    assert api.list("demo/runs") == []
    api.delete(KEY)
    with pytest.raises(NotFoundError):
        api.get(KEY, tmp_path / "target")
    assert not (tmp_path / "target").exists()
    assert cloud.tree() == {}, "looking makes no folders"


def test_a_record_is_replaced_in_place(api: DriveApi, cloud: Cloud) -> None:
    api.put_bytes("demo/lease.json", b"1")
    first = cloud.at("Bridgehead/demo/lease.json")[0]
    api.put_bytes("demo/lease.json", b"22")
    (now,) = cloud.at("Bridgehead/demo/lease.json")
    assert (now.id, now.revision) == (first.id, 2)
    assert api.read("demo/lease.json", 10) == b"22"


def test_a_record_that_is_too_large_is_not_read(api: DriveApi, server: DriveServer) -> None:
    api.put_bytes("demo/a.json", b"x" * 100)
    with pytest.raises(VerificationError, match="100 bytes"):
        api.read("demo/a.json", 99)
    assert server.count("files.get") == 0


def test_listing_names_what_is_directly_below(api: DriveApi, cloud: Cloud, server: DriveServer) -> None:
    server.page_size = 2
    for name in ("a.json", "b.json", "c/d.json", "c/e.json", "f.json"):
        api.put_bytes(f"demo/{name}", b"1")
    cloud.create("not a name of ours/", cloud.ensure_folder("Bridgehead/demo"), b"1")
    assert api.list("demo") == ["a.json", "b.json", "c", "f.json"]
    assert api.list("demo/c") == ["d.json", "e.json"]
    assert api.list("") == ["demo"]
    assert api.list("demo/a.json") == []


def test_deleting_leaves_nothing_in_the_trash(api: DriveApi, cloud: Cloud) -> None:
    api.put_bytes("demo/a.json", b"12345")
    api.delete("demo/a.json")
    assert api.find("demo/a.json") == []
    assert (cloud.usage().used, cloud.usage().trashed) == (0, 0)


def test_of_several_of_one_name_the_newest_counts_and_foreign_ones_stay(api: DriveApi, cloud: Cloud) -> None:
    folder = cloud.ensure_folder("Bridgehead/demo")
    cloud.create("a.json", folder, b"older")
    newest = cloud.create("a.json", folder, b"newest!")
    assert [stored.size for stored in api.find("demo/a.json")] == [7, 5]
    assert api.read("demo/a.json", 100) == b"newest!"
    api.put_bytes("demo/a.json", b"ours")
    assert cloud.content(cloud.get(newest.id)).read_bytes() == b"ours"
    api.delete("demo/a.json")
    assert [cloud.content(entry).read_bytes() for entry in cloud.at("Bridgehead/demo/a.json")] == [b"older"]


def test_a_file_that_somebody_else_put_there_is_not_removed(api: DriveApi, cloud: Cloud) -> None:
    cloud.create("a.json", cloud.ensure_folder("Bridgehead/demo"), b"theirs")
    api.delete("demo/a.json")
    assert cloud.read("Bridgehead/demo/a.json") == b"theirs"


def test_two_writers_that_make_one_folder_find_each_others_files(
    api: DriveApi, cloud: Cloud, server: DriveServer, tmp_path: Path
) -> None:
    for content in (b"one", b"two"):
        folder = cloud.create("demo", cloud.ensure_folder("Bridgehead"), folder=True)
        cloud.create(f"{content.decode()}.json", folder.id, content)
    assert api.list("demo") == ["one.json", "two.json"]
    assert (api.read("demo/one.json", 9), api.read("demo/two.json", 9)) == (b"one", b"two")
    other = drive_api(server, token_file(tmp_path))
    api.put_bytes("demo/x.json", b"1")
    other.put_bytes("demo/x.json", b"2")
    assert len(cloud.at("Bridgehead/demo/x.json")) == 1


def test_who_makes_a_folder_that_another_one_makes_too_writes_into_the_older_one(
    api: DriveApi, cloud: Cloud, server: DriveServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both looked before either had made it; each must see what the other writes from then on."""
    other = drive_api(server, token_file(tmp_path))
    look, looked = other._folders.ids, set[tuple[str, ...]]()

    def before_it_was_made(folders: tuple[str, ...]) -> list[str]:
        first = bool(folders) and folders not in looked
        looked.add(folders)
        return [] if first else look(folders)

    api.put_bytes("demo/one.json", b"1")
    monkeypatch.setattr(other._folders, "ids", before_it_was_made)
    other._folders.make(("Bridgehead", "demo"))
    monkeypatch.undo()
    other.put_bytes("demo/two.json", b"2")
    assert api.list("demo") == other.list("demo") == ["one.json", "two.json"]


def test_the_app_folder_may_have_an_odd_name_and_lie_deeper(server: DriveServer, cloud: Cloud, tmp_path: Path) -> None:
    api = drive_api(server, token_file(tmp_path), path="O'Brien \\ Söhne/runs")
    api.put_bytes("demo/a.json", b"1")
    assert cloud.tree() == {"O'Brien \\ Söhne/runs/demo/a.json": 1}
    assert drive_api(server, token_file(tmp_path), path="O'Brien \\ Söhne/runs").read("demo/a.json", 9) == b"1"


def test_a_bad_key_is_refused(api: DriveApi, tmp_path: Path) -> None:
    for key in ("../x", "/x", "a//b", "a/'b'", ""):
        with pytest.raises(UsageError):
            api.put_bytes(key, b"1")
        with pytest.raises(UsageError):
            api.find(key)


def test_late_listings_neither_double_nor_hide_what_we_wrote(api: DriveApi, cloud: Cloud, server: DriveServer) -> None:
    server.list_lag_s = 3600
    api.put_bytes("demo/a.json", b"1")
    api.put_bytes("demo/a.json", b"22")
    assert len(cloud.at("Bridgehead/demo/a.json")) == 1
    assert [stored.size for stored in api.find("demo/a.json")] == [2]
    api.delete("demo/a.json")
    assert cloud.at("Bridgehead/demo/a.json") == []


def test_a_folder_removed_or_trashed_meanwhile_is_made_again(api: DriveApi, cloud: Cloud) -> None:
    api.put_bytes("demo/a.json", b"1")
    cloud.delete(cloud.at("Bridgehead/demo")[0].id)
    api.put_bytes("demo/b.json", b"2")
    api.put_bytes("demo/a.json", b"3")
    assert cloud.tree() == {"Bridgehead/demo/a.json": 1, "Bridgehead/demo/b.json": 1}
    cloud.update(cloud.at("Bridgehead")[0].id, trashed=True)
    api.put_bytes("demo/c.json", b"4")
    api.put_bytes("demo/b.json", b"5")
    assert cloud.tree() == {"Bridgehead/demo/b.json": 1, "Bridgehead/demo/c.json": 1}


def test_a_probe_tells_free_bytes_and_trash_and_leaves_nothing(api: DriveApi, cloud: Cloud) -> None:
    room = api.probe()
    assert (room.free_bytes, room.trash_bytes, room.error) == (None, 0, "")
    cloud.set_quota(1000)
    cloud.create("big", content=b"x" * 300)
    cloud.update(cloud.create("old", content=b"x" * 100).id, trashed=True)
    room = api.probe()
    assert (room.free_bytes, room.trash_bytes, room.error) == (600, 100, "")
    assert cloud.tree() == {"big": 300}


def test_few_requests_for_a_record_that_is_written_again_and_again(api: DriveApi, server: DriveServer) -> None:
    api.put_bytes("demo/status.json", b"1")
    before = len(server.log)
    for number in range(10):
        api.put_bytes("demo/status.json", b"%d" % number)
    assert len(server.log) - before == 10


# --- the same files seen through a mount ------------------------------------------------------------


def test_only_a_folder_below_my_drive_can_be_confirmed(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="My Drive"):
        DriveApi.for_mount(tmp_path, StoreSpec())


@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_what_a_mount_wrote_is_confirmed_once_it_has_arrived(cloud: Cloud, server: DriveServer, tmp_path: Path) -> None:
    with DriveFsMount(cloud, tmp_path / "drive", hold=True) as mount:
        store = mount.root / "Bridgehead"
        (store / "demo").mkdir(parents=True)
        (store / "demo" / "COMMIT.json").write_bytes(b"hashes")
        spec = StoreSpec(endpoint=server.url)
        api = quick(DriveApi.for_mount(store, spec, DriveAuth(token_file(tmp_path))))
        assert api.find("demo/COMMIT.json") == []
        mount.faults(hold=False)
        mount.drain()
        (stored,) = api.find("demo/COMMIT.json")
        assert (stored.size, stored.sha256) == (6, hashlib.sha256(b"hashes").hexdigest())
        file_id = os.getxattr(store / "demo" / "COMMIT.json", "user.drive.id").decode()
        assert api.by_id(file_id, "demo/COMMIT.json") == stored
        assert api.by_id("local-17") is None
        api.delete("demo/COMMIT.json")
        wait_until(lambda: os.listdir(store / "demo") == [], what="the mount hears of it")
        assert cloud.usage().used == 0


# --- the double itself ------------------------------------------------------------------------------


def test_the_double_runs_as_a_process(cloud: Cloud, tmp_path: Path) -> None:
    port_file = tmp_path / "port"
    tests = Path(__file__).parents[2]
    process = subprocess.Popen(
        [sys.executable, "-m", "doubles.drive_v3", str(cloud.folder), "--port-file", str(port_file)],
        env={**os.environ, "PYTHONPATH": str(tests)},
    )
    try:
        port = wait_until(lambda: port_file.exists() and port_file.read_text(), what="the port")
        spec = StoreSpec(endpoint=f"http://127.0.0.1:{port}")
        DriveApi(spec, DriveAuth(token_file(tmp_path))).put_bytes("demo/a.json", b"1")
        assert cloud.tree() == {"Bridgehead/demo/a.json": 1}
        assert cloud.children(ROOT_ID)[0].properties == {"bridgehead": "1"}
    finally:
        process.kill()
        process.wait(100)
