"""The pump: who gets what, at which pace, and that nothing is sent to nobody."""

from __future__ import annotations

from typing import Any

import pytest

from control_panel import pump
from control_panel.model import PanelModel, Update, fold
from control_panel.pump import Pump
from control_panel.shapes import LogLine, Run
from support import wait_until


class Rig:
    """A pump over a real model, with a clock of the test's own and a list in place of a comm."""

    def __init__(self) -> None:
        self.now = 100.0
        self.model = PanelModel(gen="g")
        self.sent: list[dict[str, Any]] = []
        self.pump = Pump(self.model, self.sent.append, clock=lambda: self.now)

    def say(self, text: str, n: int = 1) -> None:
        self.model.ingest(Update(lines=[LogLine(run="r", text=text) for _ in range(n)]))

    def run(self, step: int) -> None:
        self.model.ingest(Update(runs=[Run(id="r", stage="train", state="running", step=step)]))


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_nothing_is_sent_before_a_view_says_hello(rig: Rig) -> None:
    rig.say("one")
    assert not rig.pump.tick()
    assert rig.sent == []


def test_a_hello_is_answered_with_a_snapshot_and_then_patches_that_add_up(rig: Rig) -> None:
    rig.run(1)
    rig.pump.hello("v", {"gen": "", "seq": -1})
    rig.pump.tick()
    state = rig.sent[0]
    assert state["k"] == "snap"
    for step in range(2, 6):
        rig.run(step)
        rig.say(f"line {step}")
        rig.pump.tick()
        patch = rig.sent[-1]
        assert (patch["k"], patch["since"]) == ("p", state["seq"])
        state = fold(state, patch)
    now = rig.model.snapshot()
    assert {key: state[key] for key in ("seq", "runs", "log")} == {key: now[key] for key in ("seq", "runs", "log")}


def test_who_has_everything_already_gets_a_heartbeat_and_no_snapshot(rig: Rig) -> None:
    rig.pump.hello("v", {})
    rig.pump.tick()
    rig.pump.hello("v", {"gen": "g", "seq": rig.sent[0]["seq"]})
    rig.pump.tick()
    assert [message["k"] for message in rig.sent] == ["snap", "p"]
    assert rig.sent[1]["since"] == rig.sent[1]["seq"] == rig.sent[0]["seq"]


def test_a_heartbeat_comes_every_two_seconds_when_nothing_changed(rig: Rig) -> None:
    rig.pump.hello("v", {})
    rig.pump.tick()
    for _ in range(20):
        rig.now += 0.25
        rig.pump.seen("v", hidden=False)
        rig.pump.tick()
    assert len(rig.sent) == 1 + 2


def test_a_closed_tab_gets_no_more_than_ten_seconds_of_patches(rig: Rig) -> None:
    """A notebook server buffers without bound for a closed tab."""
    rig.pump.hello("v", {})
    for second in range(4 * 3600):
        rig.now += 0.25
        rig.run(second)
        rig.pump.tick()
    assert len(rig.sent) <= 42
    assert rig.pump.every_s() is None


def test_after_the_quiet_a_view_gets_a_snapshot_not_a_night_of_patches(rig: Rig) -> None:
    rig.pump.hello("v", {})
    rig.pump.tick()
    rig.now += 60
    rig.pump.tick()
    rig.say("in the night", n=500)
    rig.pump.seen("v", hidden=False)
    rig.pump.tick()
    assert [message["k"] for message in rig.sent] == ["snap", "snap"]
    assert len(rig.sent[1]["log"]) == 500


def test_hidden_views_are_served_twice_in_four_seconds_and_kept_for_a_minute(rig: Rig) -> None:
    rig.pump.seen("v", hidden=True)
    assert rig.pump.every_s() == pump.HIDDEN_EVERY_S
    rig.now += 60  # a hidden page's timers run once a minute
    assert rig.pump.every_s() == pump.HIDDEN_EVERY_S
    rig.now += 60
    assert rig.pump.every_s() is None


def test_one_visible_view_among_hidden_ones_sets_the_pace(rig: Rig) -> None:
    rig.pump.seen("a", hidden=True)
    rig.pump.seen("b", hidden=False)
    assert rig.pump.every_s() == pump.VISIBLE_EVERY_S
    rig.pump.gone("b")
    assert rig.pump.every_s() == pump.HIDDEN_EVERY_S


def test_many_reloads_leave_no_heap_of_views(rig: Rig) -> None:
    for reload in range(500):
        rig.pump.seen(f"v{reload}", hidden=True)
    rig.now += pump.HIDDEN_FOR_S + 1
    rig.pump.seen("last", hidden=False)
    assert rig.pump.every_s() == pump.VISIBLE_EVERY_S
    assert len(rig.pump._views) == 1


def test_a_flood_is_cut_to_the_newest_lines_and_counted() -> None:
    lines = [{"n": n, "text": f"line {n}"} for n in range(1, 1001)]
    cut = pump.bounded({"lines": lines, "drop": 7})
    assert [line["n"] for line in cut["lines"]] == list(range(801, 1001))
    assert cut["drop"] == 807


def test_long_lines_are_cut_by_bytes_and_at_least_one_stays() -> None:
    lines = [{"n": n, "text": "ü" * 2000} for n in range(100)]
    cut = pump.bounded({"lines": lines})
    assert 0 < len(cut["lines"]) * 4000 <= pump.TEXT_MAX_BYTES
    assert len(pump.bounded({"lines": [{"n": 1, "text": "x" * 99_000}]})["lines"]) == 1


def test_the_thread_sends_by_itself_and_ends(rig: Rig) -> None:
    live = Pump(rig.model, rig.sent.append)
    live.start()
    live.hello("v", {})
    wait_until(lambda: rig.sent, 20, what="a snapshot")
    rig.say("later")
    wait_until(lambda: any(message.get("lines") for message in rig.sent), 20, what="a patch")
    live.close()
    wait_until(lambda: not live.alive, 20, what="the end of the thread")


def test_a_closed_way_to_the_front_end_ends_the_pump_quietly() -> None:
    def closed(_message: dict[str, Any]) -> None:
        raise RuntimeError("comm is closed")

    broken = Pump(PanelModel(), closed)
    broken.start()
    broken.hello("v", {})
    wait_until(lambda: not broken.alive, 20, what="the end of the thread")
