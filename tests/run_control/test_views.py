"""What status, ps and queue show: the ledger's word, and what the VM last said."""

from __future__ import annotations

import json

import pytest
from cli_process import in_process
from project_support import NOW, VM, Seeded

from bridge.keys import KeyStore
from bridge.ledger_room import Shortage
from bridgehead import files, names
from bridgehead.names import Ack, RunState
from bridgehead.queue_lines import encode_shell
from bridgehead.records import AckRecord, Heartbeat
from run_control import views
from run_control.project import Project
from run_control.wait import watch


def test_before_the_first_up_there_is_nothing(fresh: Project) -> None:
    assert (views.runs(fresh), views.vms(fresh), views.commands(fresh), views.notes(fresh)) == ([], [], [], [])


def test_a_running_stage_shows_progress_and_how_far_its_checkpoint_has_climbed(seeded: Seeded) -> None:
    [run_id] = seeded.take("run:pretrain")
    seeded.ack(run_id, Ack.STARTED)
    seeded.status(run_id)
    [view] = views.runs(seeded.project, now=NOW)
    assert (view.state, view.step, view.total_steps, view.eta_s) == ("running", 7, 10, 30.0)
    assert view.checkpoint is not None and view.checkpoint["age_s"] == 60.0
    assert "5 mounted, 1m00s ago" in view.row() and "loss 0.5" in view.row()


def _level(step: int, level: str, at: float) -> dict[str, object]:
    return {"step": step, "level": level, "at": at, "saved_at": at - 1}


def test_each_level_shows_its_age_and_what_a_death_right_now_would_cost(seeded: Seeded) -> None:
    [run_id] = seeded.take("run:pretrain")
    seeded.ack(run_id, Ack.STARTED)
    told = {"local": _level(7, "local", NOW - 3), "mounted": _level(7, "mounted", NOW - 2)}
    seeded.status(run_id, levels=told)
    [view] = views.runs(seeded.project, now=NOW)
    assert "7 mounted 2s" in view.row() and "3s (mounted)" in view.row()
    seeded.status(run_id, levels={**told, "confirmed": _level(4, "confirmed", NOW - 124)})
    [view] = views.runs(seeded.project, now=NOW)
    assert "7 mounted 2s, 4 confirmed 2m04s" in view.row() and "2m05s (confirmed)" in view.row()
    assert view.at_risk == {"level": "confirmed", "seconds": 125.0, "steps": 3}
    assert view.levels["mounted"]["age_s"] == 2.0


def test_with_nothing_in_the_store_all_of_it_is_at_risk_until_it_has_ended(seeded: Seeded) -> None:
    [run_id] = seeded.take("run:pretrain")
    seeded.ack(run_id, Ack.STARTED)
    seeded.status(run_id, levels={"local": _level(7, "local", NOW - 3), "confirmed": ["odd"], "mounted": {"step": "x"}})
    [view] = views.runs(seeded.project, now=NOW)
    assert "7 local 3s" in view.row() and "all of it" in view.row()
    seeded.finish(run_id, RunState.DONE, 0)
    [view] = views.runs(seeded.project, now=NOW)
    assert view.at_risk is None


def test_the_vms_word_counts_while_the_run_goes(seeded: Seeded) -> None:
    [run_id] = seeded.take("run:pretrain")
    seeded.ack(run_id, Ack.STARTED)
    seeded.status(run_id, state=RunState.SAVING)
    assert views.run(seeded.project, run_id).state == "saving"


def test_a_run_whose_files_are_still_arriving_has_not_ended(seeded: Seeded) -> None:
    [run_id] = seeded.take("run:pretrain")
    seeded.ack(run_id, Ack.STARTED)
    seeded.status(run_id, state=RunState.DONE)
    assert not views.run(seeded.project, run_id).ended


def test_the_ledgers_word_counts_when_the_run_has_ended(seeded: Seeded) -> None:
    [run_id] = seeded.take("run:pretrain")
    seeded.status(run_id)
    seeded.finish(run_id, RunState.FAILED, 3)
    view = views.run(seeded.project, run_id)
    assert (view.state, view.exit_code, view.ended) == ("failed", 3, True)


def test_what_an_earlier_attempt_said_is_no_news_of_this_one(seeded: Seeded) -> None:
    [run_id] = seeded.take("run:pretrain")
    seeded.ack(run_id, Ack.STARTED)
    seeded.status(run_id)
    seeded.ledger.mark_vm_gone(VM, "dead")
    view = views.run(seeded.project, run_id)
    assert (view.state, view.attempt, view.step, view.eta_s) == ("lost", 2, 7, None)


