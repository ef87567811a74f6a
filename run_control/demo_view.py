"""What a person sees while the demo works: a live table on a terminal, else one line for each change. All on stderr."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from bridgehead.records import duration
from run_control import state_words
from run_control.cli_support import note
from run_control.demo_shell import Run

if TYPE_CHECKING:
    from rich.console import RenderableType

_HEADERS = ("stage", "state", "epoch", "loss", "ETA", "checkpoint", "attempt")
_REFRESH_PER_S = 4


class DemoView:
    """Steps as they are taken, and under them the runs as they stand."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._runs: dict[str, Run] = {}
        self._step = ""
        self._said: dict[str, tuple[object, ...]] = {}
        self._lock = threading.Lock()
        self._live = _start_live(self) if sys.stderr.isatty() else None

    def step(self, text: str) -> None:
        """Say what happens now; earlier steps stay above."""
        self._step = text
        line = f"[{duration(time.monotonic() - self._started)}] {text}"
        if self._live is not None:
            self._live.console.print(line, highlight=False, markup=False)
        else:
            note(line)

    def change(self, run: Run) -> None:
        """A run has changed; may come from any thread."""
        with self._lock:
            self._runs[run["run_id"]] = run
            told = (run["state"], run["attempt"], _level(run), run["epoch"] // 10)
            news = self._said.get(run["run_id"]) != told
            self._said[run["run_id"]] = told
        if self._live is None and news:
            note("    " + " · ".join(cell for cell in (run["run_id"], *_cells(run)[1:]) if cell))

    def close(self) -> None:
        if self._live is not None:
            with contextlib.suppress(OSError):  # the terminal may be gone
                self._live.stop()
            self._live = None

    def table(self) -> RenderableType:
        from rich.table import Table
        from rich.text import Text

        shown = Table(*_HEADERS, box=None, pad_edge=False, title_justify="left")
        with self._lock:
            rows = [_cells(run) for run in self._runs.values()]
        for row in rows:
            shown.add_row(*(Text(cell) for cell in row))
        return shown


def _start_live(view: DemoView) -> Any:
    from rich.console import Console
    from rich.live import Live

    live = Live(
        get_renderable=view.table,
        console=Console(stderr=True),
        refresh_per_second=_REFRESH_PER_S,
        redirect_stdout=False,
        redirect_stderr=False,
    )
    live.start()
    return live


def _cells(run: Run) -> tuple[str, ...]:
    loss = run["metrics"].get("loss")
    ended = run["state"] in ("done", "failed", "stopped")
    eta = f"ETA {duration(run['eta_s'])}" if run["eta_s"] is not None and not ended else ""
    return (
        run["stage"],
        state_words.shown(run["state"], ""),
        f"epoch {run['epoch']}/{run['total_epochs']}" if run["total_epochs"] else "",
        f"loss {loss:.4f}" if loss is not None else "",
        eta,
        _level(run),
        f"attempt {run['attempt']}" if run["attempt"] > 1 else "",
    )


def _level(run: Run) -> str:
    checkpoint = run["checkpoint"]
    return f"checkpoint {checkpoint['step']} {checkpoint['level']}" if checkpoint else ""
