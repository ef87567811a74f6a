"""The plain functions behind the command line and the panel, and what `status` says on top."""

from __future__ import annotations

import json

from project_support import NOW, VM, Seeded

from bridgehead import names
from bridgehead.names import Ack
from run_control import commands, views
from run_control.live_view import LiveView
from run_control.project import Project


def test_override_words_keep_text_and_write_the_rest_as_json() -> None:
    words = commands.override_words({"a": 1, "b": "text", "c": True, "d": [1, 2], "e": None, "f": "0.5"})
    assert words == ["a=1", "b=text", "c=true", "d=[1,2]", "e=null", "f=0.5"]


def test_a_stage_that_runs_a_shipped_one_under_another_name_is_found(fresh: Project) -> None:
    text = fresh.file.read_text().replace("[stages.gate", "[stages.judge").replace('"gate"', '"judge"')
    fresh.file.write_text(text)
    assert commands.order_shipped(fresh, names.GATE).line == "run:judge"


def test_a_status_view_shows_the_pace_of_this_attempt(seeded: Seeded) -> None:
    [run_id] = seeded.take("run:pretrain")
    seeded.ack(run_id, Ack.STARTED)
    seeded.status(run_id)
    events = [{"event": "progress", "attempt": 1, "at": n, "step": n, "total_steps": 1000} for n in range(200)]
    (seeded.project.run(run_id) / names.PROGRESS).write_text("".join(json.dumps(event) + "\n" for event in events))
    view = views.run(seeded.project, run_id)
    assert view.rate_per_s == 1.0 and view.eta_range_s is not None and view.eta_range_s[0] < 801 < view.eta_range_s[1]
    assert any(cell.startswith("12m") and "-13m" in cell for cell in view.row())


def test_a_live_view_reads_a_status_anew_only_when_it_has_changed(seeded: Seeded) -> None:
    [run_id] = seeded.take("run:pretrain")
    seeded.ack(run_id, Ack.STARTED)
    seeded.status(run_id, step=3)
    sight = LiveView(seeded.project)
    assert sight.look() and not sight.look()
    [first], [again] = sight.runs(NOW), sight.runs(NOW)
    assert first.step == 3 and first.metrics is again.metrics
    seeded.status(run_id, step=4)
    assert not sight.look() and sight.runs(NOW)[0].step == 4
    seeded.take("run:pretrain seed=2")
    assert sight.look() and len(sight.runs(NOW)) == 2 and sight.vms(NOW)[0]["vm_id"] == VM
    sight.close()
