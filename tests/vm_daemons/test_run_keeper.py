"""What a keeper makes of trouble while it brings a checkpoint: the store is waited for, a bad one ends the run."""

from __future__ import annotations

from pathlib import Path

import pytest

from bridgehead import names
from bridgehead.errors import NotFoundError, StoreDenied, StoreFull, StoreGone, VerificationError
from bridgehead.names import FailureClass, RunState
from bridgehead.records import Command
from command_rig import Rig
from vm_daemons import run_folder, run_keeper
from vm_run_support import log_of, python


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_keeper, "RETRY_S", 0.01)


def fail_to_prepare(monkeypatch: pytest.MonkeyPatch, error: Exception, *, times: int) -> None:
    raised = []

    def prepare(*_: object) -> dict[str, Path]:
        if len(raised) < times:
            raised.append(error)
            raise error
        return {}

    monkeypatch.setattr(run_folder, "prepare", prepare)


def later(rig: Rig) -> Command:
    return rig.run(python("print('ran')"), attempt=2)


@pytest.mark.parametrize("error", [StoreDenied("signed out"), StoreGone("mount is dead"), StoreFull("no room")])
def test_trouble_with_the_store_is_waited_for_and_fails_no_run(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    fail_to_prepare(monkeypatch, error, times=run_keeper.BAD_COPY_TRIES + 2)
    with rig.daemon():
        train = later(rig)
        rig.laptop.queue(train)
        assert rig.wait_for_exit(train).state is RunState.DONE
    assert log_of(rig.dir(train)).count(f"waits for the store: {error}") == 1


@pytest.mark.parametrize(
    ("error", "failure"),
    [(VerificationError("none verifies"), FailureClass.CHECKPOINT), (NotFoundError("x"), FailureClass.ENVIRONMENT)],
)
def test_what_waiting_can_not_mend_ends_the_run(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, error: Exception, failure: FailureClass
) -> None:
    fail_to_prepare(monkeypatch, error, times=100)
    with rig.daemon():
        train = later(rig)
        rig.laptop.queue(train)
        ended = rig.wait_for_exit(train)
    assert (ended.state, ended.failure_class) == (RunState.FAILED, failure)
    assert not (rig.dir(train) / names.DEATHS).exists()
