"""Following runs to their end, and what each outcome stands for."""

from __future__ import annotations

import threading

import pytest
from project_support import VM, Seeded

from bridgehead.errors import BridgeDownError, NotFoundError, RunFailed, StillRunning, VmError, WaitTimeout
from bridgehead.names import Ack, RunState
from run_control import bridge_watch, views, wait


def test_with_no_words_all_that_have_not_ended_are_meant(seeded: Seeded) -> None:
    done, going = seeded.take("run:pretrain", "run:pretrain epochs=2")
    seeded.finish(done, RunState.DONE)
    assert wait.resolve(seeded.project, []) == [going]


def test_a_stage_means_its_newest_run(seeded: Seeded) -> None:
    _, newest = seeded.take("run:pretrain", "run:pretrain epochs=2")
    assert wait.resolve(seeded.project, ["pretrain"]) == [newest]


def test_waiting_for_nothing_is_told(seeded: Seeded) -> None:
    with pytest.raises(NotFoundError):
        wait.resolve(seeded.project, [])


def test_each_change_is_seen_once_and_the_end_ends_it(seeded: Seeded) -> None:
    [run_id] = seeded.take("run:pretrain")
    seen = []
    running = threading.Event()

    def move_on() -> None:
        seeded.ack(run_id, Ack.STARTED)
        assert running.wait(100)
        seeded.ack(run_id, Ack.FINISHED, RunState.DONE, 0)

    mover = threading.Thread(target=move_on)
    for view in wait.watch(seeded.project, [run_id], timeout_s=20, poll_s=0.005):
        seen.append(view.state)
        if view.state == "queued":
            mover.start()
        if view.state == "running":
            running.set()
    mover.join(timeout=100)
    assert seen == ["queued", "running", "done"]


def test_time_that_passes_raises_and_the_run_goes_on(seeded: Seeded) -> None:
    [run_id] = seeded.take("run:pretrain")
    with pytest.raises(WaitTimeout):
        list(wait.watch(seeded.project, [run_id], timeout_s=0.02, poll_s=0.005))
    assert not views.run(seeded.project, run_id).ended


def test_a_timeout_of_0_looks_once(seeded: Seeded) -> None:
    with pytest.raises(StillRunning):
        list(wait.watch(seeded.project, seeded.take("run:pretrain"), timeout_s=0))


def test_outcomes(seeded: Seeded) -> None:
    done, failed, going = seeded.take("run:pretrain", "run:pretrain seed=1", "run:pretrain seed=2")
    seeded.finish(done, RunState.DONE)
    seeded.finish(failed, RunState.FAILED, 3)
    assert wait.outcome(views.run(seeded.project, done)) is None
    assert isinstance(wait.outcome(views.run(seeded.project, failed)), RunFailed)
    assert isinstance(wait.outcome(views.run(seeded.project, going)), StillRunning)
    seeded.ledger.mark_vm_gone(VM, "dead")
    assert isinstance(wait.outcome(views.run(seeded.project, going)), VmError)


def test_waiting_without_a_bridge_ends_and_says_what_to_do(seeded: Seeded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bridge_watch, "GRACE_S", 0.0)
    monkeypatch.setattr(bridge_watch, "_LOOK_EVERY_S", 0.0)
    [run_id] = seeded.take("run:pretrain")
    watch = bridge_watch.BridgeWatch(seeded.project, f"bridgehead wait {run_id}")
    with pytest.raises(BridgeDownError) as caught:
        list(wait.watch(seeded.project, [run_id], poll_s=0.01, timeout_s=20, check=watch.check))
    assert caught.value.hint == f"bridgehead up, then bridgehead wait {run_id}"
