"""What the buttons do: the queue's lines, each press once, and answers that say what was wrong."""

from __future__ import annotations

import dataclasses
import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from cli_process import in_process
from project_support import VM, Seeded

from bridge_client import live_bridge
from bridgehead import names
from bridgehead.names import Ack, RunState
from control_panel.actions import Actions
from control_panel.shapes import Artifact
from run_control import bridge_control, commands, desktop, memos, project_file, queue_writer, views
from run_control.bridge_control import LiveBridge
from run_control.project import Project
from support import wait_until


def _act(actions: Actions, verb: str, press: str = "", /, **args: Any) -> dict[str, Any]:
    return actions.act({"id": press or f"press-{verb}-{len(args)}", "verb": verb, "args": args})


def _lines(project: Project) -> list[str]:
    text = project.queue.read_text() if project.queue.exists() else ""
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def test_a_run_is_planned_and_then_queued_as_the_command_line_would(fresh: Project) -> None:
    actions = Actions(fresh)
    overrides = {"tune_epochs": 3, "head_learning_rate": 0.1, "method": "probe", "label_subjects": [1, 2]}
    args = {"stage": "finetune", "overrides": overrides}
    line = "run:finetune tune_epochs=3 head_learning_rate=0.1 method=probe label_subjects=[1,2]"
    planned = _act(actions, "plan", **args)
    assert (planned["state"], planned["line"]) == ("done", line)
    assert planned["spec"]["config"]["label_subjects"] == [1, 2]
    assert _lines(fresh) == []
    sent = _act(actions, "run", **args)
    assert (sent["state"], sent["line"]) == ("sent", line) and "no bridge" in sent["text"]
    assert _lines(fresh) == [line]
    assert [(item.id, item.n, item.state) for item in actions.sent.waiting()] == [("press-run-2", 0, "sent")]


def test_an_id_is_acted_on_once_however_often_it_comes(fresh: Project) -> None:
    actions = Actions(fresh)
    answers = [_act(actions, "run", "one-press", stage="pretrain", overrides={}) for _ in range(5)]
    assert len(_lines(fresh)) == 1 and all(answer == answers[0] for answer in answers)
    _act(actions, "run", "another", stage="pretrain", overrides={})
    assert len(_lines(fresh)) == 2


