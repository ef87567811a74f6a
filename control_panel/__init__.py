"""ipywidgets: a model without widgets, and thin views over it.

In a notebook: `from control_panel import panel; panel()`. The widgets' packages are in the extra `panel`; nothing here
imports them before `panel()` is called, so that the model and its feed serve the terminal too.
"""

from __future__ import annotations

import atexit
import importlib.util
import os
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bridgehead.errors import UsageError

if TYPE_CHECKING:
    from control_panel.pump import Message

VIEWS: Final = ("auto", "rich", "plain", "static")
GREETED_WITHIN_S: Final = 6.0
INSTALL: Final = "pip install 'bridgehead[panel]'"
UNSEEN: Final = (
    "<p>If there is no panel above, this front end can't show it: run <code>panel(view=&quot;plain&quot;)</code>."
    " Your runs do not depend on it.</p>"
)


@dataclass
class _Shown:
    """What this kernel has: the model is made once per project and kept; a view lasts until the next `panel()`."""

    engines: dict[Path, Any]
    view: Any = None


_shown = _Shown({})
_lock = threading.Lock()


def panel(project_folder: str | os.PathLike[str] | None = None, view: str = "auto") -> None:
    """Show the control panel of the project in `project_folder` (default: this folder, or the nearest above it).

    `view`: "rich" (needs anywidget), "plain" (built-in controls alone, once a second), "static" (a table, once), or
    "auto": rich where anywidget is installed. Called again in one kernel it keeps what it knows and closes the older
    widgets. Raises ProjectError without a project, UsageError for another `view` or when the extra `panel` is missing.
    """
    if view not in VIEWS:
        raise UsageError(f"no view {view!r}", hint=f"one of {', '.join(VIEWS)}")
    if importlib.util.find_spec("ipywidgets") is None and view != "static":
        raise UsageError("ipywidgets is not installed here", hint=INSTALL)
    from IPython.display import display

    from run_control import project as projects

    project = projects.find(None if project_folder is None else Path(project_folder))
    with _lock:
        _close_view()
        engine = _engine(project)
        shown = _view(engine, view)
        _shown.view = shown
    if shown is None:
        display(_bundle(engine.model.snapshot(), None), raw=True)
        return
    display(_bundle(engine.model.snapshot(), shown.widget), raw=True)
    if hasattr(shown, "greeted"):
        _say_when_unseen(shown)


def close() -> None:
    """End the view, the feed and their threads. Runs and the bridge go on."""
    with _lock:
        _close_view()
    _end_engines()


def _end_engines() -> None:
    """At the kernel's end this alone: widgets that closed would vanish from the page, and the page says "stale"."""
    with _lock:
        for engine in _shown.engines.values():
            engine.close()
        _shown.engines.clear()


def _engine(project: Any) -> Any:
    from control_panel.engine import Engine

    key = Path(project.root).resolve()
    if key not in _shown.engines:
        if not _shown.engines:
            atexit.register(_end_engines)
        _shown.engines[key] = Engine(project)
    return _shown.engines[key]


def _close_view() -> None:
    if _shown.view is not None:
        _shown.view.close()
    _shown.view = None


def _view(engine: Any, view: str) -> Any:
    if view == "static":
        return None
    if view == "auto":
        view = "rich" if importlib.util.find_spec("anywidget") is not None else "plain"
    if view == "plain":
        from control_panel.plain import PlainPanel

        return PlainPanel(engine.model, engine.act)
    if importlib.util.find_spec("anywidget") is None:
        raise UsageError("anywidget is not installed here", hint=f"{INSTALL}, or panel(view='plain')")
    from control_panel.rich import RichPanel

    return RichPanel(engine.model, engine.act)


def _bundle(snapshot: Message, widget: Any) -> dict[str, Any]:
    """What the notebook keeps: a reference to the widget, and the static view for those who can't show one."""
    from control_panel import static

    bundle: dict[str, Any] = {"text/plain": static.text(snapshot), "text/html": static.html(snapshot)}
    if widget is not None:
        reference = {"version_major": 2, "version_minor": 0, "model_id": widget.model_id}
        bundle["application/vnd.jupyter.widget-view+json"] = reference
    return bundle


def _say_when_unseen(shown: Any) -> None:
    """A second, built-in control that stays empty where the panel greets us."""
    import ipywidgets
    from IPython.display import display

    note = ipywidgets.HTML(value="", layout={"margin": "0"})
    display(note)

    def look() -> None:
        if not shown.greeted.wait(GREETED_WITHIN_S):
            note.value = UNSEEN
            shown.greeted.wait()
        note.value = ""

    threading.Thread(target=look, name="bridgehead-panel-greeting", daemon=True).start()
