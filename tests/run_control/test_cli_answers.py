"""What commands answer when all is well. In this process: the codes of failures are tested on real ones."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from cli_process import Answer, in_process
from project_support import VM, Seeded

from bridgehead.names import Ack, RunState
from run_control import cli
from run_control.project import Project

Call = Callable[..., Answer]


@pytest.fixture
def bridgehead(capsys: pytest.CaptureFixture[str]) -> Call:
    def call(*words: str, project: Project) -> Answer:
        return in_process(capsys, "-C", str(project.root), *words)

    return call


def test_a_run_that_is_done_exits_0(bridgehead: Call, seeded: Seeded) -> None:
    [run_id] = seeded.take("run:pretrain")
    seeded.finish(run_id, RunState.DONE)
    assert bridgehead("wait", run_id, project=seeded.project).code == 0
    assert bridgehead("status", run_id, "--exit-status", project=seeded.project).code == 0


def test_wait_json_is_a_stream_of_objects_that_ends_with_the_data(bridgehead: Call, seeded: Seeded) -> None:
    [run_id] = seeded.take("run:pretrain")
    seeded.finish(run_id, RunState.DONE)
    answer = bridgehead("wait", run_id, "--json", project=seeded.project)
    first, last = (json.loads(line) for line in answer.out.splitlines())
    assert first["seq"] == 1 and first["run"]["run_id"] == run_id
    assert last["ok"] and last["data"]["runs"][0]["state"] == "done"


def test_a_run_that_waits_for_a_vm_says_so_and_never_that_it_is_lost(bridgehead: Call, seeded: Seeded) -> None:
    [run_id] = seeded.take("run:pretrain")
    seeded.ledger.mark_vm_gone(VM, "dead")
    todo = "waits for a VM: open the notebook and run the cell"
    for words in ((), (run_id,)):
        answer = bridgehead("status", *words, project=seeded.project)
        assert todo in answer.out + answer.err and "lost" not in answer.out + answer.err
    answer = bridgehead("queue", project=seeded.project)
    assert todo in answer.out and "lost" not in answer.out
    data = bridgehead("status", "--json", project=seeded.project).data
    assert data["runs"][0]["state"] == "lost" and todo in data["runs"][0]["waits_for"]


def test_queueing_without_a_bridge_succeeds_and_says_so(bridgehead: Call, fresh: Project) -> None:
    answer = bridgehead("run", "pretrain", "epochs=3", "--json", project=fresh)
    assert answer.code == 0 and answer.data == {"line": "run:pretrain epochs=3", "taken": False, "seq": 0, "run_id": ""}
    assert fresh.queue.read_text().endswith("\nrun:pretrain epochs=3\n")


def test_a_dry_run_shows_the_resolved_stage_and_queues_nothing(bridgehead: Call, fresh: Project) -> None:
    before = fresh.queue.read_text()
    answer = bridgehead("run", "pretrain", "epochs=3", "--dry-run", "--json", project=fresh)
    assert answer.data["spec"]["config"]["epochs"] == 3
    assert fresh.queue.read_text() == before


def test_where_to_begin_and_what_may_differ_go_onto_the_queue_line(bridgehead: Call, fresh: Project) -> None:
    words = ("pretrain", "--resume", "pretrain-0001-abcdef", "--allow-code", "--allow-config", "epochs=3")
    line = "run:pretrain resume=pretrain-0001-abcdef allow=code,config epochs=3"
    shown = bridgehead("run", *words, "--dry-run", "--json", project=fresh).data
    assert shown["line"] == line and shown["spec"]["resume_from"] == "pretrain-0001-abcdef"
    assert shown["spec"]["allow"] == ["code", "config"] and not {"resume", "allow"} & set(shown["spec"]["config"])
    assert bridgehead("run", *words, "--json", project=fresh).data["line"] == line


def test_the_project_is_named_before_or_after_the_command(fresh: Project, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (("-C", str(fresh.root), "status"), ("status", "-C", str(fresh.root))):
        assert cli.main([*words, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["data"]["project"] == str(fresh.root)


def test_down_with_nothing_up_succeeds(bridgehead: Call, fresh: Project) -> None:
    answer = bridgehead("down", "--json", project=fresh)
    assert answer.code == 0 and answer.data == {"stopped_bridge": False, "stopped_vms": []}


def test_status_in_text_and_json_tell_the_same(bridgehead: Call, seeded: Seeded) -> None:
    [run_id] = seeded.take("run:pretrain")
    seeded.ack(run_id, Ack.STARTED)
    seeded.status(run_id)
    text = bridgehead("status", project=seeded.project)
    data = bridgehead("ps", "--json", project=seeded.project).data
    assert run_id in text.out and "5 mounted" in text.out and "\x1b" not in text.out
    assert data["runs"][0]["run_id"] == run_id and data["bridge"] is None
    assert "no bridge is running" in text.err


def test_a_table_in_a_pipe_is_not_cut_to_a_width(bridgehead: Call, seeded: Seeded) -> None:
    seeded.take("jump:" + "x" * 300)
    answer = bridgehead("queue", project=seeded.project)
    assert "unknown verb" in answer.out and "known: release, run, sh" in answer.out.replace("  ", " ")


def test_a_hostile_line_does_not_repaint_the_terminal(bridgehead: Call, seeded: Seeded) -> None:
    seeded.take("jump:\x1b[2J\x07")
    answer = bridgehead("queue", project=seeded.project)
    assert "\x1b" not in answer.out and "jump:\\x1b[2J" in answer.out


def test_a_shell_line_is_shown_as_text(bridgehead: Call, seeded: Seeded) -> None:
    from bridgehead.queue_lines import encode_shell

    seeded.take(encode_shell("nvidia-smi -L"))
    assert "sh: nvidia-smi -L" in bridgehead("queue", project=seeded.project).out


def test_logs_as_json_are_lines(bridgehead: Call, seeded: Seeded) -> None:
    [run_id] = seeded.take("run:pretrain")
    folder = seeded.project.run(run_id)
    folder.mkdir(parents=True)
    (folder / "log").write_bytes(b"one\n\x1b[31mtwo\n")
    data = bridgehead("logs", "pretrain", "-n", "5", "--json", project=seeded.project).data
    assert data == {"run_id": run_id, "lines": ["one", "two"]}


def test_following_as_json_numbers_the_lines_and_ends_with_the_run(bridgehead: Call, seeded: Seeded) -> None:
    [run_id] = seeded.take("run:pretrain")
    folder = seeded.project.run(run_id)
    folder.mkdir(parents=True)
    (folder / "log").write_text("one\ntwo\n")
    seeded.finish(run_id, RunState.DONE)
    answer = bridgehead("logs", "-f", "pretrain", "--json", project=seeded.project)
    events = [json.loads(line) for line in answer.out.splitlines()]
    assert [event["seq"] for event in events] == [1, 2, 3]
    assert [event.get("line") for event in events] == ["one", "two", None]
    assert events[-1]["run"]["state"] == "done"


def test_stopping_what_has_ended_queues_nothing(bridgehead: Call, seeded: Seeded) -> None:
    [run_id] = seeded.take("run:pretrain")
    seeded.finish(run_id, RunState.DONE)
    before = seeded.project.queue.read_text()
    assert bridgehead("stop", run_id, project=seeded.project).code == 0
    assert seeded.project.queue.read_text() == before


def test_a_shell_command_of_several_words_keeps_its_quoting(bridgehead: Call, fresh: Project) -> None:
    from bridgehead.queue_lines import parse_line

    answer = bridgehead("sh", "--json", "--", "echo", "a b", "$HOME", project=fresh)
    line = parse_line(answer.data["line"])
    assert line is not None and line.argument == "echo 'a b' '$HOME'"


@pytest.mark.parametrize(
    "words", ["up", "status", "run x", "sh ls", "stop x", "wait", "logs x", "notebook", "vm start", "vm kill"]
)
def test_outside_a_project_each_command_says_how_to_make_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: str
) -> None:
    assert cli.main(["-C", str(tmp_path), *words.split()]) == 2
    assert "bridgehead init" in capsys.readouterr().err


def test_a_laptop_without_room_is_said_in_status(
    bridgehead: Call, seeded: Seeded, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeded.project.inbox.mkdir(exist_ok=True)
    assert bridgehead("status", "--json", project=seeded.project).data["alarms"] == []
    usage = shutil.disk_usage(seeded.project.root)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1 << 20))
    assert "1 MiB free: nothing arrives" in bridgehead("status", project=seeded.project).err
    assert len(bridgehead("status", "--json", project=seeded.project).data["alarms"]) == 1
