"""The panel as one anywidget that draws, fed by patches, and a second, invisible one whose comm carries commands.

Why two: a kernel handles a comm's messages on the thread that last sent on that comm, so a comm that a background
thread feeds makes a Stop wait for the running cell. On the command comm only handlers send, each answering at once;
all that a thread has to say, acks among it, goes by the feed. Nothing but the id of that comm is a synced trait, so
that a saved notebook stays small and holds neither a log nor a secret: even the view's code comes by message.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

import anywidget
import traitlets

from control_panel.pump import Message, Pump, Source

PAGE: Final = Path(__file__).parent / "page"
# In this order; each is text of one module.
PIECES: Final = (
    "dom.js", "format.js", "store.js", "link.js", "theme.js", "plot.js", "header.js", "machines.js", "stages.js",
    "detail.js", "log.js", "ask.js", "commands.js", "main.js",
)  # fmt: skip
# Verbs that may take long have a lane of their own: a Stop never waits behind a search through a gigabyte.
LANES: Final = {"log": "log", "plan": "plan", "verify": "slow", "pair": "slow", "open": "slow"}
MESSAGE_MAX: Final = 200_000  # characters of one argument; nothing a person types is longer

Act = Callable[[Message], Message]


@cache
def code() -> dict[str, str]:
    """The view's program and style, as the loader asks for them."""
    script = "\n".join((PAGE / piece).read_text(encoding="utf-8") for piece in PIECES)
    return {"js": script, "css": (PAGE / "panel.css").read_text(encoding="utf-8")}


class FeedWidget(anywidget.AnyWidget):
    """What is displayed. Its comm carries patches, snapshots and acks, all from threads."""

    _esm = (PAGE / "loader.js").read_text(encoding="utf-8")  # text, not a path: a watched path keeps widgets alive
    command_id = traitlets.Unicode("").tag(sync=True)


class CommandWidget(anywidget.AnyWidget):
    """Invisible. Its comm carries what a person does, and the answers that its own handler gives at once."""

    _esm = "export default { render() {} };"


class RichPanel:
    """Both widgets, the pump, and a lane of work for each kind of command. `close()` ends it; the model lives on."""

    def __init__(self, source: Source, act: Act) -> None:
        """`act` takes {"id", "verb", "args"} and returns the ack's members; it is called on a thread of ours."""
        self.commands = CommandWidget()
        self.feed = FeedWidget(command_id=self.commands.model_id or "")
        self.pump = Pump(source, self._send)
        self._desk = Desk(act, self._send)
        self._send_lock = threading.Lock()
        self.greeted = threading.Event()  # some view said hello: the front end can show it
        self.commands.on_msg(self._on_message)
        self.pump.start()

    def close(self) -> None:
        """Take the widgets off the page and end the threads."""
        self.pump.close()
        self._desk.close()
        for widget in (self.feed, self.commands):
            widget.close()

    @property
    def widget(self) -> Any:
        """What to display."""
        return self.feed

    def _send(self, message: Message) -> None:
        with self._send_lock:  # two threads on one socket would mix their frames
            self.feed.send(message)

    def _on_message(self, _widget: Any, content: Any, _buffers: Any) -> None:
        answer = self.take(content)
        if answer is not None:
            self.commands.send(answer)

    def take(self, content: Any) -> Message | None:
        """One message of a view. Returns what to answer on the command comm. Never blocks, whatever it holds."""
        if not isinstance(content, Mapping):
            return None
        kind, view = content.get("k"), str(content.get("view", ""))[:64]
        if kind == "code":
            return {"k": "code", **code()}
        if kind == "hello":
            self.greeted.set()
            have = content.get("have")
            self.pump.hello(view, have if isinstance(have, Mapping) else {})
            return {"k": "pong"}
        if kind == "seen":
            self.pump.seen(view, hidden=content.get("hidden") is True)
            return {"k": "pong"}
        if kind == "bye":
            self.pump.gone(view)
            return None
        if kind == "cmd":
            return self._desk.take(content)
        return {"k": "pong"} if kind == "ping" else None


class Desk:
    """Takes commands at once and has them done by threads, in order within a lane."""

    def __init__(self, act: Act, send: Callable[[Message], None]) -> None:
        self._act = act
        self._send = send
        self._lanes: dict[str, queue.SimpleQueue[Message | None]] = {}
        self._lock = threading.Lock()
        self._closed = False

    def take(self, content: Mapping[str, Any]) -> Message:
        """Queue it. The answer says only that it has arrived: what came of it follows as an ack, by the feed."""
        command_id, verb, args = content.get("id"), content.get("verb"), content.get("args")
        if not isinstance(command_id, str) or not 8 <= len(command_id) <= 64 or not isinstance(verb, str):
            return {"k": "ack", "id": str(command_id)[:64], "state": "refused", "text": "not a command", "line": ""}
        if not isinstance(args, dict) or any(len(str(value)) > MESSAGE_MAX for value in args.values()):
            return {"k": "ack", "id": command_id, "state": "refused", "text": "too long or unreadable", "line": ""}
        origin = {"view": content.get("view"), "seen": content.get("seen")}
        self._lane(LANES.get(verb, "first")).put({"id": command_id, "verb": verb, "args": args, **origin})
        return {"k": "got", "id": command_id}

    def close(self) -> None:
        """End the lanes once what they are doing is done."""
        self._closed = True
        for lane in self._lanes.values():
            lane.put(None)

    def _lane(self, name: str) -> queue.SimpleQueue[Message | None]:
        with self._lock:  # handlers may come on two threads
            lane = self._lanes.get(name)
            if lane is None:
                lane = self._lanes[name] = queue.SimpleQueue()
                threading.Thread(target=self._work, args=(lane,), name=f"bridgehead-panel-{name}", daemon=True).start()
            return lane

    def _work(self, lane: queue.SimpleQueue[Message | None]) -> None:
        while (command := lane.get()) is not None and not self._closed:
            answer = self._done(command)
            try:
                self._send({"k": "page" if "lines" in answer else "ack", **answer, "id": command["id"]})
            except Exception:  # noqa: BLE001  the front end's way is closed; the queue has the line all the same
                return

    def _done(self, command: Message) -> Message:
        try:
            return self._act(command)
        except Exception as error:  # noqa: BLE001  edge of a widget callback: a person gets a sentence, never silence
            return {"state": "failed", "text": str(error) or type(error).__name__, "line": ""}
