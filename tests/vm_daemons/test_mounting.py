"""The mounted store as the cell sees it. `google.colab` is a stand-in in this file, named as such where it is made."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import pytest

from bridgehead import names
from vm_daemons import mounting


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


@pytest.fixture
def colab(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> types.ModuleType:
    """A stand-in for google.colab whose Drive can be told to fail."""
    monkeypatch.delenv(names.ENV_STORE, raising=False)
    drive = types.ModuleType("google.colab.drive")
    package = types.ModuleType("google.colab")
    package.drive = drive  # type: ignore[attr-defined]
    for name, module in {"google": types.ModuleType("google"), "google.colab": package, drive.__name__: drive}.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(mounting, "DRIVE_MOUNT", tmp_path / "drive")
    return drive


def test_on_colab_drive_is_mounted_and_tried(colab: Any, tmp_path: Path) -> None:
    colab.mount = lambda place, timeout_ms: (tmp_path / "drive/MyDrive").mkdir(parents=True)
    assert mounting.find_store(print) == tmp_path / "drive" / mounting.DRIVE_FOLDER


def test_a_mount_that_fails_is_a_warning(colab: Any, capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(place: str, timeout_ms: int) -> None:
        raise ValueError("mount failed")

    colab.mount = refuse
    assert mounting.find_store(print) is None
    assert "mount failed" in capsys.readouterr().out
