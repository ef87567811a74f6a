"""Local checkpoints: nothing is loaded that has not been verified."""

from __future__ import annotations

import json
from pathlib import Path

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
