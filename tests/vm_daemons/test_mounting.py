"""The mounted store as the cell sees it. `google.colab` is a stand-in in this file, named as such where it is made."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
import time
import types
from pathlib import Path
from typing import Any

import pytest

from bridgehead import files, names
from bridgehead.records import StoreSpec
from vm_daemons import mounting
from vm_daemons.mounting import Remounter
from vm_daemons.storage import store_setup
from vm_support import paired_home


def test_without_a_store_it_warns_and_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(names.ENV_STORE, raising=False)
    assert mounting.find_store(print) is None
    assert "WARNING: no durable store" in capsys.readouterr().out


def test_a_store_that_cannot_be_written_is_no_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(names.ENV_STORE, str(tmp_path / "file"))
    assert mounting.find_store(print) is None
    assert "WARNING" in capsys.readouterr().out


class Drive(types.ModuleType):
    """A stand-in for google.colab.drive: a mount is a folder, and tests tell it how to fail."""

    def __init__(self, place: Path) -> None:
        super().__init__("google.colab.drive")
        self.place = place
        self.error: Exception | None = None
        self.hangs_s = 0.0
        self.mounted = False
        self.calls: list[dict[str, Any]] = []

    def mount(self, place: str, **given: Any) -> None:
        self.calls.append(given)
        assert place == str(self.place)
        deadline = time.monotonic() + self.hangs_s
        while time.monotonic() < deadline:
            time.sleep(0.01)
        if self.error is not None:
            raise self.error
        if self.place.is_dir() and any(self.place.iterdir()) and not self.mounted:
            raise ValueError("Mountpoint must not already contain files")
        (self.place / mounting.DRIVE_FOLDER).mkdir(parents=True, exist_ok=True)
        self.mounted = True

    def flush_and_unmount(self, timeout_ms: int) -> None:
        self.calls.append({"flush": timeout_ms})
        if self.error is not None:
            raise self.error
        self.mounted = False

    def die(self) -> None:
        shutil.rmtree(self.place)
        self.place.mkdir()
        self.mounted = False


@pytest.fixture
def drive(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Drive:
    monkeypatch.delenv(names.ENV_STORE, raising=False)
    drive = Drive(tmp_path / "drive")
    package = types.ModuleType("google.colab")
    package.drive = drive  # type: ignore[attr-defined]
    for name, module in {"google": types.ModuleType("google"), "google.colab": package, drive.__name__: drive}.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(mounting, "DRIVE_MOUNT", drive.place)
    monkeypatch.setattr(os.path, "ismount", lambda path: Path(path) == drive.place and drive.mounted)
    return drive


def test_on_colab_drive_is_mounted_and_tried(drive: Drive) -> None:
    assert mounting.find_store(print) == drive.place / mounting.DRIVE_FOLDER


def test_a_mount_that_fails_is_a_warning(drive: Drive, capsys: pytest.CaptureFixture[str]) -> None:
    drive.error = ValueError("mount failed")
    assert mounting.find_store(print) is None
    assert "mount failed" in capsys.readouterr().out


def test_a_named_folder_that_drive_could_not_be_mounted_for_is_there_after_the_remount(
    drive: Drive, tmp_path: Path
) -> None:
    store = drive.place / "MyDrive/my/runs"
    drive.error = ValueError("mount failed")
    cell = Cell(tmp_path / "vm", store)
    said: list[str] = []
    assert store_setup.settle(cell.home, StoreSpec(path=str(store), confirm=False).to_json(), said.append) == str(store)
    assert "is not mounted" in said[-1] and cell.home.store_path() == store and not store.exists()
    drive.error = None
    cell.ask()
    assert cell.mind()["error"] == "" and store.is_dir()


# --- mounted again ---------------------------------------------------------------------------------------


class Cell:
    """A cell with a store, a clock that the test moves, and what it said."""

    def __init__(self, root: Path, store: Path) -> None:
        self.home = paired_home(root)
        self.home.update_record(store=str(store))
        self.now = 0.0
        self.said: list[str] = []
        self.remounter = Remounter(self.home, self.said.append, lambda: self.now)
        self.path = self.home.state / names.VM_REMOUNT

    def ask(self, identity: str = "one") -> None:
        files.write_json(self.path, {"v": 1, "id": identity, "since": 1.0, "why": "ENOTCONN"})

    def mind(self) -> dict[str, Any]:
        self.remounter.mind()
        answer = files.read_json(self.path)
        assert isinstance(answer, dict)
        return answer


@pytest.fixture
def cell(drive: Drive, tmp_path: Path) -> Cell:
    root = mounting.find_store(print)
    assert root is not None
    return Cell(tmp_path / "vm", root)


def test_without_a_request_nothing_is_done(cell: Cell, drive: Drive) -> None:
    drive.die()
    cell.remounter.mind()
    assert len(drive.calls) == 1


def test_a_dead_mount_is_mounted_by_force_and_the_answer_says_so(cell: Cell, drive: Drive) -> None:
    drive.die()
    cell.ask()
    answer = cell.mind()
    assert answer["done"] and answer["error"] == "" and answer["id"] == "one"
    assert drive.calls[-1] == {"force_remount": True, "timeout_ms": mounting.REMOUNT_TIMEOUT_MS}
    assert any("ENOTCONN" in line for line in cell.said)
    cell.mind()
    assert len(drive.calls) == 2, "an answered request is not worked on again"


def test_a_mount_that_is_well_again_is_left_alone(cell: Cell, drive: Drive) -> None:
    cell.ask()
    assert cell.mind()["done"] and len(drive.calls) == 1


def test_what_was_written_where_the_mount_was_is_set_aside_and_not_taken_for_the_store(
    cell: Cell, drive: Drive, tmp_path: Path
) -> None:
    drive.die()
    stray = drive.place / mounting.DRIVE_FOLDER / "stray"
    stray.parent.mkdir(parents=True)
    stray.write_text("x")
    cell.ask()
    assert cell.mind()["done"]
    assert not stray.exists() and len(list(tmp_path.glob("drive-*/MyDrive/Bridgehead/stray"))) == 1


def test_tries_are_bounded_with_growing_pauses_and_a_new_request_begins_anew(cell: Cell, drive: Drive) -> None:
    drive.die()
    drive.error = ValueError("nobody at the tab")
    cell.ask()
    for _ in range(10_000):
        cell.now += 5.0
        answer = cell.mind()
    assert len(drive.calls) == 1 + len(mounting.PAUSES_S)
    assert answer["given_up"] and answer["error"] == "nobody at the tab" and "done" not in answer
    assert "given up" in cell.said[-1]
    drive.error = None
    cell.ask("two")
    assert cell.mind()["done"]


def test_a_mount_call_that_hangs_is_cut_off(cell: Cell, drive: Drive, monkeypatch: pytest.MonkeyPatch) -> None:
    drive.die()
    drive.hangs_s = 60.0
    monkeypatch.setattr(mounting, "REMOUNT_TIMEOUT_MS", -29_800)  # 0.2 s in all
    cell.ask()
    assert "no answer within" in cell.mind()["error"]
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_a_folder_that_hangs_is_given_up_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    never = threading.Event()
    monkeypatch.setattr(mounting, "_try_out", lambda _: never.wait(60))
    assert "has not answered" in mounting.try_out_in_time(tmp_path, 0.05)
    never.set()


def test_off_colab_the_folder_is_looked_at_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(names.ENV_STORE, str(tmp_path / "store"))
    cell = Cell(tmp_path / "vm", tmp_path / "store")
    cell.ask()
    assert "done" not in cell.mind()
    (tmp_path / "store").mkdir()
    cell.now += mounting.PAUSES_S[1]
    assert cell.mind()["done"]


def test_a_damaged_request_is_none(cell: Cell) -> None:
    for text in ("[", "[]", '{"id": 0}'):
        cell.path.write_text(text)
        cell.remounter.mind()
        assert cell.path.read_text() == text, "nothing is answered"


# --- flushed before the VM goes -----------------------------------------------------------------------------


def test_drive_is_flushed(cell: Cell, drive: Drive) -> None:
    assert mounting.flush_drive(1000) == "" and drive.calls[-1] == {"flush": 1000}


def test_a_flush_that_fails_says_why(cell: Cell, drive: Drive) -> None:
    drive.error = ValueError("not all pushed")
    assert mounting.flush_drive(1000) == "not all pushed"


def test_elsewhere_there_is_nothing_to_flush() -> None:
    assert mounting.flush_drive(1000) == ""
