"""`bridgehead panel`: the control panel in JupyterLab or Voilà on this laptop."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bridgehead.errors import INTERRUPTED_EXIT_CODE
from run_control.cli_support import JsonFlag, ProjectFlag, emit, note, project_of, say

if TYPE_CHECKING:
    from run_control.project import Project

_ENDING = ("SIGTERM", "SIGHUP")


def register(app: typer.Typer) -> None:
    app.command()(panel)


def panel(
    context: typer.Context,
    voila: Annotated[
        bool, typer.Option("--voila", help="The panel alone as a page, without a notebook round it.")
    ] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: 8888, or the next free one.")] = 0,
    browser: Annotated[
        bool | None, typer.Option("--browser/--no-browser", help="Open it; default: when this is a terminal.")
    ] = None,
    json: JsonFlag = False,
    project: ProjectFlag = None,
) -> int:
    """Open the control panel; Ctrl-C closes it and stops nothing else."""
    found = project_of(context, project)
    wanted = sys.stdout.isatty() and not json if browser is None else browser
    with _ended_by_signals():
        return _serve(found, voila=voila, port=port, browser=wanted, as_json=json)


def _serve(found: Project, *, voila: bool, port: int, browser: bool, as_json: bool) -> int:
    from run_control import bridge_control, panel_server

    server = panel_server.start(found, voila=voila, port=port, browser=browser)
    try:
        emit({"url": server.url, "port": server.port}, as_json=as_json, show=lambda: _show(server.url, voila))
        if bridge_control.find(found) is None:
            note("no bridge is running. next: bridgehead up")
        code = server.process.wait()
        note(f"Jupyter has ended ({code}); the bridge and runs go on")
        return 0 if code <= 0 else 1
    except KeyboardInterrupt:
        note("the panel is closed; the bridge and all runs go on. open it again: bridgehead panel")
        raise typer.Exit(INTERRUPTED_EXIT_CODE) from None
    finally:
        server.stop()


def _show(url: str, voila: bool) -> None:
    say(url)
    if not voila:
        note("next: open it and run its one cell (Shift+Enter). The address holds a token: don't share it.")
    note("Ctrl-C closes the panel; the bridge and all runs go on.")


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[None]:
    """A closed terminal ends it like Ctrl-C: no server is left behind."""
    before = {sig: signal.signal(sig, _interrupt) for name in _ENDING if (sig := getattr(signal, name, None))}
    try:
        yield
    finally:
        for sig, handler in before.items():
            signal.signal(sig, handler)


def _interrupt(*_: Any) -> None:
    raise KeyboardInterrupt
