"""What a sink is told of a run: each step of a metric once, whatever the run did twice and however it arrived."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from tracking_rig import line, progress

from bridgehead import names
from run_control.tracking import story
from run_control.tracking.story import Point, Told


def _all(path: Path, told: Told | None = None) -> tuple[list[Point], Told]:
    points: list[Point] = []
    told, more = told or Told(), True
    while more:
        found, told, more = story.read_on(path, told)
        points += found
    return points, told


def _steps(points: list[Point], metric: str = "loss") -> list[int]:
    return [point.step for point in points if metric in point.metrics]


def test_what_a_resumed_run_does_again_is_told_once(tmp_path: Path) -> None:
    for step in (1, 2, 3, 4):
        progress(tmp_path, step, loss=1.0 / step)
    line(tmp_path, {"attempt": 2, "event": "resumed", "step": 2})
    for step in (3, 4, 5):
        progress(tmp_path, step, attempt=2, loss=1.0 / step)
    points, _ = _all(tmp_path / names.PROGRESS)
    assert _steps(points) == [1, 2, 3, 4, 5]


def test_a_metric_that_died_before_it_was_told_comes_with_the_second_telling(tmp_path: Path) -> None:
    progress(tmp_path, 1, loss=1.0)
    progress(tmp_path, 2, loss=0.5)
    _, told = _all(tmp_path / names.PROGRESS)
    progress(tmp_path, 2, attempt=2, loss=0.5)
    progress(tmp_path, 2, attempt=2, accuracy=0.9)
    points, _ = _all(tmp_path / names.PROGRESS, told)
    assert [point.metrics for point in points] == [{"accuracy": 0.9}]


def test_two_words_about_one_step_are_one_row(tmp_path: Path) -> None:
    progress(tmp_path, 1, loss=1.0)
    progress(tmp_path, 1, accuracy=0.5)
    points, _ = _all(tmp_path / names.PROGRESS)
    assert [point.metrics for point in points] == [{"loss": 1.0, "accuracy": 0.5}]


def test_half_a_line_waits_for_its_end(tmp_path: Path) -> None:
    progress(tmp_path, 1, loss=1.0)
    progress(tmp_path, 2, loss=0.5)
    path = tmp_path / names.PROGRESS
    whole = path.read_bytes()
    path.write_bytes(whole[:-10])
    points, told = _all(path)
    assert _steps(points) == [1] and not story.is_read(path, told)
    path.write_bytes(whole)
    points, told = _all(path, told)
    assert _steps(points) == [2] and story.is_read(path, told)


def test_a_file_that_begins_anew_is_read_anew_and_its_old_steps_are_not_told_again(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        progress(tmp_path, step, loss=1.0)
    path = tmp_path / names.PROGRESS
    _, told = _all(path)
    path.unlink()
    progress(tmp_path, 3, loss=1.0)
    points, told = _all(path, told)
    assert points == []
    progress(tmp_path, 4, loss=1.0)
    assert _steps(_all(path, told)[0]) == [4]


def test_a_run_that_counts_epochs_alone_is_told_by_epoch(tmp_path: Path) -> None:
    for epoch in (1, 2):
        line(tmp_path, {"at": 1.0, "event": "progress", "step": 0, "epoch": epoch, "metrics": {"loss": 0.5}})
    assert _steps(_all(tmp_path / names.PROGRESS)[0]) == [1, 2]


def test_what_is_no_event_counts_for_nothing(tmp_path: Path) -> None:
    path = tmp_path / names.PROGRESS
    path.write_bytes(b"\xff\n[]\nnull\n{\n" + b"x" * (2 * story.LINE_MAX_BYTES) + b"\n")
    for metrics in ({"loss": float("nan")}, {"loss": True}, {"loss": "x"}, {"": 1.0}, [1], None):
        line(tmp_path, {"at": 1.0, "event": "progress", "step": 1, "metrics": metrics})
    line(tmp_path, {"at": "never", "event": "progress", "step": -4, "metrics": {"loss": 1.0}})
    progress(tmp_path, 7, loss=0.25)
    points, told = _all(path)
    assert [(point.step, point.metrics) for point in points] == [(0, {"loss": 1.0}), (7, {"loss": 0.25})]
    assert story.is_read(path, told)


@settings(max_examples=60, deadline=None)
@given(
    tellings=st.lists(st.tuples(st.integers(0, 8), st.sampled_from(["loss", "lr"])), max_size=40),
    cuts=st.lists(st.integers(0, 4000), max_size=6),
)
def test_in_whatever_pieces_it_arrives_each_step_of_a_metric_is_told_once_in_order(
    tmp_path_factory: object, tellings: list[tuple[int, str]], cuts: list[int]
) -> None:
    folder = tmp_path_factory.mktemp("story")  # type: ignore[attr-defined]
    for step, metric in tellings:
        progress(folder, step, **{metric: float(step)})
    path = folder / names.PROGRESS
    whole = path.read_bytes() if tellings else b""
    told = Told()
    found: dict[str, list[int]] = {"loss": [], "lr": []}
    for size in sorted({*(min(cut, len(whole)) for cut in cuts), len(whole)}):
        path.write_bytes(whole[:size])
        points, told = _all(path, told)
        for metric in found:
            found[metric] += _steps(points, metric)
    for metric, steps in found.items():
        assert steps == sorted(set(steps)) and set(steps) <= {step for step, name in tellings if name == metric}
        highest = max((step for step, name in tellings if name == metric), default=-1)
        assert (steps[-1] if steps else -1) == highest