def test_a_run_whose_vm_ended_waits_for_the_next_one_and_says_what_to_do(seeded: Seeded) -> None:
    run_id, fresh_one, done = seeded.take("run:pretrain", "run:pretrain epochs=2", "run:pretrain epochs=3")
    seeded.finish(done, RunState.DONE)
    told = {"local": _level(7, "local", NOW - 3), "confirmed": _level(4, "confirmed", NOW - 124)}
    seeded.status(run_id, levels=told)
    seeded.ledger.mark_vm_gone(VM, "dead")
    waiting, unsaved, ended = views.runs(seeded.project, now=NOW)
    todo = "waits for a VM: open the notebook and run the cell"
    assert (waiting.state, waiting.waits_for) == ("lost", f"{todo}; newest checkpoint: 7 local, 4 confirmed")
    assert unsaved.waits_for == f"{todo}; no checkpoint of it was heard of" and ended.waits_for == ""
    assert waiting.row()[1] == "waits for a VM" and "lost" not in waiting.row()
    lines = views.commands(seeded.project)
    assert lines[0]["state"] == "lost" and lines[0]["waits_for"] == waiting.waits_for
    assert views.command_row(lines[0])[1] == "waits for a VM" and todo in views.command_row(lines[0])[-1]
    assert lines[2]["waits_for"] == ""


def test_on_the_local_runtime_the_next_vm_is_one_command_away(seeded: Seeded) -> None:
    [run_id] = seeded.take("run:pretrain")
    (seeded.project.vms / "local-1").mkdir(parents=True)
    seeded.ledger.mark_vm_gone(VM, "dead")
    assert "waits for a VM: bridgehead up --runtime local;" in views.run(seeded.project, run_id).waits_for


def test_a_run_that_has_ended_on_its_vm_is_not_shown_as_running(seeded: Seeded) -> None:
    [run_id] = seeded.take("run:pretrain")
    seeded.ack(run_id, Ack.STARTED)
    seeded.status(run_id, state=RunState.DONE)
    view = views.run(seeded.project, run_id)
    assert (view.state, view.vm_state, view.row()[1]) == ("running", "done", "done, arriving")
    assert view.waits_for == "it is done on its VM; what it made is on its way here"


def test_what_this_laptop_has_no_room_for_is_told_of_the_run_in_every_view(seeded: Seeded) -> None:
    run_id, other = seeded.take("run:pretrain", "run:pretrain epochs=2")
    seeded.ack(run_id, Ack.STARTED)
    seeded.ledger.set_no_room([Shortage(f"{run_id}/artifacts/{name}", 2**30, 3, NOW, NOW) for name in "abcd"])
    told = "no room on this laptop for artifacts/a, artifacts/b, artifacts/c and 1 more (4.0 GiB): make room"
    mine, others = views.runs(seeded.project)
    assert told in mine.waits_for and others.waits_for == ""
    assert told in views.command_row(views.commands(seeded.project)[0])[-1]
    assert told in next(watch(seeded.project, [run_id])).waits_for
    seeded.finish(run_id, RunState.DONE)
    assert views.run(seeded.project, run_id).waits_for == ""


def test_what_a_done_run_left_on_its_vm_is_told(seeded: Seeded, capsys: pytest.CaptureFixture[str]) -> None:
    [run_id] = seeded.take("run:pretrain")
    row = seeded.ledger.find_run(run_id)
    why = "1 outputs stay on the VM, their names can't travel: 'artifacts/con'"
    seeded.ledger.ack(row.id, AckRecord(VM, Ack.FINISHED, row.attempt, why, 0, RunState.DONE))
    for words in ("status", "wait", "queue"):
        answer = in_process(capsys, "-C", str(seeded.project.root), words, *([run_id] if words == "wait" else []))
        assert answer.code == 0 and why in answer.out + answer.err, words


def test_a_pinned_shell_line_shows_its_vm(seeded: Seeded) -> None:
    seeded.take(f"@vm-7 {encode_shell('nvidia-smi')}", encode_shell("ls"))
    shown = [views.command_row(command)[2] for command in views.commands(seeded.project)]
    assert shown == ["@vm-7 sh: nvidia-smi", "sh: ls"]


