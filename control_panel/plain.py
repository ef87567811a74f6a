"""The panel where no anywidget can be: one HTML at 1 Hz, buttons and a text box, all of them built-in controls.

It loses the reader's scroll position at each update (hence 300 lines and Pause), draws no curve, and has no numbered
patches. Whether anybody looks is told by a hidden Play control: it counts in the front end, so its count arriving here
is a sign of life. Without one for a while little is sent, since a notebook server keeps it all for a closed tab.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from html import escape
from typing import Any, Final

import ipywidgets

from control_panel import static
from control_panel.pump import Message, Source

LINES: Final = 300
EVERY_S: Final = 1.0
UNSEEN_EVERY_S: Final = 60.0
SEEN_FOR_S: Final = 20.0
PLAY_EVERY_MS: Final = 3000
FIRST_MINUTE_S: Final = 60.0
_LOG: Final = (
    "height:280px;overflow:auto;display:flex;flex-direction:column-reverse;border:1px solid #8886;padding:6px 8px;"
    "white-space:pre-wrap;overflow-wrap:anywhere;font:12px/1.5 monospace;margin:0"
)
Act = Callable[[Message], Message]


class PlainPanel:
    """`widget` is what to display; `close()` ends its thread."""

    def __init__(self, source: Source, act: Act) -> None:
        self._source = source
        self._act = act
        self._stopped = threading.Event()
        self._seen_at = self._began = time.monotonic()
        self._shown, self._newest = "", 0
        self._view = uuid.uuid4().hex
        self._lock = threading.Lock()
        self.html = ipywidgets.HTML(value="")
        self.run = ipywidgets.Dropdown(options=[], description="Run", layout={"width": "320px"})
        self.stage = ipywidgets.Dropdown(options=[], description="Stage", layout={"width": "320px"})
        self.box = ipywidgets.Text(placeholder="a shell command for the VM", description="Shell")
        self.pause = ipywidgets.ToggleButton(value=False, description="Pause")
        self.said = ipywidgets.HTML(value="")
        self.alive = ipywidgets.Play(
            interval=PLAY_EVERY_MS, min=0, max=10**9, value=0, layout={"display": "none"}, **{_playing(): True}
        )
        self.alive.observe(self._on_alive, "value")
        self.widget = self._build()
        self.paint()
        self._thread = threading.Thread(target=self._work, name="bridgehead-panel-plain", daemon=True)
        self._thread.start()

    def _build(self) -> Any:
        def button(label: str, verb: str, args: Callable[[], Message]) -> Any:
            made = ipywidgets.Button(description=label)
            made.on_click(lambda _button: self.do(verb, args()))
            return made

        def of_run() -> Message:
            return {"run": self.run.value or ""}

        of_runs = [
            self.run,
            button("Save and stop", "stop", lambda: {**of_run(), "now": False}),
            button("Resume", "resume", of_run),
            button("Run again", "rerun", of_run),
        ]
        of_stages = [self.stage, button("Run", "run", lambda: {"stage": self.stage.value or "", "overrides": {}})]
        of_vms = [self.box, button("Send", "sh", lambda: {"text": self.box.value, "vm": ""})]
        rows = [ipywidgets.HBox(row) for row in (of_runs, of_stages, [*of_vms, self.pause])]
        return ipywidgets.VBox([self.html, *rows, self.said, self.alive])

    def do(self, verb: str, args: Message) -> None:
        """Have a command done on a thread of its own: a button's handler only starts it."""
        origin = {"id": uuid.uuid4().hex, "view": self._view, "seen": self._newest}

        def work() -> None:
            try:
                answer = self._act({**origin, "verb": verb, "args": args})
            except Exception as error:  # noqa: BLE001  edge of a widget callback: a person gets a sentence, never silence
                answer = {"state": "failed", "text": str(error), "line": ""}
            words = " ".join(str(answer.get(key, "")) for key in ("line", "state", "text"))
            words += f". Next: {answer['next']}" if answer.get("next") else ""
            self.said.value = f'<span role="status">{escape(words)}</span>'

        threading.Thread(target=work, name="bridgehead-panel-press", daemon=True).start()

    def close(self) -> None:
        self._stopped.set()
        for widget in (self.widget, self.html, self.run, self.stage, self.box, self.pause, self.said, self.alive):
            widget.close()

    def paint(self) -> bool:
        """Show what the model holds now. Returns whether anything was sent."""
        with self._lock:
            snapshot = self._source.snapshot()
            self._options(snapshot)
            shown = page(snapshot)
            if self.pause.value or shown == self._shown:
                return False
            self._shown = self.html.value = shown
            self._newest = max((line["n"] for line in snapshot.get("queue", [])), default=0)
            return True

    def _options(self, snapshot: Message) -> None:
        for control, names in (
            (self.run, [run["id"] for run in reversed(snapshot["runs"])]),
            (self.stage, [stage["name"] for stage in snapshot.get("stages", [])]),
        ):
            if list(control.options) != names:
                chosen = control.value
                control.options = names
                if chosen in names:
                    control.value = chosen

    def _on_alive(self, _change: Any) -> None:
        self._seen_at = time.monotonic()

    def every_s(self) -> float:
        """Once a second while somebody looks; once a minute otherwise."""
        now = time.monotonic()
        fresh = now - self._seen_at < SEEN_FOR_S or now - self._began < FIRST_MINUTE_S
        return EVERY_S if fresh else UNSEEN_EVERY_S

    def _work(self) -> None:
        painted = time.monotonic()
        while not self._stopped.wait(EVERY_S):
            if time.monotonic() - painted < self.every_s():
                continue
            painted = time.monotonic()
            try:
                self.paint()
            except Exception:  # noqa: BLE001  the front end's way is closed: the edge of what we own
                return


def page(snapshot: Message) -> str:
    """The whole as HTML, all text escaped."""
    lines = "\n".join(escape(f"{_clock(line['t'])} {line['run']}  {line['text']}") for line in snapshot["log"][-LINES:])
    queue = "".join(
        f"<li><code>{escape(line['line'])}</code> {escape(str(line['state']))} {escape(str(line['why']))}</li>"
        for line in snapshot["queue"][-5:]
    )
    todo = (snapshot.get("next") or {}).get("text", "")
    hint = f"<p>Next: {escape(todo)}</p>" if todo else ""
    # column-reverse keeps the end in sight without a script
    log = f'<div style="{_LOG}" role="log" aria-live="off"><div>{lines}</div></div>' if lines else ""
    return f"{static.html(snapshot)}{hint}<ol>{queue}</ol>{log}"


def _clock(t: float) -> str:
    """A line of before the panel has no time; it keeps its place."""
    return time.strftime("%H:%M:%S", time.localtime(t)) if t else " " * 8


def _playing() -> str:
    """ipywidgets 8 calls it `playing`, 7.7 `_playing`."""
    return "playing" if "playing" in ipywidgets.Play.class_trait_names() else "_playing"
