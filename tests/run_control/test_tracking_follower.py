"""The follower beside a real bridge: started by `up`, ended by `down`, in nobody's way however a sink behaves."""

from __future__ import annotations

import os
import signal
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_process import bridgehead, in_process
from project_support import Seeded
from tracking_rig import Recorder, end, progress

from bridgehead import names, processes
from run_control import alarms, bridge_control, init
from run_control.project import Project
from run_control.tracking import control, follower, messages
from run_control.tracking.spec import SinkKind, TrackingSpec
from run_control.tracking.tensorboard_sink import FILE
from support import wait_until

PATIENT_S = 60.0


def track(project: Project, text: str = 'sinks = ["tensorboard"]\n') -> Project:
    project.file.write_text(project.file.read_text() + f"\n[tracking]\n{text}")
    return project


def events(project: Project, run_id: str) -> Path:
    return project.private / "tensorboard" / run_id / FILE


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Project]:
    """A project with TensorBoard as its sink; whatever a test has started is gone afterwards."""
    project, _ = init.init(tmp_path / "watch")
    track(project)
    try:
        yield project
    finally:
        control.stop(project)
        bridge_control.stop(project)


def _run(project: Project) -> str:
    """A run that told one step."""
    seeded = Seeded(project)
    [run_id] = seeded.take("run:pretrain")
    progress(project.run(run_id), 1, loss=1.0)
    seeded.ledger.close()
    return run_id


def test_up_starts_it_it_tells_what_arrives_and_down_ends_it(up: Project) -> None:
    run_id = _run(up)
    assert bridgehead("up", "--port", "0", cwd=up.root).code == 0
    pid = control.live(up)
    assert pid and bridgehead("up", cwd=up.root).code == 0 and control.live(up) == pid
    wait_until(lambda: events(up, run_id).exists() and events(up, run_id).stat().st_size, PATIENT_S)
    before = events(up, run_id).stat().st_size
    progress(up.run(run_id), 2, loss=0.5)
    wait_until(lambda: events(up, run_id).stat().st_size > before, PATIENT_S)
    answer = bridgehead("track", "--once", cwd=up.root)
    assert answer.code == 11 and f"process {pid}" in answer.err
    below = processes.descendants(pid)
    assert bridgehead("down", cwd=up.root).code == 0
    assert not any(processes.start_ticks(found) for found in (pid, *below)) and not alarms.alarms(up)


def test_a_sink_that_hangs_holds_up_neither_the_bridge_nor_down(up: Project) -> None:
    """Its file is a pipe that nobody reads: opening it never returns."""
    run_id = _run(up)
    events(up, run_id).parent.mkdir(parents=True)
    os.mkfifo(events(up, run_id))
    assert bridgehead("up", "--port", "0", cwd=up.root).code == 0
    pid, live = control.live(up), bridge_control.find(up)
    assert pid and live is not None
    wait_until(lambda: processes.descendants(pid), PATIENT_S, what="the sink's process")
    with urllib.request.urlopen(f"{live.url}{names.HEALTH_PATH}", timeout=PATIENT_S) as answer:
        assert answer.read() == b"ok"
    assert bridgehead("run", "pretrain", cwd=up.root).code == 0
    below = processes.descendants(pid)
    assert bridgehead("down", cwd=up.root).code == 0
    assert not any(processes.start_ticks(found) for found in (pid, *below))


def test_one_that_was_killed_is_told_of_and_started_by_the_next_up(up: Project) -> None:
    control.ensure(up, TrackingSpec((SinkKind.TENSORBOARD,)))
    pid = control.live(up)
    assert pid
    wait_until(lambda: control.record_path(up).exists(), PATIENT_S)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not processes.start_ticks(pid), PATIENT_S)
    [line] = alarms.alarms(up)
    assert line == "runs are not told to tensorboard: the follower has ended. next: bridgehead up"
    assert line.startswith(alarms.QUIET)
    control.ensure(up, TrackingSpec((SinkKind.TENSORBOARD,)))
    assert control.live(up) not in (0, pid) and not alarms.alarms(up)


