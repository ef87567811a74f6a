"""The cell's heartbeat: what it minds, what it says, and what it survives."""

from __future__ import annotations

from pathlib import Path

import pytest

from bridgehead import files, names
from vm_daemons import cell, daemons
from vm_daemons.home import VmHome
from vm_support import make_run, paired_home


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> VmHome:
    monkeypatch.setattr(daemons, "ensure", lambda _: dict.fromkeys(names.DAEMONS, "running"))
    return VmHome(tmp_path / "vm")


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
