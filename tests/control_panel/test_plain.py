"""The plain view: built-in controls alone, paused when asked, slow when nobody looks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import panel_parts
import panel_states
from support import wait_until

pytest.importorskip("ipywidgets", reason="the extra `panel` is not installed: no ipywidgets")

from control_panel import plain


class Source:
    gen = "g"

    def __init__(self) -> None:
        self.state = panel_states.state("overnight")

    def snapshot(self) -> dict[str, Any]:
        return self.state

    def delta(self, since: int) -> None:
        return None


@pytest.fixture
def shown() -> Iterator[tuple[plain.PlainPanel, Source, list[dict[str, Any]]]]:
    source, acted = Source(), list[dict[str, Any]]()

    def act(command: dict[str, Any]) -> dict[str, Any]:
        acted.append(command)
        return {"state": "sent", "line": f"stop:{command['args'].get('run')}", "text": "<b>taken</b>", "next": "wait"}

    panel = plain.PlainPanel(source, act)
    yield panel, source, acted
    panel.close()


def test_it_shows_runs_and_the_newest_lines(shown: Any) -> None:
    panel, source, _ = shown
    assert "finetune-03" in panel.html.value
    assert source.state["log"][-1]["text"] in panel.html.value
    assert panel.html.value.count("step=") <= plain.LINES


def test_hostile_lines_are_text() -> None:
    page = plain.page(panel_states.state("hostile"))
    assert "<img" not in page and "<script" not in page and "&lt;script&gt;" in page


def test_a_press_is_done_once_on_another_thread_and_its_answer_shown_as_text(shown: Any) -> None:
    panel, _, acted = shown
    panel.run.value = "finetune-03"
    panel.do("stop", {"run": panel.run.value, "now": False})
    wait_until(lambda: "taken" in panel.said.value, 20, what="the answer")
    assert [command["verb"] for command in acted] == ["stop"]
    assert "<b>" not in panel.said.value and "Next: wait" in panel.said.value


def test_a_line_of_before_the_panel_has_no_time() -> None:
    state = panel_states.state("overnight")
    old = {**state["log"][-1], "t": 0.0, "text": "an old line"}
    assert f"{' ' * 9}{old['run']}  an old line" in plain.page({**state, "log": [old]})


def test_pause_keeps_what_is_on_the_page(shown: Any) -> None:
    panel, source, _ = shown
    before = panel.html.value
    panel.pause.value = True
    source.state = panel_states.state("failed")
    assert not panel.paint()
    assert panel.html.value == before
    panel.pause.value = False
    assert panel.paint()
    assert "out of GPU memory" in panel.html.value


def test_it_slows_down_when_the_front_end_gives_no_sign(shown: Any) -> None:
    panel, _, _ = shown
    panel._seen_at = panel._began = plain.time.monotonic() - 3600
    assert panel.every_s() == plain.UNSEEN_EVERY_S
    panel.alive.value += 1  # what the front end does
    assert panel.every_s() == plain.EVERY_S


def test_the_chosen_run_stays_chosen_when_new_ones_come(shown: Any) -> None:
    panel, source, _ = shown
    panel.run.value = "finetune-02"
    source.state["runs"].append(panel_parts.run("later-01"))
    panel.paint()
    assert panel.run.value == "finetune-02"
    assert "later-01" in panel.run.options
