"""A sink is told everything once, goes on where it was, and whatever it does holds up nobody else."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from project_support import Seeded
from tracking_rig import Recorder, end, feeder, progress

from bridgehead import names, processes
from bridgehead.names import RunState
from run_control.tracking.child import SinkFailed, SinkProcess
from run_control.tracking.feeder import Feeder
from support import wait_until


@pytest.fixture
def recorder(tmp_path: Path) -> Recorder:
    return Recorder(tmp_path / "sink")


@pytest.fixture
def run_id(seeded: Seeded) -> str:
    """A run that told three steps."""
    [run_id] = seeded.take("run:pretrain epochs=3 seed=7")
    for step in (1, 2, 3):
        progress(seeded.project.run(run_id), step, loss=1.0 / step)
    return run_id


def _rounds(mine: Feeder, times: int = 1) -> Feeder:
    try:
        for _ in range(times):
            mine.round()
    finally:
        mine.close()
    return mine


def test_a_run_is_told_with_its_name_config_and_spec_as_it_goes(
    seeded: Seeded, recorder: Recorder, run_id: str
) -> None:
    mine = feeder(seeded, recorder.feed())
    mine.round()
    progress(seeded.project.run(run_id), 4, loss=0.25)
    mine.round()
    mine.round()
    end(seeded, run_id, accuracy=0.9)
    _rounds(mine)
    told = recorder.told
    assert [len(message["points"]) for message in told] == [3, 1, 0]
    assert told[0]["head"]["run_id"] == run_id and told[0]["head"]["stage"] == "pretrain"
    assert told[0]["head"]["config"]["epochs"] == 3 and told[0]["head"]["config"]["seed"] == 7
    assert [message["head_is_new"] for message in told] == [True, False, False]
    assert told[2]["end"]["state"] == "done" and told[2]["end"]["hours"] == 0.1
    assert told[2]["end"]["summary"]["results.accuracy"] == 0.9
    assert told[2]["place"] == {"messages": 2}


def test_a_follower_that_was_restarted_goes_on_where_it_was(seeded: Seeded, recorder: Recorder, run_id: str) -> None:
    _rounds(feeder(seeded, recorder.feed()))
    progress(seeded.project.run(run_id), 4, loss=0.25)
    _rounds(feeder(seeded, recorder.feed()), 2)
    assert [step for step, _ in recorder.rows(run_id)] == [1, 2, 3, 4]


def test_what_was_told_to_its_end_is_not_told_again(seeded: Seeded, recorder: Recorder, run_id: str) -> None:
    end(seeded, run_id)
    for _ in range(2):
        _rounds(feeder(seeded, recorder.feed()), 2)
    assert len(recorder.told) == 1 and len(recorder.pids) == 1


def test_what_arrives_after_the_end_is_told_and_the_end_again(seeded: Seeded, recorder: Recorder, run_id: str) -> None:
    end(seeded, run_id)
    mine = feeder(seeded, recorder.feed())
    mine.round()
    progress(seeded.project.run(run_id), 4, loss=0.25)
    _rounds(mine)
    assert [step for step, _ in recorder.rows(run_id)] == [1, 2, 3, 4] and len(recorder.ends(run_id)) == 2


def test_a_sink_that_hangs_is_ended_after_its_time_and_told_later(
    seeded: Seeded, recorder: Recorder, run_id: str
) -> None:
    recorder.behave("hang")
    mine = feeder(seeded, recorder.feed(timeout_s=0.3))
    mine.round()
    assert "no answer for 0.3 s" in mine.standing.trouble and mine.standing.waiting == 1
    [pid] = recorder.pids
    assert not processes.start_ticks(pid)
    recorder.behave("ok")
    mine.feed = recorder.feed()
    _rounds(mine)
    assert [step for step, _ in recorder.rows(run_id)] == [1, 2, 3] and not mine.standing.trouble


@pytest.mark.parametrize("mode", ["die", "refuse"])
def test_a_sink_that_fails_is_told_later_and_nothing_is_lost(
    seeded: Seeded, recorder: Recorder, run_id: str, mode: str
) -> None:
    recorder.behave(mode)
    mine = feeder(seeded, recorder.feed())
    mine.round()
    assert mine.standing.trouble and not recorder.told
    recorder.behave("ok")
    _rounds(mine)
    assert len(recorder.rows(run_id)) == 3 and not mine.standing.trouble


def test_a_message_that_was_taken_and_not_answered_comes_again_from_the_same_place(
    seeded: Seeded, recorder: Recorder, run_id: str
) -> None:
    """So a sink can cut back to that place; those that can't do so know their rows."""
    recorder.behave("forget")
    mine = feeder(seeded, recorder.feed())
    mine.round()
    recorder.behave("ok")
    _rounds(mine)
    first, second = recorder.told
    assert first == second and first["place"] == {}


def test_a_run_that_a_sink_can_not_stand_holds_up_no_other(seeded: Seeded, recorder: Recorder, run_id: str) -> None:
    runs = [run_id, *seeded.take("run:pretrain epochs=4", "run:pretrain epochs=5")]
    for other in runs[1:]:
        progress(seeded.project.run(other), 1, loss=1.0)
    for mode in (f"refuse {run_id}", f"die {run_id}"):
        recorder.behave(mode)
        mine = feeder(seeded, recorder.feed())
        _rounds(mine, 3)
        assert {message["run"] for message in recorder.told} == set(runs[1:]) and mine.standing.trouble


