"""Boot, from pairing code to heartbeat, in this process; the daemons it starts are small scripts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bridge_client import LiveBridge, live_bridge
from bridgehead import files, names
from bridgehead.errors import PairingError, ProjectError
from bridgehead.pairing import Pairing
from vm_daemons import boot, cell, daemons, payload
from vm_daemons.boot import CellError
from vm_daemons.home import VmHome


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
    assert "laptop answered" in cell.summary(home)


def test_a_second_boot_keeps_the_vms_name(live: LiveBridge, home: VmHome) -> None:
    boot.boot(home, _code(live))
    first = home.record()["vm_id"]
    boot.boot(home, _code(live))
    assert home.record()["vm_id"] == first


def test_a_vm_whose_torch_has_moved_does_not_start_its_daemons(
    live: LiveBridge, home: VmHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    boot.boot(home, _code(live))
    path = home.state / names.VM_IMAGE_PACKAGES
    packages = files.read_json(path)["packages"]
    files.write_json(path, {"packages": {**packages, "torch": {**packages["torch"], "version": "0.0.1"}}})
    monkeypatch.setattr(daemons, "ensure", lambda _: pytest.fail("started"))
    with pytest.raises(ProjectError, match=r"torch 0\.0\.1 → ") as caught:
        boot.boot(home, _code(live))
    assert "fresh VM" in caught.value.hint and str(path) in caught.value.hint


def test_files_that_are_being_saved_just_now_are_waited_for(
    live: LiveBridge, home: VmHome, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(boot, "SETTLE_PAUSE_S", 0.01)
    real, tries = payload.sync, [0]

    def changing(*given: Any) -> dict[str, Any]:
        tries[0] += 1
        if tries[0] < 3:
            raise payload.Unsettled("data/a.txt was another one on the laptop than its manifest named")
        return real(*given)

    monkeypatch.setattr(payload, "sync", changing)
    boot.boot(home, _code(live))
    assert (home.payload / "data/a.txt").read_text() == "one"
    assert capsys.readouterr().out.count("data/a.txt was another one on the laptop") == 2


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
