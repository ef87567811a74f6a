"""Boot, from pairing code to heartbeat, in this process; the daemons it starts are small scripts."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bridge_client import LiveBridge, live_bridge
from bridgehead import files, names
from bridgehead.errors import PairingError
from bridgehead.pairing import Pairing
from vm_daemons import boot, cell, daemons
from vm_daemons.boot import CellError
from vm_daemons.home import VmHome
from vm_support import make_run, paired_home


@pytest.fixture
def live(tmp_path: Path) -> Iterator[LiveBridge]:
    root = tmp_path / "project"
    (root / "data").mkdir(parents=True)
    (root / "data/a.txt").write_text("one")
    with live_bridge(root) as bridge:
        yield bridge


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> VmHome:
    monkeypatch.setenv(names.ENV_HOME, str(tmp_path / "vm"))
    monkeypatch.setenv(names.ENV_STORE, str(tmp_path / "drive"))
    monkeypatch.setattr(daemons, "ensure", lambda _: dict.fromkeys(names.DAEMONS, "running"))
    return VmHome.from_environment()


def _code(live: LiveBridge, **changes: str) -> str:
    pairing = live.bridge.pairing(f"http://127.0.0.1:{live.bridge.port}")
    return Pairing(pairing.url, pairing.key_id, pairing.key, changes.get("boot", pairing.boot_sha256)).encode()


def test_a_fresh_vm_is_ready(
    live: LiveBridge, home: VmHome, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = _code(live)
    boot.boot(home, code)
    record = home.record()
    assert record["project"] == "demo" and record["ship_sha256"] == live.bridge.boot_sha256
    assert record["store"] == str(tmp_path / "drive") and list((tmp_path / "drive").iterdir()) == []
    assert (home.payload / "data/a.txt").read_text() == "one"
    api = home.api(record["ship_sha256"])
    assert [entry.name for entry in api.iterdir()] == ["bridgehead"]
    assert (home.state / names.VM_PAIRING).stat().st_mode & 0o077 == 0
    said = capsys.readouterr().out
    assert record["vm_id"] in said and "ready after" in said and code[8:40] not in said


def test_a_second_boot_keeps_the_vms_name(live: LiveBridge, home: VmHome) -> None:
    boot.boot(home, _code(live))
    first = home.record()["vm_id"]
    boot.boot(home, _code(live))
    assert home.record()["vm_id"] == first


def test_a_laptop_with_another_ship_is_a_pairing_error(live: LiveBridge, home: VmHome) -> None:
    with pytest.raises(PairingError, match="another Bridgehead"):
        boot.boot(home, _code(live, boot="0" * 64))


def test_a_damaged_code_is_one_line(home: VmHome) -> None:
    with pytest.raises(CellError) as caught:
        boot.main("bh1.damaged")
    assert caught.value._render_traceback_() == [f"bridgehead: {caught.value}"]
    assert "damaged" in str(caught.value) and caught.value.__suppress_context__


def test_a_fault_of_ours_is_one_line_and_a_log(home: VmHome, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(boot, "boot", broken)
    with pytest.raises(CellError, match=boot.BOOT_LOG):
        boot.main("bh1.x")
    assert "RuntimeError: a bug" in (home.state / boot.BOOT_LOG).read_text()


def test_without_a_store_it_warns_and_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(names.ENV_STORE, raising=False)
    assert boot.find_store() is None
    assert "WARNING: no durable store" in capsys.readouterr().out


def test_a_store_that_cannot_be_written_is_no_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(names.ENV_STORE, str(tmp_path / "file"))
    assert boot.find_store() is None
    assert "WARNING" in capsys.readouterr().out


@pytest.fixture
def colab(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> types.ModuleType:
    """A stand-in for google.colab whose Drive can be told to fail."""
    monkeypatch.delenv(names.ENV_STORE, raising=False)
    drive = types.ModuleType("google.colab.drive")
    package = types.ModuleType("google.colab")
    package.drive = drive  # type: ignore[attr-defined]
    for name, module in {"google": types.ModuleType("google"), "google.colab": package, drive.__name__: drive}.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(boot, "DRIVE_MOUNT", tmp_path / "drive")
    return drive


def test_on_colab_drive_is_mounted_and_tried(colab: Any, tmp_path: Path) -> None:
    colab.mount = lambda place, timeout_ms: (tmp_path / "drive/MyDrive").mkdir(parents=True)
    assert boot.find_store() == tmp_path / "drive" / boot.DRIVE_FOLDER


def test_a_mount_that_fails_is_a_warning(colab: Any, capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(place: str, timeout_ms: int) -> None:
        raise ValueError("mount failed")

    colab.mount = refuse
    assert boot.find_store() is None
    assert "mount failed" in capsys.readouterr().out


def test_the_heartbeat_goes_on_until_it_is_interrupted(
    home: VmHome, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    paired_home(home.root)
    run_dir = make_run(home, "pretrain-0001-abcdef")
    (run_dir / names.STATUS_LINE).write_text("pretrain-0001-abcdef · running\n")
    (home.state / daemons.CONTACT_MARK).touch()
    found = iter([{names.STATUS_DAEMON: "running"}, {names.STATUS_DAEMON: "started"}])
    monkeypatch.setattr(daemons, "ensure", lambda _: next(found))
    daemons.log_file(home, names.STATUS_DAEMON).write_text("first\nOSError: why it died\n")
    turns = iter([None])

    def pause(_: float) -> None:
        if next(turns, "stop") == "stop":
            raise KeyboardInterrupt

    cell.heartbeat_loop(home, pause)
    said = capsys.readouterr().out
    assert "running" in said and home.record()["vm_id"] in said and "laptop answered" in said
    assert "OSError: why it died" in said
    assert said.count("pretrain-0001-abcdef") == 1  # a line a minute, not one a check
    assert "only this heartbeat has stopped" in said
    assert (home.state / daemons.CELL_MARK).exists()


def test_trouble_does_not_end_the_heartbeat(
    home: VmHome, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    paired_home(home.root)

    def no_room(_: VmHome) -> dict[str, str]:
        raise OSError("No space left on device")

    monkeypatch.setattr(daemons, "ensure", no_room)
    turns = iter([None, None])

    def pause(_: float) -> None:
        if next(turns, "stop") == "stop":
            raise KeyboardInterrupt

    cell.heartbeat_loop(home, pause)
    said = capsys.readouterr().out
    assert said.count("No space left on device") == 1 and "only this heartbeat has stopped" in said


def test_a_run_that_has_left_is_not_listed(home: VmHome) -> None:
    paired_home(home.root)
    run_dir = make_run(home, "pretrain-0001-abcdef")
    (run_dir / names.STATUS_LINE).write_text("pretrain-0001-abcdef · done\n")
    files.write_json(run_dir / names.MIRRORED, {})
    assert cell.summary(home).endswith("no run")