def test_a_sink_that_gets_whole_runs_hears_of_none_that_lives(seeded: Seeded, recorder: Recorder, run_id: str) -> None:
    mine = feeder(seeded, recorder.feed(whole=True))
    mine.round()
    assert not recorder.told
    end(seeded, run_id)
    recorder.behave("die")
    mine.round()
    recorder.behave("ok")
    _rounds(mine)
    [told] = recorder.told
    assert told["anew"] and len(told["points"]) == 3 and told["end"]["state"] == "done"


def test_a_whole_run_is_begun_anew_when_half_of_it_was_told(
    seeded: Seeded, recorder: Recorder, run_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("run_control.tracking.story.READ_MAX_BYTES", 300)  # two words of progress
    end(seeded, run_id)
    recorder.behave("forget")
    mine = feeder(seeded, recorder.feed(whole=True))
    mine.round()
    recorder.behave("ok")
    _rounds(mine)
    assert [message["anew"] for message in recorder.told[:2]] == [True, True]
    assert [step for step, _ in recorder.rows(run_id)][-3:] == [1, 2, 3] and recorder.told[-1]["end"]


def test_runs_of_which_nothing_arrived_and_shell_commands_are_not_told(seeded: Seeded, recorder: Recorder) -> None:
    waiting, shell = seeded.take("run:pretrain", "sh:bHM=")
    progress(seeded.project.run(shell), 1, loss=1.0)
    seeded.finish(waiting, RunState.STOPPED)
    _rounds(feeder(seeded, recorder.feed()))
    assert not recorder.told and not recorder.pids


def test_an_idle_process_ends_and_another_one_takes_the_next_run(
    seeded: Seeded, recorder: Recorder, run_id: str
) -> None:
    mine = feeder(seeded, recorder.feed(), idle_s=0.0)
    thread = threading.Thread(target=mine.run)
    thread.start()
    try:
        wait_until(lambda: recorder.told, 60, what="the first message")
        wait_until(lambda: not processes.start_ticks(recorder.pids[0]), 60, what="its end")
        progress(seeded.project.run(run_id), 4, loss=0.25)
        wait_until(lambda: len(recorder.told) == 2, 60, what="the second message")
    finally:
        mine.stop()
        thread.join(60)
    assert len(recorder.pids) == 2 and not processes.start_ticks(recorder.pids[1])


def test_a_stop_waits_for_no_sink(seeded: Seeded, recorder: Recorder, run_id: str) -> None:
    recorder.behave("hang")
    mine = feeder(seeded, recorder.feed(timeout_s=600))
    thread = threading.Thread(target=mine.run)
    thread.start()
    wait_until(lambda: recorder.pids, 60, what="its process")
    mine.stop()
    mine.kill()
    thread.join(60)
    assert not thread.is_alive() and not processes.start_ticks(recorder.pids[0])


def test_a_damaged_note_of_how_far_it_was_begins_anew(seeded: Seeded, recorder: Recorder, run_id: str) -> None:
    _rounds(feeder(seeded, recorder.feed()))
    note = seeded.project.private / names.TRACKING / "recorder" / f"{run_id}.json"
    note.write_text('{"v": 1, "offset": "far"}')
    _rounds(feeder(seeded, recorder.feed()))
    assert [step for step, _ in recorder.rows(run_id)] == [1, 2, 3] * 2
    assert recorder.told[1]["place"] == {} and recorder.told[1]["head_is_new"]


def test_a_package_that_is_missing_is_one_clear_line(seeded: Seeded, recorder: Recorder, run_id: str) -> None:
    feed = recorder.feed(name="wandb")
    mine = feeder(seeded, type(feed)(feed.name, feed.settings, feed.argv, 60.0, missing=lambda: "pip install it"))
    _rounds(mine)
    assert mine.standing.trouble == "the package wandb is not installed" and mine.standing.next == "pip install it"
    assert not recorder.pids


def test_a_stubborn_sink_is_ended(recorder: Recorder, tmp_path: Path) -> None:
    recorder.behave("stubborn")
    feed = recorder.feed()
    child = SinkProcess(feed.argv, feed.settings, tmp_path / "log")
    child.close(0.2)
    assert not child.alive and not processes.start_ticks(child.pid)


def test_a_sink_whose_follower_was_killed_ends_by_itself(recorder: Recorder, tmp_path: Path) -> None:
    feed = recorder.feed()
    child = SinkProcess(feed.argv, feed.settings, tmp_path / "log")
    assert child._process.stdin is not None
    child._process.stdin.close()  # what the kernel does when the follower dies
    wait_until(lambda: not child.alive, 60, what="its end")
    child.kill()


def test_what_a_tool_prints_does_not_disturb_and_is_kept(recorder: Recorder, tmp_path: Path) -> None:
    feed = recorder.feed()
    SinkProcess(feed.argv, feed.settings, tmp_path / "log").close()
    assert "a tool that prints onto stdout" in (tmp_path / "log").read_text()


def test_a_process_that_never_begins_to_answer_is_given_up(tmp_path: Path) -> None:
    with pytest.raises(SinkFailed, match="no answer for"):
        SinkProcess(["sleep", "600"], {}, tmp_path / "log", open_s=0.3)
    with pytest.raises(SinkFailed, match="can't be started"):
        SinkProcess(["/nowhere/sink"], {}, tmp_path / "log")


def test_a_sink_that_is_down_is_asked_less_and_less_often(seeded: Seeded, recorder: Recorder, run_id: str) -> None:
    recorder.behave("die")
    mine = feeder(seeded, recorder.feed(), first_pause_s=3600.0)
    before = time.monotonic()
    _rounds(mine, 5)
    assert len(recorder.pids) == 1 and mine._state.pause.until > before + 200