def test_a_run_of_another_pairing_says_whose_notebook_to_run(seeded: Seeded) -> None:
    seeded.project.make_private()
    other = KeyStore(seeded.project.private / names.KEYS_FILE).make("other")
    seeded.ledger.bind_vm(VM, other.id, other.family, allow_sh=True)
    [run_id] = seeded.take("run:pretrain")
    seeded.ledger.mark_vm_gone(VM, "dead")
    told = views.run(seeded.project, run_id).waits_for
    assert f"waits for a VM of its own pairing: bridgehead notebook --key {other.id}, and run its cell" in told
    [later] = seeded.take("run:finetune")
    told = views.run(seeded.project, later).waits_for
    assert f"bridgehead notebook --key {other.id}, and run its cell: it comes after a run of that one" in told


def test_a_status_file_that_is_cut_or_newer_does_not_hide_the_run(seeded: Seeded) -> None:
    [run_id] = seeded.take("run:pretrain")
    seeded.ack(run_id, Ack.STARTED)
    seeded.status(run_id)
    path = seeded.project.run(run_id) / names.STATUS
    for text in (b'{"v": 1, "run', json.dumps({"v": 99}).encode()):
        files.write_atomic(path, text)
        assert views.run(seeded.project, run_id).state == "running"


def test_a_rejected_line_shows_its_reason(seeded: Seeded) -> None:
    seeded.take("run:pretrian", "jump:x")
    first, second = views.commands(seeded.project)
    assert first["state"] == second["state"] == "rejected"
    assert "did you mean pretrain?" in first["reason"] and "unknown verb" in second["reason"]
    assert not views.runs(seeded.project)


def test_vms_show_when_they_were_last_seen(seeded: Seeded) -> None:
    [vm] = views.vms(seeded.project, now=NOW + 5)
    assert (vm["vm_id"], vm["state"], vm["seen_age_s"]) == (VM, "live", 5.0)
    assert views.vm_row(vm)[:4] == (VM, "live", "5s ago", "1.0 GiB") and views.vm_row(vm)[-1] == "ok"


def test_a_vm_that_gave_itself_back_is_released_and_no_alarm(seeded: Seeded) -> None:
    lifetime = {"released": True, "released_at": NOW - 64, "released_because": "idle for 10s, everything is safe"}
    beat = Heartbeat(VM, "boot", NOW, store={"ok": False, "error": "the store is gone"}, lifetime=lifetime)
    seeded.ledger.heartbeat(beat)
    for end in (lambda: None, lambda: seeded.ledger.mark_vm_gone(VM, "its processes are gone")):
        end()
        [vm] = views.vms(seeded.project, now=NOW)
        assert vm["state"] == "released" and vm["released"]["at"] == NOW - 64
        assert vm["reason"] == "gave itself back 1m04s ago: idle for 10s, everything is safe"
        row = views.vm_row(vm)
        assert row[1] == "released (idle for 10s, everything is safe)" and row[-1] == ""
    seeded.beat()
    assert views.vms(seeded.project)[0]["state"] == "live", "its cell was run again"


@pytest.mark.parametrize("lifetime", [{"released": True}, {"released": True, "released_at": "x"}])
def test_a_release_of_which_no_more_is_known_is_one_all_the_same(seeded: Seeded, lifetime: dict[str, object]) -> None:
    seeded.ledger.heartbeat(Heartbeat(VM, "boot", NOW, lifetime=lifetime))
    assert views.vms(seeded.project)[0]["reason"] == "gave itself back: everything is done and safe"


@pytest.mark.parametrize(
    ("beat", "shown"),
    [
        ({"v": 1, "store": {}}, "NONE"),
        ({"v": 1, "store": {"ok": False, "error": "the store is gone"}}, "the store is gone"),
        ({"v": 1, "store": {"ok": False, "error": ""}}, "ill"),
        ({}, ""),
    ],
)
def test_a_vm_without_a_store_is_not_shown_as_a_blank(seeded: Seeded, beat: dict[str, object], shown: str) -> None:
    [vm] = views.vms(seeded.project, now=NOW)
    assert views.vm_row({**vm, "heartbeat": beat})[-1] == shown


def test_views_are_plain_json(seeded: Seeded) -> None:
    [run_id] = seeded.take("run:pretrain epochs=2")
    seeded.status(run_id)
    data = [view.to_json() for view in views.runs(seeded.project)] + views.vms(seeded.project)
    assert json.loads(json.dumps(data)) == data
