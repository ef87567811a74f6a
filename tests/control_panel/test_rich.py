"""RichPanel without a browser: what it answers at once, what its lanes do, what a notebook would save of it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from support import wait_until

pytest.importorskip("anywidget", reason="the extra `panel` is not installed: no anywidget")

from control_panel import rich
from control_panel.model import PanelModel

CELL = "bh1.c2VjcmV0"


class Rig:
    def __init__(self) -> None:
        self.gate = threading.Event()
        self.done: list[str] = []
        self.panel = rich.RichPanel(PanelModel(gen="g"), self.act)
        self.sent: list[dict[str, Any]] = []
        self.panel.feed.send = self.sent.append

    def act(self, command: dict[str, Any]) -> dict[str, Any]:
        if command["verb"] == "log":
            assert self.gate.wait(60)
            return {"lines": [], "from_bytes": 0, "to_bytes": 0, "size": 0}
        if command["verb"] == "gate":
            raise RuntimeError("the ledger is not there")
        self.done.append(command["verb"])
        return {"state": "sent", "text": CELL, "line": f"{command['verb']}:x"}

    def press(self, verb: str, **args: Any) -> dict[str, Any] | None:
        self.count = getattr(self, "count", 0) + 1
        return self.panel.take({"k": "cmd", "id": f"press-{self.count:04d}", "verb": verb, "args": args})

    def acks(self) -> list[dict[str, Any]]:
        return [message for message in self.sent if message["k"] == "ack"]


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig()
    yield rig
    rig.gate.set()
    rig.panel.close()


def test_a_command_is_answered_at_once_and_acknowledged_when_done(rig: Rig) -> None:
    assert rig.press("stop", run="r", now=False) == {"k": "got", "id": "press-0001"}
    wait_until(rig.acks, 20, what="the ack")
    assert rig.acks()[0] == {"k": "ack", "id": "press-0001", "state": "sent", "text": CELL, "line": "stop:x"}


def test_a_stop_does_not_wait_for_a_search_through_a_log(rig: Rig) -> None:
    rig.press("log", run="r", search="x")
    rig.press("stop", run="r", now=False)
    wait_until(rig.acks, 20, what="the ack of the stop")
    assert not any(message["k"] == "page" for message in rig.sent)
    rig.gate.set()
    wait_until(lambda: any(message["k"] == "page" for message in rig.sent), 20, what="the page")


def test_what_goes_wrong_is_told_in_words(rig: Rig) -> None:
    rig.press("gate")
    wait_until(rig.acks, 20, what="the ack")
    assert rig.acks()[0]["state"] == "failed"
    assert rig.acks()[0]["text"] == "the ledger is not there"


@pytest.mark.parametrize(
    "content",
    [None, "x", [], {}, {"k": "what"}, {"k": "seen"}, {"k": "hello", "have": 3, "view": {"a": 1}}, {"k": "bye"}],
)
def test_unreadable_messages_do_nothing(rig: Rig, content: Any) -> None:
    rig.panel.take(content)
    assert rig.done == []


@pytest.mark.parametrize(
    "command",
    [
        {"k": "cmd"},
        {"k": "cmd", "id": 5, "verb": "stop", "args": {}},
        {"k": "cmd", "id": "short", "verb": "stop", "args": {}},
        {"k": "cmd", "id": "long-enough", "verb": "stop", "args": "run"},
        {"k": "cmd", "id": "long-enough", "verb": "sh", "args": {"text": "x" * 300_000}},
    ],
)
def test_a_command_that_cannot_be_read_is_refused(rig: Rig, command: dict[str, Any]) -> None:
    answer = rig.panel.take(command)
    assert answer is not None and answer["state"] == "refused"
    assert rig.done == []


def test_what_a_notebook_saves_of_it_is_small_and_holds_no_secret(rig: Rig) -> None:
    rig.press("pair")
    wait_until(rig.acks, 20, what="the cell")
    saved = json.dumps([rig.panel.feed.get_state(), rig.panel.commands.get_state()], default=str)
    assert len(saved) < 12_000
    assert CELL not in saved


def test_the_code_comes_by_message_and_is_whole() -> None:
    code = rich.code()
    assert "export function start" in code["js"]
    assert code["js"].count("export ") == 1
    assert "innerHTML" not in code["js"] and "insertAdjacentHTML" not in code["js"] and "eval(" not in code["js"]
    assert ".panel" in code["css"]


def test_every_piece_of_the_page_is_short_and_listed() -> None:
    on_disk = {path.name for path in rich.PAGE.glob("*.js")} - {"loader.js"}
    assert on_disk == set(rich.PIECES)
    for path in rich.PAGE.iterdir():
        assert len(path.read_text().splitlines()) < 400, f"{path.name} is too long to read"


def test_closing_ends_the_threads(rig: Rig) -> None:
    rig.press("stop", run="r", now=False)
    wait_until(rig.acks, 20, what="the ack")
    rig.panel.close()
    wait_until(lambda: not rig.panel.pump.alive, 20, what="the pump's end")
