"""`panel()` in one kernel: what it shows, what it keeps when called again, and what it says when it can't."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("anywidget", reason="the extra `panel` is not installed: no anywidget")

import IPython.display

import control_panel
from bridgehead.errors import ProjectError, UsageError
from run_control.project import Project

WIDGET = "application/vnd.jupyter.widget-view+json"


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """What was displayed, in order."""
    told: list[Any] = []
    monkeypatch.setattr(IPython.display, "display", lambda item, **_more: told.append(item))
    yield told
    control_panel.close()


def test_called_again_it_keeps_the_model_and_closes_the_older_widgets(fresh: Project, shown: list[Any]) -> None:
    control_panel.panel(fresh.root)
    first, engine = control_panel._shown.view, control_panel._engine(fresh)
    control_panel.panel(fresh.root)
    assert control_panel._shown.view is not first
    assert control_panel._engine(fresh) is engine
    assert first.feed.comm is None and not first.pump.alive
    ids = [item[WIDGET]["model_id"] for item in shown if isinstance(item, dict)]
    assert len(set(ids)) == 2


def test_beside_the_widget_a_notebook_keeps_a_static_view(fresh: Project, shown: list[Any]) -> None:
    control_panel.panel(fresh.root)
    assert set(shown[0]) == {WIDGET, "text/plain", "text/html"}
    assert shown[0]["text/plain"].startswith("Bridgehead")


def test_the_static_view_has_no_widget(fresh: Project, shown: list[Any]) -> None:
    control_panel.panel(fresh.root, view="static")
    assert set(shown[0]) == {"text/plain", "text/html"}


def test_the_plain_view_is_there_for_front_ends_without_anywidget(fresh: Project, shown: list[Any]) -> None:
    control_panel.panel(fresh.root, view="plain")
    assert WIDGET in shown[0]
    assert type(control_panel._shown.view).__name__ == "PlainPanel"


def test_without_anywidget_it_says_what_to_install(
    fresh: Project, shown: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    find = control_panel.importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "anywidget" else find(name))
    with pytest.raises(UsageError) as refused:
        control_panel.panel(fresh.root, view="rich")
    assert "bridgehead[panel]" in refused.value.hint
    control_panel.panel(fresh.root)  # auto: the plain one
    assert type(control_panel._shown.view).__name__ == "PlainPanel"


def test_another_view_or_no_project_is_said_in_words(tmp_path: Any, shown: list[Any]) -> None:
    with pytest.raises(UsageError, match="no view"):
        control_panel.panel(tmp_path, view="fancy")
    with pytest.raises(ProjectError):
        control_panel.panel(tmp_path)
