"""The class that people see of an ended run is its post-mortem's; the ledger keeps the runner's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cli_process import in_process
from project_support import Seeded

from bridgehead import files, names
from bridgehead.names import RunState
from run_control import query, views
from run_control.live_view import LiveView


def _ended(seeded: Seeded, named: Any, attempt: int = 1, state: RunState = RunState.FAILED) -> str:
    [run_id] = seeded.take("run:pretrain")
    folder = seeded.project.run(run_id)
    folder.mkdir(parents=True, exist_ok=True)
    files.write_json(folder / names.POSTMORTEM, {"verdict": {"class": named}, "end": {"attempt": attempt}})
    seeded.finish(run_id, state, 0 if state is RunState.DONE else 1)
    return run_id


@pytest.mark.parametrize("named", ["gpu_oom", "host_oom", "nan_loss", "disk_full", "segfault", "cancelled"])
def test_status_query_and_the_panel_see_the_class_of_the_post_mortem(
    seeded: Seeded, named: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(seeded.project.root)
    run_id = _ended(seeded, named)
    live = LiveView(seeded.project)
    live.look()
    assert live.runs(0.0)[0].failure_class == named
    live.close()
    assert f"failed ({named})" in in_process(capsys, "status").out
    found = query.answer(query.rows(seeded.project), query.parse(f"failure_class={named}"))
    assert [row["run_id"] for row in found] == [run_id]
    assert seeded.ledger.find_run(run_id).failure_class != named, "what is decided by the runner's word stays"


@pytest.mark.parametrize(
    ("named", "attempt", "state"),
    [
        ("gpu_oom", 2, RunState.FAILED),
        ("unknown", 1, RunState.FAILED),
        ("made up", 1, RunState.FAILED),
        (["x"], 1, RunState.FAILED),
        ("gpu_oom", 1, RunState.DONE),
    ],
)
def test_the_ledgers_word_stands_where_the_post_mortem_has_none(
    seeded: Seeded, named: Any, attempt: int, state: RunState
) -> None:
    run_id = _ended(seeded, named, attempt, state)
    assert views.run(seeded.project, run_id).failure_class == seeded.ledger.find_run(run_id).failure_class


def test_a_post_mortem_that_comes_or_changes_later_is_seen(seeded: Seeded) -> None:
    run_id = _ended(seeded, "gpu_oom")
    path: Path = seeded.project.run(run_id) / names.POSTMORTEM
    assert views.run(seeded.project, run_id).failure_class == "gpu_oom"
    files.write_json(path, {"verdict": {"class": "nccl_timeout"}, "end": {"attempt": 1}})
    assert views.run(seeded.project, run_id).failure_class == "nccl_timeout"
    path.write_text("{")
    assert views.run(seeded.project, run_id).failure_class == seeded.ledger.find_run(run_id).failure_class


def test_a_run_that_its_cap_ended_says_so_in_status(seeded: Seeded) -> None:
    for named, shown in (("time_limit", "stopped (time_limit)"), ("stopped", "stopped")):
        run_id = _ended(seeded, named, state=RunState.STOPPED)
        assert views.run(seeded.project, run_id).row()[1] == shown