def test_without_a_table_nothing_is_started(fresh: Project) -> None:
    assert control.ensure(fresh, TrackingSpec()) == [] and not control.live(fresh)
    assert not control.stop(fresh)


def test_a_package_that_is_missing_is_one_line_of_up(fresh: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "missing", lambda kind: "pip install it")
    monkeypatch.setattr(control, "_spawn", lambda project: None)
    [line] = control.ensure(fresh, TrackingSpec((SinkKind.WANDB,)))
    assert line == "runs are not told to wandb: the package wandb is not installed. next: pip install it"


def test_track_once_tells_everything_and_then_has_nothing_to_tell(
    seeded: Seeded, capsys: pytest.CaptureFixture[str]
) -> None:
    track(seeded.project)
    run_id = _run(seeded.project)
    end(seeded, run_id)
    for points in (1, 0):
        [told] = in_process(capsys, "-C", str(seeded.project.root), "track", "--once", "--json").data["sinks"]
        assert (told["sink"], told["state"], told["runs"], told["points"]) == ("tensorboard", "told", 1, points)
    assert events(seeded.project, run_id).stat().st_size > 0


def test_track_once_says_which_sink_took_not_all(seeded: Seeded, capsys: pytest.CaptureFixture[str]) -> None:
    track(seeded.project)
    run_id = _run(seeded.project)
    events(seeded.project, run_id).mkdir(parents=True)  # a folder where its file should be
    answer = in_process(capsys, "-C", str(seeded.project.root), "track", "--once")
    assert answer.code == 12 and "tensorboard" in answer.err and "Traceback" not in answer.out + answer.err


def test_track_without_a_sink_says_what_to_write(fresh: Project, capsys: pytest.CaptureFixture[str]) -> None:
    answer = in_process(capsys, "-C", str(fresh.root), "track", "--once")
    assert answer.code == 2 and 'sinks = ["tensorboard"]' in answer.err


def test_a_table_that_changes_counts_without_a_restart(up: Project) -> None:
    run_id = _run(up)
    control.ensure(up, TrackingSpec((SinkKind.TENSORBOARD,)))
    pid = control.live(up)
    wait_until(lambda: events(up, run_id).exists(), PATIENT_S)
    up.file.write_text(up.file.read_text() + 'tensorboard_folder = ".bridgehead/other"\nspelling = 1\n')
    up.file.write_text(up.file.read_text().replace("spelling = 1\n", ""))
    progress(up.run(run_id), 2, loss=0.5)
    wait_until(lambda: (up.private / "other" / run_id / FILE).exists(), PATIENT_S, what="the other folder")
    assert control.live(up) == pid


def test_one_sink_that_hangs_holds_up_no_other(seeded: Seeded, tmp_path: Path) -> None:
    run_id = _run(seeded.project)
    stuck, well = Recorder(tmp_path / "stuck"), Recorder(tmp_path / "well")
    stuck.behave("hang")
    told = [stuck.feed(name="stuck", timeout_s=600.0), well.feed(name="well")]
    control.folder(seeded.project).mkdir()
    mine = follower._Follower(seeded.project, "watch", told, lambda text: None)
    mine.start()
    try:
        wait_until(lambda: stuck.pids and well.rows(run_id), PATIENT_S)
    finally:
        mine.stop()
    wait_until(lambda: not any(processes.start_ticks(pid) for pid in stuck.pids + well.pids), PATIENT_S)


def test_what_a_tool_says_is_told_without_its_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "0123456789abcdef")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "hush-hush")
    text = messages.shown("401 for https://me:sesame@host/x?k=0123456789abcdef\n by hush-hush")
    assert text == "401 for https://…@host/x?k=… by …"
    assert len(messages.shown("x" * 1000)) == messages.ERROR_MAX
