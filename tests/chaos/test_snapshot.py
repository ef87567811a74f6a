"""The copy that a campaign attacks, and the breaks that are made in it on purpose."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos import snapshot
from chaos.mutants import MUTANTS
from chaos.snapshot import Patch, PatchError

ROOT = Path(__file__).parents[2]


def test_the_copy_holds_every_package_and_no_leftovers(tmp_path: Path) -> None:
    snapshot.copy(ROOT, tmp_path / "code")
    assert {path.name for path in (tmp_path / "code").iterdir()} >= set(snapshot.PACKAGES)
    assert not list((tmp_path / "code").rglob("*.pyc"))
    for path in (tmp_path / "code").rglob("*.py"):
        compile(path.read_text(), str(path), "exec")


@pytest.mark.parametrize("old", ["no such text anywhere", "import"])
def test_a_break_that_does_not_match_exactly_once_is_refused(tmp_path: Path, old: str) -> None:
    with pytest.raises(PatchError):
        snapshot.copy(ROOT, tmp_path / "code", (Patch("bridgehead/files.py", old, ""),))


@pytest.mark.parametrize("name", MUTANTS)
def test_each_mutant_still_finds_the_text_that_it_breaks(tmp_path: Path, name: str) -> None:
    snapshot.copy(ROOT, tmp_path / "code", MUTANTS[name].patches)
    for patch in MUTANTS[name].patches:
        compile((tmp_path / "code" / patch.file).read_text(), patch.file, "exec")
