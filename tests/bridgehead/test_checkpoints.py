"""Local checkpoints: nothing is loaded that has not been verified."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from bridgehead import checkpoints, files, names
from bridgehead.checkpoints import commit, newest, retain, staging, verify
from bridgehead.errors import UsageError, VerificationError


def _save(root: Path, step: int, data: bytes = b"weights" * 100) -> checkpoints.Checkpoint:
    with staging(root) as folder:
        (folder / "state.bin").write_bytes(data)
        return commit(folder, root, step, {"epoch": step // 10})


def test_a_checkpoint_reads_back_with_its_meta(tmp_path: Path) -> None:
    _save(tmp_path, 10)
    found, passed = newest(tmp_path)
    assert found is not None and (found.step, found.meta["epoch"], passed) == (10, 1, [])
    assert found.path("state.bin").read_bytes() == b"weights" * 100


def test_the_newest_goes_by_step_not_by_time(tmp_path: Path) -> None:
    _save(tmp_path, 20)
    _save(tmp_path, 10)
    found, _ = newest(tmp_path)
    assert found is not None and found.step == 20


@pytest.mark.parametrize("damage", ["flip", "zero", "cut", "gone", "manifest cut", "manifest changed", "no manifest"])
def test_a_damaged_one_is_passed_over_and_kept(tmp_path: Path, damage: str) -> None:
    _save(tmp_path, 10)
    bad = _save(tmp_path, 20)
    _damage(bad.folder, damage)
    found, passed = newest(tmp_path)
    assert found is not None and found.step == 10
    assert [item.step for item in passed] == [20] and passed[0].why
    assert (tmp_path / f"{checkpoints.QUARANTINE_PREFIX}{bad.folder.name}").is_dir()


def _damage(folder: Path, damage: str) -> None:
    data, manifest = folder / "state.bin", folder / names.CHECKPOINT_MANIFEST
    content = bytearray(data.read_bytes())
    if damage == "flip":
        content[300] ^= 1
        data.write_bytes(content)
    elif damage == "zero":
        data.write_bytes(bytes(len(content)))
    elif damage == "cut":
        data.write_bytes(content[:50])
    elif damage == "gone":
        data.unlink()
    elif damage == "manifest cut":
        manifest.write_bytes(manifest.read_bytes()[:40])
    elif damage == "manifest changed":
        record = json.loads(manifest.read_text())
        manifest.write_text(json.dumps({**record, "meta": {"epoch": 99}}))
    else:
        manifest.unlink()


def test_a_manifest_that_points_outside_is_refused(tmp_path: Path) -> None:
    good = _save(tmp_path, 10)
    record = json.loads((good.folder / names.CHECKPOINT_MANIFEST).read_text())
    record["files"][0]["path"] = "../../etc/passwd"
    record["sha256"] = checkpoints.manifest_digest(record)
    files.write_json(good.folder / names.CHECKPOINT_MANIFEST, record)
    with pytest.raises(VerificationError, match="outside"):
        verify(good.folder)


def test_an_interrupted_save_leaves_the_old_ones_alone(tmp_path: Path) -> None:
    _save(tmp_path, 10)
    with pytest.raises(RuntimeError), staging(tmp_path) as folder:
        (folder / "state.bin").write_bytes(b"half")
        raise RuntimeError
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000010"]


def test_an_empty_checkpoint_and_a_negative_step_are_refused(tmp_path: Path) -> None:
    with staging(tmp_path) as folder, pytest.raises(UsageError):
        commit(folder, tmp_path, 1, {})
    with staging(tmp_path) as folder:
        (folder / "f").write_bytes(b"x")
        with pytest.raises(UsageError):
            commit(folder, tmp_path, -1, {})


def test_retention_keeps_two_at_least_and_touches_no_foreign_name(tmp_path: Path) -> None:
    for step in (10, 20, 30):
        _save(tmp_path, step)
    (tmp_path / "step-00000005.backup").mkdir()
    assert retain(tmp_path, 1) == ["step-00000010"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "step-00000005.backup",
        "step-00000020",
        "step-00000030",
    ]


@pytest.mark.parametrize("step", [10**12, 10**40, -1, 1.5, "7", None])
def test_a_step_that_no_folder_name_holds_is_refused_before_anything_is_written(tmp_path: Path, step: Any) -> None:
    with staging(tmp_path) as folder:
        (folder / "f").write_bytes(b"x")
        with pytest.raises(UsageError, match="step"):
            commit(folder, tmp_path, step, {})
    assert list(tmp_path.iterdir()) == []


def test_the_largest_step_is_found_again(tmp_path: Path) -> None:
    _save(tmp_path, checkpoints.STEP_MAX)
    found, _ = newest(tmp_path)
    assert found is not None and found.step == checkpoints.STEP_MAX


FORGED: dict[str, tuple[dict[str, Any], str]] = {
    "newer version": ({"v": 2}, "version 2, newer than this Bridgehead"),
    "odd version": ({"v": "one"}, "version 'one'"),
    "no files": ({"files": []}, "names no file"),
    "files no list": ({"files": {"a": 1}}, "names no file"),
    "entry no object": ({"files": ["state.bin"]}, "without path, size or hash"),
    "negative size": ({"files": [{"path": "state.bin", "size": -1, "sha256": "0" * 64}]}, "without path"),
    "no hash": ({"files": [{"path": "state.bin", "size": 1}]}, "without path"),
    "absolute path": ({"files": [{"path": "/etc/passwd", "size": 1, "sha256": "0" * 64}]}, "outside its folder"),
    "no step": ({"step": None}, "lacks a step"),
    "another step": ({"step": 11}, "manifest of step 11"),
    "step is a truth": ({"step": True}, "lacks a step"),
    "no meta": ({"meta": "epoch 1"}, "what describes it"),
}


@pytest.mark.parametrize("what", FORGED)
def test_a_manifest_that_we_would_not_write_is_refused_in_words(tmp_path: Path, what: str) -> None:
    changes, said = FORGED[what]
    folder = _save(tmp_path, 10).folder
    record = {**json.loads((folder / names.CHECKPOINT_MANIFEST).read_text()), **changes}
    record["sha256"] = checkpoints.manifest_digest(record)
    files.write_json(folder / names.CHECKPOINT_MANIFEST, record)
    with pytest.raises(VerificationError, match=said):
        verify(folder)


@pytest.mark.parametrize("data", [b"[" * 100_000, b"[]", b"", b"\xff\xfe", b"x" * (checkpoints.MANIFEST_MAX_BYTES + 1)])
def test_a_manifest_that_is_no_manifest_is_refused_in_words(tmp_path: Path, data: bytes) -> None:
    folder = _save(tmp_path, 10).folder
    (folder / names.CHECKPOINT_MANIFEST).write_bytes(data)
    with pytest.raises(VerificationError, match="cut or not JSON|over .* bytes"):
        verify(folder)


def test_a_link_in_place_of_a_file_is_refused(tmp_path: Path) -> None:
    """It would verify today and read something else tomorrow."""
    good = _save(tmp_path / "c", 10)
    outside = tmp_path / "outside"
    (good.folder / "state.bin").rename(outside)
    (good.folder / "state.bin").symlink_to(outside)
    with pytest.raises(VerificationError, match="link"):
        verify(good.folder)


def test_a_replaced_checkpoint_is_the_new_one_and_leaves_nothing_beside(tmp_path: Path) -> None:
    _save(tmp_path, 10, b"old")
    _save(tmp_path, 10, b"new")
    found, _ = newest(tmp_path)
    assert found is not None and found.path("state.bin").read_bytes() == b"new"
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000010"]


def test_a_replacement_that_fails_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _save(tmp_path, 10, b"old")
    replace = os.replace

    def full(source: Path, target: Path) -> None:
        if target.name == "step-00000010" and (source / names.CHECKPOINT_MANIFEST).exists() and not failed:
            failed.append(target)
            raise OSError(28, "No space left on device")
        replace(source, target)

    failed: list[Path] = []
    monkeypatch.setattr(checkpoints.os, "replace", full)
    with pytest.raises(OSError, match="No space"):
        _save(tmp_path, 10, b"new")
    found, _ = newest(tmp_path)
    assert failed and found is not None and found.path("state.bin").read_bytes() == b"old"


def test_only_a_few_of_the_passed_over_ones_are_kept(tmp_path: Path) -> None:
    for step in range(10, 60, 10):
        _damage(_save(tmp_path, step).folder, "flip")
    _, passed = newest(tmp_path)
    assert len(passed) == 5
    _save(tmp_path, 60)
    assert retain(tmp_path, 3) == []
    assert [path.name for path in checkpoints.quarantined(tmp_path)] == ["bad-step-00000040", "bad-step-00000050"]
