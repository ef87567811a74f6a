"""What a VM looks at before a pinned run starts: refusals end it at minute 0, all else is a line in its log."""

from __future__ import annotations

import dataclasses
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from image_rig import python_without

from bridgehead import data_folder, files, names
from bridgehead.errors import NotFoundError
from bridgehead.names import FailureClass, RunState
from bridgehead.records import Needs, Pins, RunRecord
from vm_daemons import export_trial, image_packages, mounting, preflight
from vm_daemons.export_trial import Trial
from vm_daemons.findings import PASS, REFUSE, WARN, Finding
from vm_daemons.home import VmHome
from vm_run_support import SHIP, log_of, python, run_folder, run_to_the_end, vm_home


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> VmHome:
    monkeypatch.delenv(names.ENV_LOCAL_VM, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    (tmp_path / "bin").mkdir()
    return vm_home(tmp_path / "vm")


def _examine(home: VmHome, spec: dict[str, Any], pins: dict[str, Any] | None = None, **more: Any) -> dict[str, Finding]:
    pinned = Pins(spec={"v": 1, **spec}, **(pins or {}))
    run_dir = run_folder(home, pins=pinned, **{"command": "python x", **more})
    record = RunRecord.from_json(files.read_json(run_dir / names.RUN_RECORD))
    return {finding.name: finding for finding in preflight.examine(record, home, run_dir)}


def _smi(tmp_path: Path, line: str) -> None:
    path = tmp_path / "bin" / "nvidia-smi"
    path.write_text(f"#!/bin/sh\necho '{line}'\n")
    path.chmod(0o755)


def test_a_run_that_was_not_pinned_is_not_looked_at(home: VmHome) -> None:
    run_dir = run_folder(home, "python x", needs=Needs(gpu_memory_gb=1000.0))
    record = RunRecord.from_json(files.read_json(run_dir / names.RUN_RECORD))
    assert preflight.examine(record, home, run_dir) == []


def test_data_that_is_missing_or_another_is_refused(home: VmHome, tmp_path: Path) -> None:
    pool = tmp_path / "pool"
    spec = {"data": {"name": "clips", "vm_path": str(pool), "fingerprint": "ab" * 32}}
    found = _examine(home, spec)["data"]
    assert found.state == REFUSE and "missing" in found.text and found.hint
    pool.mkdir()
    (pool / "a").write_bytes(b"1")
    found = _examine(home, spec)["data"]
    assert found.state == REFUSE and "other data" in found.text
    spec["data"]["fingerprint"] = data_folder.fingerprint(pool)
    assert _examine(home, spec)["data"].state == PASS


def test_data_on_the_mounted_drive_is_told_to_be_slow(
    home: VmHome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mounting, "DRIVE_MOUNT", tmp_path / "drive")
    for place, told in (("drive/MyDrive/pool", True), ("pool", False)):
        found = _examine(home, {"data": {"name": "clips", "vm_path": str(tmp_path / place)}})
        assert ("data place" in found) is told
    assert preflight.refusal(list(found.values())) is None


def test_a_pool_says_its_own_fingerprint(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        data_folder.fingerprint(tmp_path)
    files.write_json(tmp_path / names.POOL_RECORD, {"fingerprint": "cd" * 32})
    assert data_folder.fingerprint(tmp_path) == "cd" * 32


def test_a_folders_fingerprint_is_of_names_and_contents(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1")
    (tmp_path / "b").write_bytes(b"2")
    before = data_folder.fingerprint(tmp_path)
    (tmp_path / "a").write_bytes(b"2")
    (tmp_path / "b").write_bytes(b"1")
    assert data_folder.fingerprint(tmp_path) != before


def test_other_code_is_refused_only_where_the_spec_is_to_be_met_exactly(home: VmHome) -> None:
    command = f"{names.SHIPPED_COMMAND_PREFIX}{names.PRETRAIN}"
    for exact, sha256, refused in ((True, "ab" * 32, True), (False, "ab" * 32, False), (True, SHIP, False)):
        pins = Pins(spec={"v": 1, "code": {"sha256": sha256}}, exact=exact)
        run_dir = run_folder(home, command, pins=pins)
        record = RunRecord.from_json(files.read_json(run_dir / names.RUN_RECORD))
        assert (preflight.refusal(preflight.examine(record, home, run_dir)) is not None) is refused


def test_a_gpu_that_was_promised_and_is_not_there_is_refused(home: VmHome, monkeypatch: pytest.MonkeyPatch) -> None:
    found = _examine(home, {"resources": {"gpu": "T4"}})["gpu"]
    assert found.state == REFUSE and "no GPU is here" in found.text
    monkeypatch.setenv(names.ENV_LOCAL_VM, "vm-1")  # a rehearsal on somebody's own machine
    assert _examine(home, {"resources": {"gpu": "T4"}})["gpu"].state == WARN


def test_another_gpu_too_little_memory_and_emulated_bf16_are_told(home: VmHome, tmp_path: Path) -> None:
    _smi(tmp_path, "Tesla T4, 15360, 3, 0")
    config = {"config": {"precision": "bf16"}, "needs": Needs(gpu_memory_gb=8.0)}
    found = _examine(home, {"resources": {"gpu": "t4"}}, **config)
    assert [found[name].state for name in ("gpu", "gpu memory", "bf16")] == [PASS, PASS, WARN]
    found = _examine(home, {"resources": {"gpu": "A100"}}, needs=Needs(gpu_memory_gb=40.0))
    assert found["gpu"].state == WARN and "priced for A100" in found["gpu"].text
    assert found["gpu memory"].state == REFUSE
    _smi(tmp_path, "NVIDIA L4, 23034, 3, 0")
    assert _examine(home, {}, **config)["bf16"].state == PASS


EXPORT = f"{names.SHIPPED_COMMAND_PREFIX}{names.EXPORT}"
TRIALS = {
    "good": (Trial(ok=True, took_s=6.0), "python x", PASS, "in 6 s", ""),
    "a part is missing, hours before": (Trial(ok=False, part="onnx"), "python x", WARN, "onnx can't be", 'add "onnx"'),
    "the export itself": (Trial(ok=False, part="onnx"), EXPORT, REFUSE, "onnx can't be imported", 'add "onnx"'),
    "versions that do not fit": (Trial(ok=False, error="Boom: x"), "python x", WARN, "Boom: x", "correct the versions"),
}


@pytest.mark.parametrize("case", TRIALS)
def test_a_tiny_export_is_looked_at_before_hours_of_training(
    case: str, home: VmHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial, command, state, words, hint = TRIALS[case]
    monkeypatch.setattr(export_trial, "look", lambda *_: trial)
    found = _examine(home, {}, {"exports": True}, command=command)["export"]
    assert found.state == state and words in found.text and hint in found.hint
    assert "export" not in _examine(home, {}, {"exports": False}, command=command)


def test_a_vm_without_onnx_says_so_at_minute_0_of_what_comes_before_the_export(
    home: VmHome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real trial, from the real stage runner, in a Python like a notebook image's."""
    monkeypatch.setattr(sys, "executable", python_without(tmp_path / "bare", "onnx"))
    run_dir = run_folder(home, python("print('trained')"), pins=Pins(spec={"v": 1}, exports=True))
    assert run_to_the_end(home, run_dir, timeout_s=90).state is RunState.DONE
    said = log_of(run_dir)
    assert "--- preflight: export: onnx can't be imported" in said and 'add "onnx" to [vm] requirements' in said
    assert said.index("preflight: export") < said.index("trained")


def test_torch_that_moved_since_the_first_boot_is_refused(home: VmHome) -> None:
    assert _examine(home, {})["torch"].state == PASS
    now = image_packages.look()
    files.write_json(home.state / names.VM_IMAGE_PACKAGES, {"packages": now})
    assert _examine(home, {})["torch"].state == PASS
    now["torch"] = {**now["torch"], "version": "0.0.1"}
    files.write_json(home.state / names.VM_IMAGE_PACKAGES, {"packages": now})
    found = _examine(home, {})["torch"]
    assert found.state == REFUSE and "torch 0.0.1 → " in found.text and "fresh VM" in found.hint


def test_a_store_that_is_ill_or_too_small_is_told(home: VmHome) -> None:
    def store(**values: Any) -> None:
        files.write_json(home.state / names.VM_STORE_STATE, {"kind": "folder", "at": time.time(), **values})

    store(ok=True, free_bytes=5 * 10**9)
    found = _examine(home, {}, {"stored_gb": 4.0})
    assert [found[name].state for name in ("credentials", "store", "store room")] == [PASS, PASS, PASS]
    assert "skipped" in found["credentials"].text
    too_small = _examine(home, {}, {"stored_gb": 6.0})["store room"]
    assert too_small.state == WARN and "5.0 GB free" in too_small.text
    store(ok=False, error="Transport endpoint is not connected")
    assert "Transport endpoint" in _examine(home, {})["store"].text


CREDENTIALS = {
    "answered": ({"ok": True}, PASS, "answered a call"),
    "refused": ({"ok": False, "denied": True, "error": "InvalidAccessKeyId"}, WARN, "InvalidAccessKeyId"),
    "nobody there": ({"ok": False, "error": "timed out"}, WARN, "nothing is known"),
}


@pytest.mark.parametrize("case", CREDENTIALS)
def test_credentials_are_told_by_what_the_store_answered(case: str, home: VmHome) -> None:
    state, expected, words = CREDENTIALS[case]
    files.write_json(home.state / names.VM_STORE_STATE, {"kind": "s3", "at": time.time(), **state})
    found = _examine(home, {})["credentials"]
    assert found.state == expected and words in found.text


def test_a_store_without_a_limit_has_room(home: VmHome) -> None:
    """S3 never says how much is free; that it is full was told of each bucket."""
    state = {"kind": "s3", "at": time.time(), "ok": True, "free_bytes": 0, "limited": False}
    files.write_json(home.state / names.VM_STORE_STATE, state)
    assert _examine(home, {}, {"stored_gb": 6.0})["store room"].state == PASS


def test_each_disk_is_looked_at_by_itself(home: VmHome, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "not/yet/there"))
    found = _examine(home, {}, {"stored_gb": 10.0**9})
    assert found["disk output"].state == WARN and str(home.runs) in found["disk output"].text
    assert str(tmp_path / "not/yet/there") in found["disk cache"].text
    assert {"disk temp", "disk shm"} <= set(found)
    assert _examine(home, {}, {"stored_gb": 10.0**9}, attempt=2)["disk output"].state == PASS


def test_memory_is_told_against_what_the_stage_declares(home: VmHome) -> None:
    assert _examine(home, {})["memory"].state == PASS
    assert _examine(home, {}, needs=Needs(memory_gb=10.0**6))["memory"].state == WARN


@pytest.mark.parametrize(("now", "state"), [("2.11", WARN), ("2.10", PASS)])
def test_another_image_withdraws_the_promise_in_words(now: str, state: str, home: VmHome) -> None:
    run_dir = run_folder(home, "python x", pins=Pins(spec={"v": 1}, image={"torch": "2.10"}))
    record = RunRecord.from_json(files.read_json(run_dir / names.RUN_RECORD))
    assert "image" not in {finding.name for finding in preflight.examine(record, home, run_dir)}, "nothing is known"
    record = dataclasses.replace(record, fingerprint={"torch": now})
    found = {finding.name: finding for finding in preflight.examine(record, home, run_dir)}["image"]
    assert found.state == state and ("torch: '2.10' then, '2.11' now" in found.text) is (state == WARN)


def test_an_odd_spec_holds_up_nothing(home: VmHome) -> None:
    found = _examine(home, {"data": ["x"], "resources": "many", "code": 3}, {"exact": True})
    assert all(finding.state != REFUSE for finding in found.values())


def test_a_refused_run_ends_before_its_stage_starts(home: VmHome, tmp_path: Path) -> None:
    spec = {"v": 1, "data": {"name": "clips", "vm_path": str(tmp_path / "gone"), "fingerprint": "ab" * 32}}
    run_dir = run_folder(home, python("print('trained')"), pins=Pins(spec=spec))
    ended = run_to_the_end(home, run_dir)
    assert (ended.state, ended.failure_class) == (RunState.FAILED, FailureClass.ENVIRONMENT)
    assert "preflight: data" in ended.message and "trained" not in log_of(run_dir)


def test_a_warning_is_a_line_in_the_log_and_the_stage_runs(home: VmHome) -> None:
    files.write_json(home.state / names.VM_STORE_STATE, {"kind": "folder", "at": 1.0, "ok": False, "error": "dead"})
    run_dir = run_folder(home, python("print('trained')"), pins=Pins(spec={"v": 1}))
    assert run_to_the_end(home, run_dir).state is RunState.DONE
    assert "--- preflight: store: its canary did not come back: dead" in log_of(run_dir)
    assert "trained" in log_of(run_dir)
    assert "--- preflight: passed: torch, disk output, disk temp" in log_of(run_dir)
