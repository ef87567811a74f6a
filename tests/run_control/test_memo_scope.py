"""Which memos the plan of a run quotes: those about the machine, the store and the tunnel that it would use."""

from __future__ import annotations

import dataclasses
import time

import pytest
from cli_process import in_process
from project_support import Seeded

from bridgehead.names import FailureClass, RunState
from run_control import launching, memo_scope, memos, plan, project_file, views
from run_control.plan import Plan
from run_control.project_file import Whole


def _note(seeded: Seeded, failure: FailureClass) -> None:
    [run_id] = seeded.take("run:pretrain")
    now = time.time()
    view = dataclasses.replace(
        views.run(seeded.project, run_id), state=RunState.FAILED, failure_class=failure, reason="seen", updated=now
    )
    memos.note(seeded.project, view, {"verdict": {"class": failure}}, now)


def _planned(seeded: Seeded) -> tuple[Whole, Plan]:
    whole = project_file.load_whole(seeded.project.root)
    return whole, plan.make(seeded.project.root, whole, launching.request_of(seeded.project, whole, "pretrain", []))


def _edit(seeded: Seeded, old: str, new: str) -> None:
    text = seeded.project.file.read_text()
    assert old in text
    seeded.project.file.write_text(text.replace(old, new, 1))


@pytest.mark.parametrize(
    ("failure", "old", "new"),
    [
        (FailureClass.NO_GPU, "gpu_memory_gb = 0", "gpu_memory_gb = 8"),
        (FailureClass.SSH_DROP, "[vm]", '[tunnel]\nkind = "ssh"\nhost = "me@host"\n\n[vm]'),
    ],
)
def test_one_that_the_run_cannot_meet_is_not_quoted(failure: FailureClass, old: str, new: str, seeded: Seeded) -> None:
    _note(seeded, failure)
    assert memo_scope.checks(seeded.project, *_planned(seeded)) == []
    _edit(seeded, old, new)
    [quoted] = memo_scope.checks(seeded.project, *_planned(seeded))
    assert quoted.text.startswith(f"{failure} 1x") and quoted.hint == f"bridgehead memos {failure}"


def test_a_mount_is_no_trouble_of_a_bucket(seeded: Seeded) -> None:
    _note(seeded, FailureClass.MOUNT_LOST)
    assert len(memo_scope.checks(seeded.project, *_planned(seeded))) == 1
    seeded.project.file.write_text(seeded.project.file.read_text() + '\n[store]\nkind = "s3"\nbucket = "b"\n')
    assert memo_scope.checks(seeded.project, *_planned(seeded)) == []


def test_the_dry_run_quotes_them_in_words_and_in_json(seeded: Seeded, capsys: pytest.CaptureFixture[str]) -> None:
    _note(seeded, FailureClass.VM_LOST)
    words = ("-C", str(seeded.project.root), "run", "pretrain", "--dry-run")
    answer = in_process(capsys, *words)
    assert answer.code == 0 and "vm_lost 1x" in answer.out
    found = [check for check in in_process(capsys, *words, "--json").data["checks"] if check["name"] == "memos"]
    assert [check["state"] for check in found] == ["warn"]
