"""Which outputs can travel: all whose names every laptop can hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from bridgehead import names
from vm_daemons import outputs, run_folder


def make(run_dir: Path, *relatives: str) -> None:
    for relative in relatives:
        path = run_dir / names.ARTIFACTS / relative
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(relative)


def test_of_two_names_that_differ_in_case_alone_one_travels_and_the_other_is_told(tmp_path: Path) -> None:
    make(tmp_path, "Model.bin", "model.bin", "A/x", "a/y", "a/z/w", "b")
    found, left = outputs.find(tmp_path)
    assert found == [f"{names.ARTIFACTS}/{name}" for name in ("A/x", "Model.bin", "b")]
    assert sorted(left) == [f"{names.ARTIFACTS}/{name}" for name in ("a/y", "a/z/w", "model.bin")]
    assert "only in upper and lower case" in left[f"{names.ARTIFACTS}/model.bin"]


@pytest.mark.parametrize("name", ["CON", "nul.txt", "com1.bin", "ends.", "ends ", "a:b", "a b", "é", "-rf", ".hidden"])
def test_a_name_that_windows_or_the_wire_can_not_hold_stays_and_is_told(tmp_path: Path, name: str) -> None:
    make(tmp_path, name, "good")
    found, left = outputs.find(tmp_path)
    assert found == [f"{names.ARTIFACTS}/good"] and list(left) == [f"{names.ARTIFACTS}/{name}"]


def test_what_the_laptop_refused_is_told_once_and_with_its_reason(tmp_path: Path) -> None:
    make(tmp_path, "CON", "a", "b")
    refused = {f"{names.ARTIFACTS}/{name}": "too long" for name in ("CON", "a", "b")}
    told = outputs.told_refused(tmp_path, refused)
    assert told.startswith("2 outputs stay on the VM, the laptop refused them: 'artifacts/a' (too long), ")
    assert "CON" not in told and outputs.told_refused(tmp_path, {}) == ""


@pytest.mark.parametrize("text", ["", "[]", '{"attempt": 1}', '{"attempt": 2, "refused": {"a": "b"}}'])
def test_nothing_is_refused_unless_this_attempts_record_says_so(tmp_path: Path, text: str) -> None:
    (tmp_path / names.MIRRORED).write_text(text)
    assert run_folder.refused(tmp_path, 1) == {}
