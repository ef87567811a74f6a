"""Logs and status first, artefacts after; pauses, limits and what is told of it, on a clock of the test's own."""

from __future__ import annotations

import threading

import pytest

from support import wait_until
from vm_daemons.upload_pace import BEHIND_MAX_S, UploadPace


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def pace(clock: Clock) -> UploadPace:
    return UploadPace(clock=clock, sleep=clock.sleep)


def test_an_artefact_goes_at_once_while_the_logs_have_caught_up(pace: UploadPace, clock: Clock) -> None:
    assert pace.logs_first(lambda: False) is False
    pace.wait_turn()
    assert clock.now == 100.0


def test_an_artefact_waits_until_no_logs_are_left(clock: Clock) -> None:
    def sleep(seconds: float) -> None:
        clock.now += seconds
        pace.logs_first(lambda: clock.now < 100.5)

    pace = UploadPace(clock=clock, sleep=sleep)
    pace.logs_first(lambda: True)
    pace.wait_turn()
    assert clock.now == pytest.approx(100.5, abs=0.1)


def test_an_artefact_waits_while_a_turn_of_the_logs_takes_long(pace: UploadPace, clock: Clock) -> None:
    """The line is busy, and the next part of an artefact would take it from the logs."""

    def slow() -> bool:
        clock.now += 1.0
        pace.wait_turn()  # what the thread of the artefacts does meanwhile
        return False

    pace.logs_first(slow)
    assert clock.now == pytest.approx(101.0 + BEHIND_MAX_S, abs=0.1)


def test_logs_without_end_hold_an_artefact_up_for_a_moment_only(pace: UploadPace, clock: Clock) -> None:
    pace.logs_first(lambda: True)
    pace.wait_turn()
    assert clock.now == pytest.approx(100.0 + BEHIND_MAX_S, abs=0.1)


def test_logs_that_fail_hold_nothing_up_for_good(pace: UploadPace, clock: Clock) -> None:
    def fail() -> bool:
        raise OSError("no line")

    with pytest.raises(OSError, match="no line"):
        pace.logs_first(fail)
    clock.now += 60.0
    pace.wait_turn()
    assert clock.now == 160.0


def test_a_pause_holds_artefacts_and_not_logs() -> None:
    pace = UploadPace()
    pace.heed({"paused": True, "mb_s": 0.0})
    passed = threading.Event()
    waiter = threading.Thread(target=lambda: (pace.wait_turn(), passed.set()), daemon=True)
    waiter.start()
    assert pace.logs_first(lambda: False) is False
    assert not passed.is_set() and pace.told() == {"paused": True}
    pace.heed({"paused": False, "mb_s": 0.0})
    wait_until(passed.is_set, 20, what="the end of the pause")
    waiter.join(100)


@pytest.mark.parametrize(
    "told", [None, [], {}, {"paused": "yes"}, {"mb_s": "fast"}, {"mb_s": -1}, {"mb_s": float("nan")}]
)
def test_hints_that_make_no_sense_change_nothing(pace: UploadPace, clock: Clock, told: object) -> None:
    pace.heed(told)
    pace.on_bytes(10**9)
    assert not pace.paused and clock.now == 100.0


def test_the_limit_holds_on_the_long_run(pace: UploadPace, clock: Clock) -> None:
    pace.heed({"paused": False, "mb_s": 2.0})
    for _ in range(1000):
        pace.on_bytes(16_384)
    assert clock.now - 100.0 == pytest.approx(1000 * 16_384 / 2e6, rel=0.1)


def test_a_limit_that_is_lifted_holds_no_more(pace: UploadPace, clock: Clock) -> None:
    pace.heed({"paused": False, "mb_s": 2.0})
    pace.heed({"paused": False, "mb_s": 0.0})
    pace.on_bytes(10**9)
    assert clock.now == 100.0


def test_progress_rate_and_time_left_are_told(pace: UploadPace, clock: Clock) -> None:
    transfer = pace.transfer("run-1", {"a": 3_000_000, "b": 1_000_000})
    for _ in range(10):
        clock.now += 1.0
        pace.on_bytes(100_000)
        transfer.add(100_000)
    told = pace.told()
    assert told["runs"] == [
        {"run_id": "run-1", "files": 0, "total_files": 2, "bytes": 1_000_000, "total_bytes": 4_000_000}
    ]
    assert told["rate_bytes_s"] == pytest.approx(110_000, rel=0.05)
    assert told["eta_s"] == pytest.approx(27.0, rel=0.1)
    pace.end("run-1")
    assert pace.told() == {}
