"""The panel's model: snapshots, deltas, and that the one plus the others is the next one."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from random import Random
from typing import Any, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from control_panel import series
from control_panel.model import PanelModel, Update, fold
from control_panel.shapes import Alert, LogLine, QueueLine, Run, Vm, VmState, age

T = TypeVar("T")
IDS = "abc"


def _some_update(seed: int) -> Update:
    """Any update: made from one number, since hypothesis takes long to draw what is nested so deep."""
    random = Random(seed)

    def some(make: Callable[[str], T]) -> list[T]:
        return [make(key) for key in IDS if random.random() < 0.6]

    def maybe(value: T) -> T | None:
        return value if random.random() < 0.5 else None

    def curve() -> list[tuple[int, float]]:
        return [(random.randint(0, 40), random.uniform(-5, 5)) for _ in range(random.randint(0, 12))]

    return Update(
        runs=maybe(some(lambda key: Run(key, "s", step=random.randint(0, 3)))),
        vms=maybe(some(lambda key: Vm(key, random.choice(list(VmState))))),
        points={key: {"loss": curve(), "auc": curve()} for key in IDS if random.random() < 0.5},
        lines=some(lambda key: LogLine(key, str(random.random()))),
        queue=maybe(some(lambda key: QueueLine(random.randint(0, 3), key, key, random.choice(["sent", "done"])))),
        alerts=maybe(some(lambda key: Alert(key, "bad", key, key))),
        bridge=maybe({"state": random.choice(["up", "down"])}),
    )


def _model(**more: Any) -> PanelModel:
    return PanelModel(gen="g", clock=lambda: 1000.0, **more)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2**32), st.booleans()), min_size=1, max_size=12))
def test_a_snapshot_plus_the_deltas_after_it_is_the_next_snapshot(turns: list[tuple[int, bool]]) -> None:
    model = _model()
    seen = [model.snapshot()]
    for seed, looks in turns:
        model.ingest(_some_update(seed))
        if looks:  # a view that looks now and then
            told = model.delta(seen[-1]["seq"])
            seen.append(fold(seen[-1], told) if told else seen[-1])
    final = model.snapshot()
    for begun in seen:  # and one that joins at any of these moments
        told = model.delta(begun["seq"])
        assert (fold(begun, told) if told else begun) == final


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(0, 900), min_size=1, max_size=6), st.integers(0, 2**32))
def test_it_holds_for_curves_that_are_thinned_meanwhile(sizes: list[int], seed: int) -> None:
    model, random = _model(), Random(seed)
    model.ingest(Update(runs=[Run("a", "s"), Run("b", "s")]))
    views = [model.snapshot()]
    step = 0
    for size in sizes:
        points = [(step + at, random.random()) for at in range(size)]
        step = max(0, step + size - random.choice([0, 0, 100]))  # now and then the run goes back and resumes
        model.ingest(Update(points={"a": {"loss": points}, "b": {"auc": points[::3]}}))
        views.append(model.snapshot())
    for view in views:
        told = model.delta(view["seq"])
        assert (fold(view, told) if told else view) == views[-1]


def test_nothing_new_is_no_delta_and_no_number() -> None:
    model = _model()
    assert model.ingest(Update(runs=[Run("a", "s")]))
    seq = model.seq
    assert not model.ingest(Update(runs=[Run("a", "s")], alerts=[])) and model.seq == seq
    assert model.delta(seq) is None


def test_a_delta_brings_only_the_entries_that_changed() -> None:
    model = _model()
    model.ingest(Update(runs=[Run("a", "s"), Run("b", "s")], vms=[Vm("v", VmState.LIVE)]))
    seq = model.seq
    model.ingest(Update(runs=[Run("a", "s"), Run("b", "s", step=5)], vms=[]))
    told = model.delta(seq)
    assert told is not None and set(told) == {"gen", "seq", "t", "runs", "gone"}
    assert [(run["id"], run["step"]) for run in told["runs"]] == [("b", 5)]
    assert told["gone"] == {"vms": ["v"], "runs": []}


def test_of_a_known_run_a_delta_brings_the_fields_that_changed_since_whoever_asks_last_heard() -> None:
    model = _model()
    model.ingest(Update(runs=[Run("a", "s", step=1)]))
    first = model.seq
    model.ingest(Update(runs=[Run("a", "s", step=2, message="two")]))
    second = model.seq
    model.ingest(Update(runs=[Run("a", "s", step=3, message="two")]))
    assert [(model.delta(since) or {})["runs"] for since in (first, second)] == [
        [{"id": "a", "step": 3, "message": "two"}],
        [{"id": "a", "step": 3}],
    ]


def test_a_run_that_went_and_came_back_is_told_whole() -> None:
    model = _model()
    model.ingest(Update(runs=[Run("a", "s", step=1)]))
    seq = model.seq
    model.ingest(Update(runs=[]))
    model.ingest(Update(runs=[Run("a", "s", step=1)]))
    told = model.delta(seq)
    assert told is not None and told["gone"]["runs"] == ["a"]
    assert told["runs"] == model.snapshot()["runs"]


def test_of_a_flood_a_delta_brings_the_newest_lines_and_says_how_many_it_left_out() -> None:
    model = _model()
    model.ingest(Update(runs=[Run("a", "s")], lines=[LogLine("a", "first")]))
    seq = model.seq
    model.ingest(Update(lines=[LogLine("a", str(number)) for number in range(1000)]))
    told = model.delta(seq)
    assert told is not None and [line["text"] for line in told["lines"]] == [str(n) for n in range(800, 1000)]
    assert told["drop"] == 800 and told["lines"][0]["n"] == 802


def test_long_lines_keep_a_delta_and_a_snapshot_small() -> None:
    model = _model()
    model.ingest(Update(lines=[LogLine("a", "x" * 2000) for _ in range(3000)]))
    told = model.delta(0)
    assert told is not None and len(json.dumps(told)) < 64_000
    assert told["drop"] + len(told["lines"]) == 3000
    assert len(json.dumps(model.snapshot())) < 400_000


def test_the_log_has_bounds_and_counts_on() -> None:
    model = _model(log_lines=50)
    for number in range(300):
        model.ingest(Update(lines=[LogLine("a", str(number))]))
    taken = model.snapshot()
    assert len(taken["log"]) == 50 and taken["log_first"] == 251 and taken["log"][-1]["n"] == 300
    told = model.delta(0)
    assert told is not None and told["lines"][0]["n"] == 251


def test_twenty_runs_with_long_curves_stay_within_the_budget_and_keep_their_peaks() -> None:
    model = _model()
    runs = [Run(f"r{number}", "s") for number in range(20)]
    curve = [(step, 99.0 if step == 1234 else step / 2000) for step in range(2000)]
    model.ingest(Update(runs=runs, points={run.id: {"loss": curve, "auc": curve} for run in runs}))
    taken = model.snapshot()
    sizes = [len(points) for metrics in taken["series"].values() for points in metrics.values()]
    assert sum(sizes) <= series.POINTS_MAX and min(sizes) >= 100
    assert len(json.dumps(taken)) < 500_000
    for metrics in taken["series"].values():
        assert max(metrics["loss"], key=lambda point: point[1]) == [1234, 99.0]
        assert metrics["loss"][0] == [0, 0.0] and metrics["loss"][-1][0] == 1999


def test_a_resumed_run_draws_the_part_that_it_does_anew_once() -> None:
    model = _model()
    model.ingest(Update(runs=[Run("a", "s")], points={"a": {"loss": [(1, 3.0), (2, 2.0), (3, 1.0)]}}))
    model.ingest(Update(points={"a": {"loss": [(2, 2.5), (3, 1.5)]}}))
    assert model.snapshot()["series"]["a"]["loss"] == [[1, 3.0], [2, 2.5], [3, 1.5]]


def test_numbers_that_json_has_not_are_no_points() -> None:
    model = _model()
    model.ingest(Update(runs=[Run("a", "s")], points={"a": {"loss": [(1, float("nan")), (2, float("inf")), (3, 1.0)]}}))
    assert json.loads(json.dumps(model.snapshot(), allow_nan=False))["series"]["a"]["loss"] == [[3, 1.0]]


def test_points_of_a_run_that_is_not_shown_are_left_out() -> None:
    model = _model()
    assert not model.ingest(Update(points={"stranger": {"loss": [(1, 1.0)]}}))
    model.ingest(Update(runs=[Run("a", "s")], points={"a": {"loss": [(1, 1.0)]}}))
    model.ingest(Update(runs=[]))
    assert model.snapshot()["series"] == {}


@pytest.mark.parametrize(("seconds", "shown"), [(-3, 0), (4, 0), (64, 60), (134, 120), (3601, 3600), (3659, 3600)])
def test_an_age_changes_only_when_it_is_worth_a_repaint(seconds: float, shown: float) -> None:
    assert age(seconds) == shown


def test_a_reader_beside_the_writer_gets_every_line_once() -> None:
    model, got, done = _model(), [], threading.Event()

    def read() -> None:
        seq = 0
        while True:
            last = done.is_set()
            told = model.delta(seq, lines_max=100_000, text_max_bytes=10**9)
            if told:
                seq = told["seq"]
                got.extend(line["n"] for line in told.get("lines", []))
            elif last:
                return

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(500):
        model.ingest(Update(lines=[LogLine("a", str(number))] * 3))
    done.set()
    reader.join(100)
    assert got == list(range(1, 1501))
