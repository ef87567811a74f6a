"""Whether a VM can export: a real export of a tiny model, paid for once, and what is told when a part is missing."""

from __future__ import annotations

import errno
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from image_rig import python_without

from bridgehead import files, names
from vm_daemons import export_trial
from vm_daemons.home import VmHome
from vm_run_support import vm_home

Fake = Callable[[str], None]


@pytest.fixture
def home(tmp_path: Path) -> VmHome:
    return vm_home(tmp_path / "vm")


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    """Puts a program of one line in the place of the real trial."""
    (tmp_path / "ship/export").mkdir(parents=True)
    (tmp_path / "ship/export/__init__.py").touch()
    monkeypatch.setattr(export_trial, "SHIP", tmp_path / "ship")
    return lambda code: (tmp_path / "ship/export/trial.py").write_text(code) and None


def test_what_this_python_has_can_export_and_is_tried_once(home: VmHome, monkeypatch: pytest.MonkeyPatch) -> None:
    first = export_trial.look(home)
    assert first is not None and first.ok and first.took_s > 0

    def never(*_arguments: object, **_more: object) -> None:
        raise AssertionError("tried again")

    monkeypatch.setattr(subprocess, "Popen", never)
    assert export_trial.look(home) == export_trial.Trial(ok=True)


def test_a_python_without_onnx_is_told_the_part_and_tried_again_the_next_time(
    home: VmHome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", python_without(tmp_path / "bare", "onnx"))
    found = export_trial.look(home)
    assert found is not None and (found.ok, found.part) == (False, "onnx")
    monkeypatch.setattr(sys, "executable", python_without(tmp_path / "barer", "onnxruntime"))
    again = export_trial.look(home)
    assert again is not None and (again.ok, again.part) == (False, "onnxruntime")


def test_one_that_failed_is_in_the_heartbeat_until_one_went_well_or_the_cell_was_run_again(
    home: VmHome, fake: Fake
) -> None:
    bad, good = """print('{"ok": false, "part": "onnx"}')""", """print('{"ok": true}')"""

    def mend() -> None:
        fake(good)
        export_trial.look(home)

    for ends in (lambda: export_trial.forget_failure(home), mend):
        fake(bad)
        assert export_trial.told(home) == {} and export_trial.look(home) is not None
        told = export_trial.told(home)
        assert told["what"] == "onnx can't be imported" and told["hint"].startswith('add "onnx" to [vm] requirements')
        ends()
        assert export_trial.told(home) == {}


def test_what_was_found_holds_though_it_can_not_be_noted(
    home: VmHome, monkeypatch: pytest.MonkeyPatch, fake: Fake
) -> None:
    def full(*_arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files, "write_json", full)
    fake("""print('{"ok": true}')""")
    found = export_trial.look(home)
    assert found is not None and found.ok


def test_another_version_of_a_part_is_tried_anew(home: VmHome, monkeypatch: pytest.MonkeyPatch, fake: Fake) -> None:
    fake("""print('{"ok": true, "part": "", "error": ""}')""")
    assert export_trial.look(home) is not None
    before = files.read_json(home.state / names.VM_EXPORT_TRIAL)
    monkeypatch.setattr(export_trial, "_version", lambda package: f"{package} 99")
    found = export_trial.look(home)
    assert found is not None and found.ok and found.took_s > 0
    after = files.read_json(home.state / names.VM_EXPORT_TRIAL)
    assert before["fingerprint"] != after["fingerprint"]  # type: ignore[index]


def test_one_that_dies_without_a_word_is_told_by_its_end(home: VmHome, fake: Fake) -> None:
    fake("import os, sys; print('Illegal instruction', flush=True); os._exit(3)")
    found = export_trial.look(home)
    assert found is not None and not found.ok and found.error == "it ended with 3: Illegal instruction"


def test_a_stop_does_not_wait_for_it_and_leaves_no_process(home: VmHome, tmp_path: Path, fake: Fake) -> None:
    pid_file = tmp_path / "pid"
    fake(f"import os, time; open({str(pid_file)!r}, 'w').write(str(os.getpid())); time.sleep(600)")
    assert export_trial.look(home, stopped=lambda: pid_file.exists() and pid_file.read_text() != "") is None
    assert not Path(f"/proc/{pid_file.read_text()}").exists()


def test_one_that_hangs_is_given_up_and_does_not_hold_up_the_next_run(
    home: VmHome, monkeypatch: pytest.MonkeyPatch, fake: Fake
) -> None:
    monkeypatch.setattr(export_trial, "TIMEOUT_S", 0.5)
    fake("import time; time.sleep(600)")
    found = export_trial.look(home)
    assert found is not None and not found.ok and "did not end within" in found.error
    again = export_trial.look(home)
    assert again is not None and (again.ok, again.took_s, again.error) == (False, 0.0, found.error)
    monkeypatch.setattr(export_trial, "HUNG_FOR_S", 0.0)
    later = export_trial.look(home)
    assert later is not None and later.took_s > 0
