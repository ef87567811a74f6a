"""Rate and time left: from this attempt alone, after a warm-up, and never a guess."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bridgehead import names
from run_control import pace
from run_control.pace import Pace


def _progress(at: float, step: int, attempt: int = 1, **more: Any) -> dict[str, Any]:
    return {"event": "progress", "at": at, "step": step, "total_steps": 10_000, "attempt": attempt, **more}


def _fed(*events: dict[str, Any]) -> Pace:
    made = Pace()
    for event in events:
        made.add(event)
    return made


def _steady(start_at: float, first: int, last: int, per_step_s: float, attempt: int = 1) -> list[dict[str, Any]]:
    return [_progress(start_at + (step - first) * per_step_s, step, attempt) for step in range(first, last + 1, 5)]


def test_a_steady_run_has_its_rate_and_an_eta_around_the_truth() -> None:
    made = _fed(*_steady(0, 0, 1000, 0.5))
    assert made.rate_per_s == pytest.approx(2.0)
    assert made.eta_s is not None and made.eta_s[0] < 4500 < made.eta_s[1] < 5000


def test_after_a_resume_only_this_attempt_counts() -> None:
    slow = _steady(0, 0, 5000, 10.0)
    resumed = {"event": "resumed", "at": 60_000.0, "step": 4800, "attempt": 2}
    fast = _steady(60_010.0, 4800, 5400, 0.1, attempt=2)
    made = _fed(*slow, resumed, *fast)
    assert made.rate_per_s == pytest.approx(10.0)
    assert made.eta_s is not None and 400 < made.eta_s[0] < 460 < made.eta_s[1] < 520


def test_right_after_a_resume_there_is_no_eta_until_it_is_warm() -> None:
    made = _fed(*_steady(0, 0, 5000, 1.0), {"event": "resumed", "step": 4800, "attempt": 2, "at": 9000.0})
    assert (made.rate_per_s, made.eta_s) == (None, None)
    for event in [_progress(9100.0 + 30 * number, 4800 + number * 5, 2) for number in range(5)]:  # 20 slow steps
        made.add(event)
    assert made.eta_s is None
    for event in [_progress(9221.0 + number, 4821 + number, 2) for number in range(60)]:
        made.add(event)
    assert made.rate_per_s == pytest.approx(1.0, rel=0.2)  # the slow first steps left no trace


def test_a_new_attempt_that_says_nothing_of_resuming_begins_anew_too() -> None:
    made = _fed(*_steady(0, 0, 5000, 1.0), _progress(9000.0, 5, 2))
    assert made.rate_per_s is None and made.attempt == 2


def test_a_run_of_few_epochs_has_an_eta_too() -> None:
    events = [{"event": "progress", "at": 60.0 * n, "epoch": n, "total_epochs": 10, "attempt": 1} for n in range(5)]
    made = _fed(*events)
    assert made.rate_per_s is None
    assert made.eta_s is not None and made.eta_s[0] < 360 < made.eta_s[1]


def test_a_pause_for_saving_counts_and_a_clock_that_goes_back_does_not_divide_by_zero() -> None:
    events = _steady(0, 0, 200, 1.0)
    made = _fed(
        *events,
        _progress(200.0, 205),
        _progress(150.0, 210),
        _progress(150.0, 210),
        _progress(float("nan"), 215),
        _progress(10**400, 220),
    )
    assert made.rate_per_s is not None and made.rate_per_s > 0
    json.dumps(made.eta_s, allow_nan=False)


def test_what_is_no_event_counts_for_nothing() -> None:
    made = _fed({}, {"event": 3}, {"event": "progress", "at": "x", "step": True, "total_steps": None})
    assert made.eta_s is None
    assert pace.parse([b"{", b"[1]", b"7", b'{"event": "progress"}']) == [{"event": "progress"}]


def test_who_looks_once_reads_the_end_of_the_file_and_this_attempt_alone(tmp_path: Path) -> None:
    events = [*_steady(0, 0, 2000, 10.0), *_steady(90_000.0, 1500, 2500, 0.5, attempt=2)]
    (tmp_path / names.PROGRESS).write_text("".join(json.dumps(event) + "\n" for event in events))
    assert pace.of_run(tmp_path, 2).rate_per_s == pytest.approx(2.0)
    assert pace.of_run(tmp_path, 1).rate_per_s is None or pace.of_run(tmp_path, 1).attempt == 1
    assert pace.of_run(tmp_path / "none", 1).eta_s is None