def test_an_id_is_acted_on_once_when_it_comes_on_many_threads_at_once(fresh: Project) -> None:
    actions, barrier, answers = Actions(fresh), threading.Barrier(8), []

    def press() -> None:
        barrier.wait()
        answers.append(_act(actions, "sh", "one-press", text="nvidia-smi", vm=""))

    threads = [threading.Thread(target=press) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    assert len(_lines(fresh)) == 1
    assert {answer["state"] for answer in answers} == {"sent"} and len(answers) == 8


def test_a_press_that_made_its_line_before_the_kernel_died_is_recognised_by_the_next_one(fresh: Project) -> None:
    first = _act(Actions(fresh), "run", "one-press", stage="pretrain", overrides={})
    restarted = Actions(fresh)
    again = _act(restarted, "run", "one-press", stage="pretrain", overrides={})
    assert _lines(fresh) == ["run:pretrain"]
    assert (again["state"], again["line"]) == ("sent", first["line"])
    _act(restarted, "run", "another", stage="pretrain", overrides={})
    assert len(_lines(fresh)) == 2


@pytest.mark.parametrize("lines_written", [0, 1])
def test_a_kernel_that_dies_between_the_note_of_a_press_and_its_line_leaves_no_doubt(
    fresh: Project, monkeypatch: pytest.MonkeyPatch, lines_written: int
) -> None:
    real = queue_writer.append

    def dies(path: Path, lines: list[str]) -> None:
        if lines_written:
            real(path, lines)
        raise KeyboardInterrupt

    monkeypatch.setattr(queue_writer, "append", dies)
    with pytest.raises(KeyboardInterrupt):
        _act(Actions(fresh), "run", "one-press", stage="pretrain", overrides={})
    monkeypatch.setattr(queue_writer, "append", real)
    restarted = Actions(fresh)
    _act(restarted, "run", "other-press", stage="pretrain", overrides={})  # the same line is another press's
    assert _act(restarted, "fate", "f1", of="one-press")["state"] == ("sent" if lines_written else "refused")
    _act(restarted, "run", "one-press", stage="pretrain", overrides={})
    assert _lines(fresh) == ["run:pretrain"] * 2


def test_half_of_a_kill_is_completed_and_not_begun_anew(seeded: Seeded, monkeypatch: pytest.MonkeyPatch) -> None:
    [run_id] = seeded.take("run:pretrain")
    seeded.ack(run_id, Ack.STARTED)
    real, count = queue_writer.append, []

    def dies(path: Path, lines: list[str]) -> None:
        real(path, lines)
        count.append(lines)
        raise KeyboardInterrupt

    monkeypatch.setattr(queue_writer, "append", dies)
    with pytest.raises(KeyboardInterrupt):
        _act(Actions(seeded.project), "stop", "kill-it", run=run_id, now=True)
    monkeypatch.setattr(queue_writer, "append", real)
    for _ in range(3):
        _act(Actions(seeded.project), "stop", "kill-it", run=run_id, now=True)
    assert _lines(seeded.project) == [f"stop:{run_id}"] * 2


def test_a_press_of_before_is_bound_to_the_line_that_the_bridge_took(fresh: Project) -> None:
    with live_bridge(fresh.root, load_project=project_file.loader(fresh.root)) as live:
        _act(Actions(fresh), "run", "one-press", stage="pretrain", overrides={})
        [row] = wait_until(lambda: live.bridge.ledger.commands(), 20, what="the line to be taken")
        restarted = Actions(fresh)
        told = _act(restarted, "fate", "f1", of="one-press")
        assert (told["state"], told["of"], told["run"]) == ("taken", "one-press", row.run_id)
        assert restarted.sent.id_of(row.seq, row.text) == "one-press"
    assert _lines(fresh) == ["run:pretrain"]


def test_a_press_that_never_arrived_is_said_to_have_done_nothing(fresh: Project) -> None:
    told = _act(Actions(fresh), "fate", "f1", of="nobody-knows")
    assert told["state"] == "refused" and "never arrived" in told["text"]


@pytest.mark.parametrize(
    ("verb", "args", "said"),
    [
        ("dance", {}, "no such command"),
        ("run", {"stage": "pretrian"}, "no stage"),
        ("run", {"stage": "pretrain", "overrides": {"a": "two words"}}, "space"),
        ("run", {"stage": ["x"]}, "no stage"),
        ("sh", {"text": "  "}, "nothing to run"),
        ("sh", {"text": "ls", "vm": "a b"}, "not a VM name"),
        ("stop", {"run": "nobody"}, "line"),
        ("log", {"run": ""}, "line"),
        ("pair", {}, "no bridge is running"),
        ("release", {"vm": "vm-x"}, "no live VM"),
    ],
)
def test_what_can_not_be_done_is_refused_with_a_reason(fresh: Project, verb: str, args: Any, said: str) -> None:
    answer = _act(Actions(fresh), verb, **args)
    assert answer["state"] == "refused" and said in answer["text"]
    assert _lines(fresh) == []


def test_stop_asks_and_stop_now_kills(seeded: Seeded) -> None:
    [run_id] = seeded.take("run:pretrain")
    seeded.ack(run_id, Ack.STARTED)
    actions = Actions(seeded.project)
    assert _act(actions, "plan", "p1", verb="stop", run=run_id)["line"] == f"stop:{run_id}"
    assert _act(actions, "stop", run=run_id)["line"] == f"stop:{run_id}"
    assert _lines(seeded.project) == [f"stop:{run_id}"]
    seeded.ledger.take([(1, f"stop:{run_id}")], project_file.load(seeded.project.root))
    assert _act(actions, "stop", run=run_id, now=True)["line"] == f"stop:{run_id}"  # one was asked for already
    assert _lines(seeded.project) == [f"stop:{run_id}"] * 2


def test_stop_now_without_a_stop_before_is_both_lines(seeded: Seeded) -> None:
    [run_id] = seeded.take("run:pretrain")
    seeded.ack(run_id, Ack.STARTED)
    _act(Actions(seeded.project), "stop", run=run_id, now=True)
    assert _lines(seeded.project) == [f"stop:{run_id}"] * 2


@pytest.mark.parametrize("taken", [False, True], ids=["in-the-file", "taken"])
@pytest.mark.parametrize("first", ["stop:{run}", "stop:pretrain"])
def test_a_second_stop_that_would_kill_the_save_is_refused_and_kill_now_is_not(
    seeded: Seeded, first: str, taken: bool
) -> None:
    [run_id] = seeded.take("run:pretrain")
    seeded.ack(run_id, Ack.STARTED)
    earlier = first.format(run=run_id)
    queue_writer.append(seeded.project.queue, [earlier])
    if taken:
        seeded.ledger.take([(1, earlier)], project_file.load(seeded.project.root))
    actions = Actions(seeded.project)  # of another view: it did not send the first one
    told = _act(actions, "stop", "save-it", run=run_id, now=False)
    assert told["state"] == "refused" and "already being stopped by" in told["text"]
    assert ("line #2" if taken else "no bridge has taken") in told["text"] and "Kill now" in told["next"]
    assert _lines(seeded.project) == [earlier]
    assert _act(actions, "stop", "kill-it", run=run_id, now=True)["state"] == "sent"
    assert _lines(seeded.project) == [earlier, f"stop:{run_id}"]


def test_two_views_that_press_save_then_stop_at_once_write_one_line(seeded: Seeded) -> None:
    [run_id] = seeded.take("run:pretrain")
    seeded.ack(run_id, Ack.STARTED)
    actions, barrier, states = Actions(seeded.project), threading.Barrier(6), []

    def press(number: int) -> None:
        barrier.wait()
        states.append(_act(actions, "stop", f"view-{number}", run=run_id, now=False)["state"])

    threads = [threading.Thread(target=press, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    assert _lines(seeded.project) == [f"stop:{run_id}"]
    assert sorted(states) == ["refused"] * 5 + ["sent"]


def test_a_save_then_stop_that_comes_again_after_another_views_stop_kills_nothing(
    seeded: Seeded, monkeypatch: pytest.MonkeyPatch
) -> None:
    [run_id] = seeded.take("run:pretrain")
    seeded.ack(run_id, Ack.STARTED)
    real = queue_writer.append

    def dies(path: Path, lines: list[str]) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(queue_writer, "append", dies)
    with pytest.raises(KeyboardInterrupt):
        _act(Actions(seeded.project), "stop", "one-press", run=run_id)
    monkeypatch.setattr(queue_writer, "append", real)
    restarted = Actions(seeded.project)
    assert _act(restarted, "stop", "other-press", run=run_id)["state"] == "sent"
    assert _act(restarted, "stop", "one-press", run=run_id)["state"] == "refused"
    assert _lines(seeded.project) == [f"stop:{run_id}"]


def test_a_run_that_has_ended_is_not_stopped_and_can_be_resumed(seeded: Seeded) -> None:
    [run_id] = seeded.take("run:pretrain epochs=4")
    actions = Actions(seeded.project)
    assert "goes on by itself" in _act(actions, "resume", "r0", run=run_id)["text"]
    seeded.finish(run_id, RunState.STOPPED)
    assert "has ended already" in _act(actions, "stop", run=run_id)["text"]
    assert _act(actions, "resume", run=run_id)["line"] == f"run:pretrain resume={run_id} epochs=4"


def test_a_run_again_is_its_line_again_without_a_vm_that_is_gone(seeded: Seeded) -> None:
    again, shell = seeded.take(f"@{VM} run:pretrain epochs=4", f"@{VM} sh:bHM=")
    actions = Actions(seeded.project)
    assert _act(actions, "rerun", "r1", run=again)["line"] == f"@{VM} run:pretrain epochs=4"
    seeded.ledger.mark_vm_gone(VM, "dead")
    assert _act(actions, "rerun", "r2", run=again)["line"] == "run:pretrain epochs=4"
    assert _act(actions, "rerun", "r3", run=shell)["line"] == "sh: ls"


def test_a_run_with_a_spec_is_run_again_as_exactly_that(fresh: Project) -> None:
    with live_bridge(fresh.root, load_project=project_file.loader(fresh.root)) as live:
        actions = Actions(fresh)
        _act(actions, "run", stage="pretrain", overrides={"epochs": 3})
        [row] = wait_until(lambda: live.bridge.ledger.commands(), 20, what="the line to be taken")
        planned = _act(actions, "plan", "p", verb="rerun", run=row.run_id)
        assert planned["line"].startswith("run:pretrain spec="), planned
        again = _act(actions, "rerun", "r", run=row.run_id)
        assert again["line"] == planned["line"] == _lines(fresh)[-1]
        second = wait_until(lambda: live.bridge.ledger.commands()[1:], 20, what="the second line")[0]
        assert live.bridge.ledger.spec_of(second.run_id).config["epochs"] == 3


def test_what_the_project_refuses_is_refused_before_it_is_queued(fresh: Project) -> None:
    fresh.file.write_text(fresh.file.read_text() + '\n[money]\nmax_total = "3 CU"\n')  # and no price
    actions = Actions(fresh)
    planned = _act(actions, "plan", stage="pretrain", overrides={})
    answer = _act(actions, "run", stage="pretrain", overrides={})
    assert answer["state"] == planned["state"] == "refused" and answer["text"] == planned["text"]
    assert "price" in answer["text"]
    assert _lines(fresh) == []
    assert _act(actions, "run", "r2", stage="pretrain", overrides={}, unpriced="the lab pays")["state"] == "sent"


def test_the_plan_that_is_shown_quotes_the_memos_that_the_dry_run_quotes(
    seeded: Seeded, capsys: pytest.CaptureFixture[str]
) -> None:
    [run_id] = seeded.take("run:pretrain")
    view = dataclasses.replace(views.run(seeded.project, run_id), state=RunState.FAILED, reason="seen")
    memos.note(seeded.project, view, {"verdict": {"class": "vm_lost"}}, time.time())
    planned = _act(Actions(seeded.project), "plan", stage="pretrain", overrides={})
    told = in_process(capsys, "-C", str(seeded.project.root), "run", "pretrain", "--dry-run", "--json").data["checks"]
    shown = planned["plan"]["checks"]
    assert planned["state"] == "done" and [check["hint"] for check in shown] == [check["hint"] for check in told]
    assert shown[-1]["name"] == "memos" and "vm_lost 1x" in shown[-1]["text"]
    [quoted] = [check for check in told if check["name"] == "memos"]
    assert quoted["state"] == "warn" and "vm_lost 1x" in quoted["text"]


def test_a_vm_is_given_back_by_a_line_whose_plan_tells_what_becomes_of_its_runs(seeded: Seeded) -> None:
    seeded.beat(time.time())
    [run_id] = seeded.take("run:pretrain")
    seeded.ack(run_id, Ack.STARTED)
    actions = Actions(seeded.project)
    planned = _act(actions, "plan", "p1", verb="release", vm=VM)
    assert planned["line"] == f"@{VM} release:" and _lines(seeded.project) == []
    assert f"{run_id} saves a checkpoint" in planned["text"] and "no other VM is live" in planned["text"]
    assert planned["warn"] is True
    sent = _act(actions, "release", vm=VM)
    assert (sent["state"], sent["line"]) == ("sent", f"@{VM} release:")
    assert _lines(seeded.project) == [f"@{VM} release:"]


def test_a_file_that_is_in_the_way_is_named(fresh: Project) -> None:
    fresh.queue.unlink(missing_ok=True)
    fresh.queue.mkdir()
    told = _act(Actions(fresh), "sync")
    assert told["state"] == "failed" and "queue.txt: " in told["text"] and "press again" in told["next"]


def test_export_and_gate_are_the_stages_of_that_name(fresh: Project) -> None:
    actions = Actions(fresh)
    assert _act(actions, "export")["line"] == "run:export" and _act(actions, "gate")["line"] == "run:gate"
    assert _act(actions, "sync")["line"] == "sync:"


def test_a_rejected_line_is_told_with_the_bridges_reason(fresh: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    with live_bridge(fresh.root, load_project=project_file.loader(fresh.root)):
        monkeypatch.setattr(bridge_control, "find", lambda project: LiveBridge(1, 1, 1, "http://127.0.0.1:1"))
        actions = Actions(fresh)
        taken = _act(actions, "run", stage="pretrain", overrides={})
        assert taken["state"] == "taken" and taken["run"].startswith("pretrain-0001")
        answer = _act(actions, "run", "bad", stage="pretrain", overrides={"resume": "nobody"})
        assert answer["state"] == "refused" and "nobody" in answer["text"]


def test_the_pairing_cell_is_shown_once_and_kept_nowhere(fresh: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    with live_bridge(fresh.root, load_project=project_file.loader(fresh.root)) as live:
        monkeypatch.setattr(
            bridge_control, "find", lambda project: LiveBridge(1, 1, live.bridge.port, "http://h:1", "0" * 64)
        )
        actions = Actions(fresh)
        first = _act(actions, "pair", "look")
        assert first["state"] == "done" and "bh1." in first["cell"]
        again = _act(actions, "pair", "look")
        assert "cell" not in again and again["state"] == "refused"
        assert "bh1." not in json.dumps([again, [item.to_json() for item in actions.sent.waiting()]])
        assert "bh1." not in repr(vars(actions))


def test_a_log_is_read_in_pages_and_searched(seeded: Seeded) -> None:
    [run_id] = seeded.take("run:pretrain")
    log = seeded.project.run(run_id) / names.LOG
    log.parent.mkdir(parents=True)
    log.write_bytes(b"".join(b"line %d\n" % number for number in range(9000)) + b"\x1b[31mERROR: bad\x1b[0m\nlast\n")
    actions = Actions(seeded.project)
    end = _act(actions, "log", "l1", run=run_id)
    assert end["lines"][-1]["text"] == "last" and end["to_bytes"] == end["size"] == log.stat().st_size
    older = _act(actions, "log", "l2", run=run_id, to_bytes=end["from_bytes"])
    assert older["to_bytes"] == end["from_bytes"] and older["lines"][0]["at"] == older["from_bytes"]
    error = _act(actions, "log", "l3", run=run_id, first_error=True)
    [hit] = [line for line in error["lines"] if line["at"] == error["hit_bytes"]]
    assert (hit["text"], hit["level"]) == ("ERROR: bad", "error")
    found = _act(actions, "log", "l4", run=run_id, search="LINE 8000")
    assert found["hit_bytes"] == sum(len(f"line {number}\n") for number in range(8000))


def test_a_bundle_is_verified_and_what_was_found_is_told(seeded: Seeded, monkeypatch: pytest.MonkeyPatch) -> None:
    [run_id] = seeded.take("run:pretrain")
    bundle = seeded.project.run(run_id) / names.BUNDLE
    bundle.mkdir(parents=True)
    heard: list[Artifact] = []
    actions = Actions(seeded.project, on_check=heard.append)
    bad = _act(actions, "verify", run=run_id, path="bundle")
    assert bad["state"] in ("failed", "refused") and bad["text"]
    report = {"files": 12, "samples": 3, "gate": "pass"}
    monkeypatch.setattr(commands, "verify_bundle", lambda path: report if path == bundle else {})
    good = _act(actions, "verify", "again", run=run_id, path="bundle")
    assert good["state"] == "done" and "12 files" in good["text"]
    assert (heard[-1].run, heard[-1].path, heard[-1].hash_state) == (run_id, "bundle", "verified")


@pytest.mark.parametrize("path", ["../../..", "/etc", "..\\.."])
def test_only_what_has_arrived_can_be_opened_or_verified(seeded: Seeded, path: str) -> None:
    [run_id] = seeded.take("run:pretrain")
    seeded.project.run(run_id).mkdir(parents=True)
    for verb in ("open", "verify"):
        assert _act(Actions(seeded.project), verb, run=run_id, path=path)["state"] == "refused"


def test_a_folder_is_opened_and_a_file_never(seeded: Seeded, monkeypatch: pytest.MonkeyPatch) -> None:
    [run_id] = seeded.take("run:pretrain")
    folder = seeded.project.run(run_id) / names.ARTIFACTS
    folder.mkdir(parents=True)
    (folder / "run.sh").write_text("#!/bin/sh\n")
    opened: list[Path] = []
    monkeypatch.setattr(desktop, "open_folder", lambda path: bool(opened.append(path)) or True)
    answer = _act(Actions(seeded.project), "open", run=run_id, path="artifacts/run.sh")
    assert opened == [folder] and answer["text"] == str(folder)
