"""The rig of the command daemon's tests; files with a rig of their own keep it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from command_rig import Rig


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path / "vm")
    yield rig
    rig.clean()


@pytest.fixture
def drive(tmp_path: Path) -> Path:
    folder = tmp_path / "drive"
    folder.mkdir()
    return folder
