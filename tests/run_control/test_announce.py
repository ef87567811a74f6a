"""The laptop's side of the store: each new address is left there for every key, and what stands in the way is told."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_process import in_process
from store_support import Faulty

from bridge.address_record import AddressRecord
from bridge.keys import KeyStore
from bridge.project import ProjectView
from bridgehead import announcement, files, names
from bridgehead.announcement import Announcement
from bridgehead.errors import ProjectError, StoreDenied, StoreGone
from bridgehead.records import StoreSpec
from doubles.drive_v3 import TOKEN, DriveServer
from doubles.google_cloud import Cloud
from run_control import address_told, announce, announce_stores, bridge_control, project_file
from run_control.announce import Announcer
from run_control.announce_stores import Target
from run_control.project import Project
from s3_rig import BUCKET, KEYS, s3_endpoint
from support import wait_until
from vm_daemons.storage.drive_api import DriveApi
from vm_daemons.storage.objects import ObjectStore
from vm_daemons.storage.s3_store import S3Store

URL, NEXT = "https://a.example", "https://b.example"


class Desk:
    """A project folder with keys and record, and announcers for it."""

    def __init__(self, root: Path) -> None:
        self.project = Project(root)
        self.project.make_private()
        self.keys = KeyStore(self.project.private / names.KEYS_FILE)
        self.record = AddressRecord(self.project.private / names.ADDRESS)
        self.view = ProjectView("demo")
        self._running: list[Announcer] = []

    def announcer(self, *targets: Target, load: Callable[[], ProjectView] | None = None) -> Announcer:
        more: dict[str, Any] = {"targets": lambda *_: targets} if targets else {}
        made = Announcer(self.project, self.record, self.keys.active, load=load or (lambda: self.view), **more)
        self._running.append(made)
        return made

    def close(self) -> None:
        for one in self._running:
            one.stop()

    def settled(self) -> None:
        wait_until(lambda: self.record.published().seq, 20, what="what the store said")

    def told(self, store: ObjectStore) -> Announcement | None:
        key_id, key = self.keys.current()
        data = store.read(f"demo/{names.STORE_ADDRESS}/{key_id}.json", announcement.MAX_BYTES)
        return announcement.opened([key], json.loads(data)) if data is not None else None


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    monkeypatch.setattr(announce, "FIRST_PAUSE_S", 0.05)
    (tmp_path / "watch").mkdir()
    made = Desk(tmp_path / "watch")
    yield made
    made.close()


@pytest.fixture
def store(tmp_path: Path) -> Faulty:
    (tmp_path / "store").mkdir()
    return Faulty(tmp_path / "store")


def _target(store: ObjectStore, when_denied: str = "") -> Target:
    return Target("the store", lambda: store, when_denied)


# --- what is left there ------------------------------------------------------------------------------------


def test_each_new_address_is_there_under_a_higher_number(desk: Desk, store: Faulty) -> None:
    announcer = desk.announcer(_target(store))
    announcer.announce(URL)
    first = wait_until(lambda: desk.told(store), 20, what="the address in the store")
    assert (first.project, first.url) == ("demo", URL) and first == desk.record.newest()
    announcer.announce(NEXT)
    second = wait_until(lambda: (told := desk.told(store)) and told.url == NEXT and told, 20, what="the next one")
    assert second.seq > first.seq


def test_the_same_address_again_is_no_news(desk: Desk, store: Faulty) -> None:
    announcer = desk.announcer(_target(store))
    announcer.announce(URL)
    before = desk.record.newest()
    announcer.announce(URL)
    assert desk.record.newest() == before


def test_a_bridge_that_was_started_anew_has_a_new_number_at_the_same_address(desk: Desk, store: Faulty) -> None:
    desk.announcer(_target(store)).announce(URL)
    first = wait_until(lambda: desk.told(store), 20, what="the address in the store")
    desk.announcer(_target(store)).announce(URL)
    wait_until(lambda: (told := desk.told(store)) and told.seq > first.seq, 20, what="a higher number")


def test_there_is_one_for_every_key_that_is_good(desk: Desk, store: Faulty, tmp_path: Path) -> None:
    other = ("k-other", bytes(32))
    made = Announcer(
        desk.project,
        desk.record,
        lambda: [*desk.keys.active(), other],
        load=lambda: desk.view,
        targets=lambda *_: [_target(store)],
    )
    made.announce(URL)
    path = tmp_path / "store/demo" / names.STORE_ADDRESS / "k-other.json"
    wait_until(path.exists, 20, what="the other key's document")
    assert announcement.opened([bytes(32)], files.read_json(path)) == desk.told(store)
    made.stop()


def test_what_somebody_put_in_its_place_is_replaced(desk: Desk, store: Faulty) -> None:
    store.put_bytes(f"demo/{names.STORE_ADDRESS}/{desk.keys.current()[0]}.json", b"[" * 5000)
    desk.announcer(_target(store)).announce(URL)
    wait_until(lambda: desk.record.published().told, 20, what="the address in the store")
    assert desk.told(store) == desk.record.newest()


def test_what_was_tidied_away_is_put_there_again(desk: Desk, store: Faulty, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(announce, "LOOK_AGAIN_S", 0.05)
    desk.announcer(_target(store)).announce(URL)
    wait_until(lambda: desk.told(store), 20, what="the address in the store")
    (store.inner.root / "demo" / names.STORE_ADDRESS / f"{desk.keys.current()[0]}.json").unlink()
    wait_until(lambda: desk.told(store), 20, what="the address in the store again")


def test_a_private_folder_that_was_restored_gets_above_what_the_store_knows(desk: Desk, store: Faulty) -> None:
    """Also when the clock that gave the lost number was far ahead."""
    key_id, key = desk.keys.current()
    ahead = Announcement("demo", "https://lost.example", 2**40, 1.0)
    store.put_bytes(f"demo/{names.STORE_ADDRESS}/{key_id}.json", json.dumps(ahead.signed(key)).encode())
    desk.announcer(_target(store)).announce(URL)
    told = wait_until(lambda: (told := desk.told(store)) and told.url == URL and told, 20, what="our address")
    assert told.seq == 2**40 + 1 and desk.record.newest() == told


def test_a_second_bridge_of_the_project_is_told_of_and_not_fought_with(
    desk: Desk, store: Faulty, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(announce, "LOOK_AGAIN_S", 0.05)
    desk.announcer(_target(store)).announce(URL)
    mine = wait_until(lambda: desk.told(store), 20, what="the address in the store")
    wait_until(lambda: desk.record.published().told, 20, what="the word on it")
    key_id, key = desk.keys.current()
    theirs = Announcement("demo", "https://theirs.example", mine.seq + 100, 1.0)
    store.put_bytes(f"demo/{names.STORE_ADDRESS}/{key_id}.json", json.dumps(theirs.signed(key)).encode())
    wait_until(lambda: "theirs.example" in address_told.trouble(desk.project, URL), 20, what="the alarm")
    assert desk.told(store) == theirs


# --- what stands in the way ----------------------------------------------------------------------------------


def test_a_store_that_refuses_is_told_with_a_step_for_this_laptop_and_tried_again(desk: Desk, store: Faulty) -> None:
    def refuse(method: str, key: str) -> None:
        raise StoreDenied("expired", hint="run the bootstrap cell again")

    store.before = refuse
    heard: list[str] = []
    announcer = desk.announcer(_target(store, "sign in here"))
    announcer.on_change = lambda: heard.append(announcer.trouble)
    announcer.announce(URL)
    desk.settled()
    expected = f"{address_told.TROUBLE}: expired. next: sign in here"
    assert address_told.trouble(desk.project, URL) == expected
    assert address_told.trouble(desk.project, NEXT) == "", "of another address nothing is known"
    store.before = lambda method, key: None
    wait_until(lambda: desk.told(store), 20, what="the address in the store")
    wait_until(lambda: address_told.trouble(desk.project, URL) == "", 20, what="the end of the alarm")
    assert heard == ["expired. next: sign in here", ""]


def test_one_store_that_fails_keeps_no_other_from_its_address(desk: Desk, store: Faulty) -> None:
    def fail() -> ObjectStore:
        raise StoreGone("no such folder")

    desk.announcer(Target("a", fail), _target(store)).announce(URL)
    wait_until(lambda: desk.told(store), 20, what="the address in the other store")
    desk.settled()
    assert "no such folder" in address_told.trouble(desk.project, URL)
    assert desk.record.published().told == ["the store"]


def test_a_store_that_hangs_holds_up_neither_the_address_nor_the_end(
    desk: Desk, store: Faulty, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(announce, "_STOP_S", 0.05)
    free, hangs = threading.Event(), threading.Event()

    def hang(method: str, key: str) -> None:
        hangs.set()
        free.wait(60)

    store.before = hang
    announcer = desk.announcer(_target(store))
    announcer.announce(URL)
    assert hangs.wait(100)
    announcer.announce(NEXT)
    newest = desk.record.newest()
    assert newest is not None and newest.url == NEXT, "hints and codes have it, whatever the store does"
    announcer.stop()
    free.set()


def test_a_mistake_in_the_project_file_is_told_and_mended_while_it_runs(desk: Desk, store: Faulty) -> None:
    views: list[ProjectView] = []

    def load() -> ProjectView:
        if not views:
            raise ProjectError("bridgehead.toml:3: not TOML", hint="mend it")
        return views[0]

    announcer = desk.announcer(_target(store), load=load)
    announcer.announce(URL)
    wait_until(lambda: "not TOML" in announcer.trouble, 20, what="the trouble")
    views.append(desk.view)
    wait_until(lambda: desk.told(store), 20, what="the address in the store")


def test_a_full_disk_of_the_laptop_ends_nothing(desk: Desk, store: Faulty, monkeypatch: pytest.MonkeyPatch) -> None:
    write = files.write_json

    def full(path: Path, value: object, *, mode: int = 0o644) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "write_json", full)
    announcer = desk.announcer(_target(store))
    announcer.announce(URL)
    wait_until(lambda: "No space left" in announcer.trouble, 20, what="the trouble")
    monkeypatch.setattr(files, "write_json", write)
    wait_until(lambda: desk.told(store), 20, what="the address in the store")


# --- which stores --------------------------------------------------------------------------------------------


def _names(desk: Desk, url: str, laptop_path: str = "", **spec: Any) -> list[str]:
    view = ProjectView("demo", store=StoreSpec(**spec), laptop_store=laptop_path)
    return [target.name for target in announce_stores.targets(desk.project, view, url)]


def test_the_stores_are_those_of_the_vms_that_can_use_the_address(desk: Desk, tmp_path: Path) -> None:
    here = "http://127.0.0.1:8766"
    assert _names(desk, here) == [], "no VM of this machine was ever started"
    assert _names(desk, URL) == ["the mounted Google Drive"]
    desk.project.drive.mkdir()
    assert _names(desk, here) == ["the local VMs' store"]
    assert _names(desk, here, kind="folder", path=str(tmp_path)) == ["the local VMs' store", str(tmp_path)]
    assert _names(desk, here, kind="s3", bucket="b") == ["the local VMs' store", "s3://b"]
    assert _names(desk, URL, laptop_path="~/Drive", path="/content/x") == ["the local VMs' store", "~/Drive"]
    assert _names(desk, URL, kind="drive") == ["the local VMs' store", "Google Drive"]


def _publish_to(desk: Desk, url: str = URL) -> None:
    desk.announcer().announce(url)
    desk.settled()


def test_local_vms_hear_of_it_through_their_drive_folder(desk: Desk) -> None:
    desk.project.drive.mkdir()
    _publish_to(desk, "http://127.0.0.1:1234")
    assert desk.record.published().told == ["the local VMs' store"]
    assert any((desk.project.drive / "demo" / names.STORE_ADDRESS).glob("*.json"))


def test_a_drive_that_the_laptop_sees_as_a_folder_is_written_there(desk: Desk, tmp_path: Path) -> None:
    (tmp_path / "Google Drive").mkdir()
    desk.view = ProjectView("demo", laptop_store=str(tmp_path / "Google Drive"))
    _publish_to(desk)
    assert any((tmp_path / "Google Drive/demo" / names.STORE_ADDRESS).glob("*.json"))
    shutil.rmtree(tmp_path / "Google Drive")
    desk.announcer().announce(NEXT)
    desk.settled()
    assert "this laptop has no folder" in address_told.trouble(desk.project, NEXT)
    assert not (tmp_path / "Google Drive").exists(), "nothing is made where a mount is missing"


def test_a_bucket_takes_it_with_the_keys_of_the_users_other_tools(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", names.SECRET_S3_KEY_ID):
        monkeypatch.delenv(name, raising=False)
    with s3_endpoint() as url:
        spec = StoreSpec("s3", bucket=BUCKET, prefix="p", endpoint=url)
        desk.view = ProjectView("demo", store=spec)
        _publish_to(desk)
        assert "AWS_ACCESS_KEY_ID" in address_told.trouble(desk.project, URL)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEYS["access_key_id"])
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", KEYS["secret_access_key"])
        wait_until(lambda: desk.record.published().told, 20, what="the address in the bucket")
        assert desk.told(S3Store(spec, KEYS)) == desk.record.newest()
        text = desk.project.private.joinpath(names.ADDRESS).read_text()
        assert KEYS["secret_access_key"] not in text and KEYS["access_key_id"] not in text


@pytest.mark.parametrize("kind", ["drive", "mount"])
def test_drives_api_takes_it_and_the_vm_reads_it_there(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    credentials = {"drive_credentials": json.dumps({"token": TOKEN})}
    monkeypatch.setenv(names.SECRET_DRIVE, credentials["drive_credentials"])
    with DriveServer(Cloud(tmp_path / "cloud")) as server:
        spec = StoreSpec(kind, endpoint=server.url)
        desk.view = ProjectView("demo", store=spec)
        _publish_to(desk)
        assert address_told.trouble(desk.project, URL) == ""
        mounted = Path("/content/drive/MyDrive/Bridgehead")
        vm = DriveApi(spec, credentials) if kind == "drive" else DriveApi.for_mount(mounted, spec, credentials)
        assert desk.told(vm) == desk.record.newest()


def test_a_mounted_drive_without_a_way_from_here_says_what_to_do(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(names.SECRET_DRIVE, "no JSON")
    _publish_to(desk)
    told = address_told.trouble(desk.project, URL)
    assert "laptop_path" in told and "gcloud auth" in told and "no JSON" not in told


def test_a_mounted_folder_that_is_no_drive_asks_for_its_path_here(desk: Desk) -> None:
    desk.view = ProjectView("demo", store=StoreSpec(path="/mnt/somewhere"))
    _publish_to(desk)
    assert "laptop_path" in address_told.trouble(desk.project, URL)


@pytest.mark.parametrize(
    ("value", "good"), [("~/Drive", True), ("/mnt/d", True), ("Drive", False), ("/a\\u0007", False)]
)
def test_the_laptops_path_is_read_from_the_project_file(fresh: Project, value: str, good: bool) -> None:
    text = fresh.file.read_text()
    assert "[store]" not in text
    fresh.file.write_text(f'{text}\n[store]\nlaptop_path = "{value}"\n')
    if good:
        view = project_file.load(fresh.root)
        assert view.laptop_store == value and "laptop_path" not in view.store.to_json()
    else:
        with pytest.raises(ProjectError, match="as this laptop sees it"):
            project_file.load(fresh.root)


# --- the bridge's process --------------------------------------------------------------------------------------


def test_a_started_bridge_is_announced_and_its_trouble_is_shown(
    fresh: Project, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with fresh.file.open("a") as file:
        file.write(f'\n[store]\nlaptop_path = "{tmp_path / "away"}"\n')
    try:
        answer = in_process(capsys, "-C", str(fresh.root), "up", "--port", "0", "--json")
        live = bridge_control.need(fresh)
        pairing = bridge_control.pairing(fresh, live)
        newest = AddressRecord(fresh.private / names.ADDRESS).newest()
        assert newest is not None and newest.url == live.url and newest.seq == pairing.seq
        told = wait_until(lambda: (files.read_json(fresh.bridge_record) or {}).get("address_trouble"), 20, what="it")
        assert "this laptop has no folder" in told
        for words in (["status"], ["up", "--port", "0"]):
            answer = in_process(capsys, "-C", str(fresh.root), *words)
            assert answer.code == 0 and address_told.TROUBLE in answer.err and "next: start what mounts" in answer.err
        (tmp_path / "away").mkdir()
        name = project_file.load(fresh.root).name
        folder = tmp_path / "away" / name / names.STORE_ADDRESS
        wait_until(lambda: folder.is_dir() and any(folder.glob("*.json")), 30, what="the address in the store")
        wait_until(lambda: not (files.read_json(fresh.bridge_record) or {}).get("address_trouble"), 20, what="its end")
        assert address_told.TROUBLE not in in_process(capsys, "-C", str(fresh.root), "status").err
    finally:
        bridge_control.stop(fresh)
