"""What a saved notebook keeps: small, escaped, no log, no secret."""

from __future__ import annotations

import pytest

import panel_states
from control_panel import static


@pytest.mark.parametrize("name", [name for name in panel_states.ALL if name != "hostile"])
def test_every_state_has_a_static_view_without_its_log(name: str) -> None:
    snapshot = panel_states.state(name)
    text, html = static.text(snapshot), static.html(snapshot)
    assert text.startswith("Bridgehead")
    for line in snapshot["log"]:
        assert not line["text"].strip() or line["text"] not in text
    assert len(html) < 20_000


def test_names_from_a_vm_are_text_and_never_markup() -> None:
    html = static.html(panel_states.state("hostile"))
    assert "<img" not in html and "<script" not in html
    assert "&lt;img" in html


def test_it_says_what_runs_and_why_something_failed() -> None:
    text = static.text(panel_states.state("failed"))
    assert "finetune-03" in text and "out of GPU memory" in text


def test_words_for_times() -> None:
    assert [static.words(value) for value in (None, 9, 125, 3_900)] == ["", "9 s", "2 min", "1h05m"]
