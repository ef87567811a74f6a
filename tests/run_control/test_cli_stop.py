"""bridgehead stop: the first lets a run save, and none kills a save whose person was not told."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest
from cli_process import Answer, in_process
from project_support import Seeded

from bridgehead import files, names
from bridgehead.names import Ack
from run_control import cli_stop, project_file, stopping, views

Stop = Callable[..., Answer]


@pytest.fixture
def run_id(seeded: Seeded) -> str:
    [started] = seeded.take("run:pretrain")
    seeded.ack(started, Ack.STARTED)
    return started


@pytest.fixture
def stop(capsys: pytest.CaptureFixture[str], seeded: Seeded, run_id: str) -> Stop:
    return lambda *words: in_process(capsys, "-C", str(seeded.project.root), "stop", run_id, *words)


def _lines(seeded: Seeded) -> list[str]:
    return [line for line in seeded.project.queue.read_text().splitlines() if line.startswith("stop:")]


def test_a_second_one_tells_what_it_would_do_and_does_nothing(stop: Stop, seeded: Seeded, run_id: str) -> None:
    assert stop().code == 0 and _lines(seeded) == [f"stop:{run_id}"]
    seeded.ledger.take([(2, f"stop:{run_id}")], project_file.load(seeded.project.root))
    again = stop()
    assert again.code == 0 and _lines(seeded) == [f"stop:{run_id}"]
    assert "already being stopped by line #2, since" in again.out and "loses what was not saved" in again.out
    assert f"bridgehead stop {run_id} --kill" in again.out
    told = stop("--json").data
    assert told["taken"] is False and told["already"]["lines"] == [2]


@pytest.mark.parametrize("asked_before", [False, True])
def test_kill_writes_what_is_missing_to_a_kill(stop: Stop, seeded: Seeded, run_id: str, asked_before: bool) -> None:
    if asked_before:
        stop()
    assert stop("--kill").code == 0
    assert _lines(seeded) == [f"stop:{run_id}"] * 2


@pytest.mark.parametrize(("answer", "lines"), [(False, 1), (True, 2)])
def test_at_a_terminal_it_asks_first(
    stop: Stop, seeded: Seeded, monkeypatch: pytest.MonkeyPatch, answer: bool, lines: int
) -> None:
    stop()
    asked: list[str] = []

    def confirm(text: str, **_options: object) -> bool:
        asked.append(text)
        return answer

    monkeypatch.setattr(cli_stop, "can_ask", lambda as_json: not as_json)
    monkeypatch.setattr(cli_stop.typer, "confirm", confirm)
    assert stop().code == 0
    assert len(asked) == 1 and "to kill it now loses what was not saved" in asked[0]
    assert len(_lines(seeded)) == lines


def test_what_its_vm_does_by_itself_is_joined_and_told(stop: Stop, seeded: Seeded, run_id: str) -> None:
    seeded.status(run_id)
    path = seeded.project.run(run_id) / names.STATUS
    why = "its cap of 1h00m of running is reached; its checkpoint is safe"
    files.write_json(path, {**files.read_json(path), "stopping": why, "stopping_at": time.time() - 14 * 60})
    answer = stop()
    assert f"already being stopped: {why}, since " in answer.err and "this joins it" in answer.err
    assert _lines(seeded) == [f"stop:{run_id}"]
    assert "--kill" in stop().out and len(_lines(seeded)) == 1


def test_stops_at_once_write_one_line(seeded: Seeded, run_id: str) -> None:
    barrier = threading.Barrier(4)

    def press() -> None:
        barrier.wait()
        cli_stop._stop(seeded.project, run_id, kill=False, as_json=True)

    threads = [threading.Thread(target=press) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(40)
    assert _lines(seeded) == [f"stop:{run_id}"]


def test_nothing_is_under_way_of_a_run_that_nobody_stops(seeded: Seeded, run_id: str) -> None:
    assert stopping.under_way(seeded.project, views.run(seeded.project, run_id)) is None
