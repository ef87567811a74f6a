"""Projects for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from project_support import Seeded

from run_control import init
from run_control.project import Project


@pytest.fixture
def fresh(tmp_path: Path) -> Project:
    """What `bridgehead init` makes."""
    project, _ = init.init(tmp_path / "watch")
    project.make_private()
    return project


@pytest.fixture
def seeded(fresh: Project) -> Iterator[Seeded]:
    made = Seeded(fresh)
    yield made
    made.ledger.close()
