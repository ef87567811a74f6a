"""Pausing artefacts, and how far they are, as the owner sees it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from cli_process import Answer, in_process
from project_support import NOW, VM, Seeded

from bridgehead import upload_text
from bridgehead.errors import ProjectError
from bridgehead.records import Heartbeat
from run_control import project_file
from run_control.project import Project

MIB = 2**20


def call(capsys: pytest.CaptureFixture[str], project: Project, *words: str) -> Answer:
    return in_process(capsys, "-C", str(project.root), *words)


def moving(**more: Any) -> dict[str, Any]:
    run = {"run_id": "pretrain-0001-abcdef", "files": 1, "total_files": 3, "bytes": 10 * MIB, "total_bytes": 40 * MIB}
    return {"paused": False, "rate_bytes_s": 2_000_000, "eta_s": 15.0, "runs": [run], **more}


def test_a_pause_is_seen_in_status_until_it_ends(capsys: pytest.CaptureFixture[str], fresh: Project) -> None:
    def paused() -> bool:
        return bool(json.loads(call(capsys, fresh, "status", "--json").out)["data"]["uploads_paused"])

    assert not paused()
    for _ in range(2):
        assert call(capsys, fresh, "vm", "pause-uploads").code == 0
        assert paused()
    assert "resume-uploads" in call(capsys, fresh, "status").err
    for _ in range(2):
        assert call(capsys, fresh, "vm", "resume-uploads").code == 0
        assert not paused()


def test_status_shows_how_far_the_artefacts_of_a_vm_are(capsys: pytest.CaptureFixture[str], seeded: Seeded) -> None:
    seeded.ledger.heartbeat(Heartbeat(VM, "boot", NOW, uploads=moving()))
    assert (
        f"{VM}: artefacts: 1/3 files, 10.0 MiB of 40.0 MiB, 2.0 MB/s, 15s left"
        in call(capsys, seeded.project, "status").err
    )
    seeded.ledger.mark_vm_gone(VM, "dead")
    assert "artefacts:" not in call(capsys, seeded.project, "status").err


@pytest.mark.parametrize(
    "told", [None, [], {}, {"runs": 7}, {"runs": [7, {"files": "x"}]}, {"runs": [], "paused": False}, {"paused": 1}]
)
def test_what_a_vm_can_not_have_meant_is_nothing(told: object) -> None:
    assert upload_text.line(told) == ""


def test_a_pause_is_told_with_what_is_waiting() -> None:
    assert upload_text.line({"paused": True}) == "artefacts are paused: they wait on the VM"
    assert upload_text.line(moving(paused=True)).endswith("paused")


def _with(fresh: Project, project: str, vm: str) -> None:
    fresh.file.write_text(f'[project]\nname = "x"\n{project}\n[vm]\n{vm}\n[stages.a]\ncommand = "true"\n')


def test_limits_are_read_from_the_project_file(fresh: Project) -> None:
    _with(fresh, "log_max_mb = 5", "upload_mb_s = 2.5")
    rules = project_file.load(fresh.root).vm
    assert (rules.log_max_mb, rules.upload_mb_s) == (5, 2.5)


@pytest.mark.parametrize(
    ("project", "vm"), [("log_max_mb = 0", ""), ("", "upload_mb_s = 0.01"), ("", "upload_mb_s = -1")]
)
def test_limits_that_make_no_sense_are_refused_in_words(fresh: Project, project: str, vm: str) -> None:
    _with(fresh, project, vm)
    with pytest.raises(ProjectError, match="log_max_mb|upload_mb_s"):
        project_file.load(fresh.root)
