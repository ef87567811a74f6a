"""What the plan of a run says of VMs on which the export after it would fail."""

from __future__ import annotations

import time

import pytest
from cli_process import in_process
from project_support import NOW, VM, Seeded

from bridgehead.records import Heartbeat
from run_control.project import Project

_TRIAL = {"what": "onnx can't be imported", "hint": 'add "onnx" to [vm] requirements', "at": NOW}
_OTHER = '[stages.sweep]\ncommand = "python sweep.py"\n'


@pytest.fixture
def failed(seeded: Seeded) -> Project:
    """A project whose one VM, alive, has tried an export in vain."""
    seeded.now = time.time()
    seeded.ledger.heartbeat(Heartbeat(VM, "boot", seeded.now, store={"ok": True}, export_trial=_TRIAL))
    return seeded.project


def _warnings(project: Project, capsys: pytest.CaptureFixture[str], stage: str) -> list[str]:
    answer = in_process(capsys, "-C", str(project.root), "run", stage, "--dry-run", "--json")
    assert answer.code == 0
    return [check["text"] for check in answer.data["checks"] if check["name"] == "export"]


def test_the_plan_of_a_run_before_an_export_warns_of_a_vm_that_cannot(
    failed: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    told = [f"{VM} can't export: onnx can't be imported"]
    assert _warnings(failed, capsys, "pretrain") == _warnings(failed, capsys, "export") == told
    failed.file.write_text(f"{failed.file.read_text()}\n{_OTHER}")
    assert _warnings(failed, capsys, "sweep") == []  # nothing that exports comes after it
