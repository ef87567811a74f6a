"""What the cells of the panel's benchmark run, in the kernel: each way to show a night, with each update timed.

Every way looks at the project with the panel's own engine, so the ways differ in how they show what they know. What is
timed goes as JSON lines into the file `record`: "update" (one that was sent), "look" (the engine's), "memory".
"""

from __future__ import annotations

import functools
import gc
import html
import json
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final
from unittest import mock

import ipywidgets
from IPython.display import display

import control_panel
from control_panel import engine, pump, rich
from control_panel.feed import Feed
from control_panel.model import PanelModel, Update
from control_panel.pump import Message, Pump
from control_panel.shapes import LogLine, Run, Vm
from run_control import project as projects

NAIVE_LINES: Final = 5000
NAIVE_EVERY_S: Final = 0.25
_FIRST_S: Final = 60.0
_MEMORY_EVERY_S: Final = 1.0


class Record:
    """Appends to the file; safe from several threads."""

    def __init__(self, path: str) -> None:
        self._handle = open(path, "a", buffering=1)  # as long as the kernel lives
        self._lock = threading.Lock()

    def note(self, kind: str, **values: Any) -> None:
        with self._lock:
            self._handle.write(json.dumps({"kind": kind, "t": time.time(), **values}) + "\n")

    def timed(self, kind: str, work: Callable[[], bool], **more: Callable[[], int]) -> bool:
        """Do the work and note how long it took, by the clock and on this thread, when it says that it did any."""
        wall, cpu = time.perf_counter(), time.thread_time()
        did = work()
        wall_ms, cpu_ms = 1000 * (time.perf_counter() - wall), 1000 * (time.thread_time() - cpu)
        if did:
            self.note(kind, wall_ms=wall_ms, cpu_ms=cpu_ms, **{name: told() for name, told in more.items()})
        return did

    def memory_by_itself(self) -> None:
        """Note this process's memory and CPU once a second from now on."""

        def work() -> None:
            while True:
                self.memory()
                time.sleep(_MEMORY_EVERY_S)

        threading.Thread(target=work, name="bench-memory", daemon=True).start()

    def memory(self, **more: Any) -> None:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        self.note("memory", rss_bytes=pages * os.sysconf("SC_PAGE_SIZE"), cpu_s=time.process_time(), **more)


class TimedPump(Pump):
    """The panel's own, with each patch timed from the question what is new to its being on its way."""

    def __init__(self, record: Record, source: pump.Source, send: Callable[[Message], None]) -> None:
        super().__init__(source, send)
        self._record = record
        self._told: list[Message] = []

    def tick(self) -> bool:
        self._told = []
        return self._record.timed("update", super().tick, bytes=self._size, messages=lambda: len(self._told))

    def _out(self, message: Message) -> None:
        self._told.append(message)
        super()._out(message)

    def _size(self) -> int:
        return sum(len(json.dumps(message)) for message in self._told)


class TimedFeed(Feed):
    """The panel's own, with each look timed."""

    record: Record

    def look(self) -> bool:
        return self.record.timed("look", super().look)


def panel(record: str) -> None:
    """The panel, as its notebook shows it."""
    told = _observed(record)
    mock.patch.object(rich, "Pump", functools.partial(TimedPump, told)).start()
    control_panel.panel()


def naive(record: str) -> None:
    """An HTML widget that gets the last 5,000 lines anew, four times a second."""
    told = _observed(record)
    source = engine.Engine(projects.find(None)).model
    shown = ipywidgets.HTML()
    display(shown)
    threading.Thread(target=_resend, args=(source, shown, told), name="bench-naive", daemon=True).start()


def rest(record: str) -> None:
    """Nothing: what the page and the notebook cost by themselves."""
    _observed(record)


def hour(record: str, updates: int, per_s: float) -> None:
    """The panel, fed as fast as `per_s` with so many updates; what stays behind is in the notes of "memory"."""
    told = _observed(record, memory=False)
    made = engine.Engine(projects.find(None))
    made.close()  # its model stays, filled once: from here on what is new comes from us
    mock.patch.object(pump, "VISIBLE_EVERY_S", 1 / per_s).start()
    shown = rich.RichPanel(made.model, _refuse)
    display(shown.widget)
    args = (made.model, shown.greeted, told, updates, per_s)
    threading.Thread(target=_hurry, args=args, name="bench-hour", daemon=True).start()


def _observed(path: str, *, memory: bool = True) -> Record:
    record = Record(path)
    TimedFeed.record = record
    mock.patch.object(engine, "Feed", TimedFeed).start()
    if memory:
        record.memory_by_itself()
    return record


def _resend(source: PanelModel, shown: Any, record: Record) -> None:
    lines: deque[dict[str, Any]] = deque(maxlen=NAIVE_LINES)
    seq = 0

    def send() -> bool:
        text = "\n".join(f"{line['run']} {html.escape(line['text'])}" for line in lines)
        shown.value = f'<pre style="height:300px;overflow:auto">{text}</pre>'
        return True

    while True:
        update = source.delta(seq, lines_max=NAIVE_LINES, text_max_bytes=1 << 30)
        if update is not None:
            seq = update["seq"]
            lines += update.get("lines", [])
            record.timed("update", send, bytes=lambda: len(shown.value), messages=lambda: 1)
        time.sleep(NAIVE_EVERY_S)


def _hurry(source: PanelModel, greeted: threading.Event, record: Record, updates: int, per_s: float) -> None:
    if not greeted.wait(_FIRST_S):
        record.note("trouble", why="no view said hello")
        return
    known = source.snapshot(0)
    due = time.monotonic()
    for number in range(updates):
        source.ingest(_next(known, number))
        due += 1 / per_s
        time.sleep(max(0.0, due - time.monotonic()))
        if (number + 1) % max(1, updates // 24) == 0:
            gc.collect()
            record.memory(updates=number + 1)
    record.note("hour", updates=updates)


def _next(known: Mapping[str, Any], number: int) -> Update:
    """A quarter of a second of a night: ten lines, a step of each run at work, the gauges of each VM."""
    runs, vms, points = [], [], {}
    for item in known["runs"]:
        fields = {name: value for name, value in item.items() if name != "order"}
        if item["state"] == "running":
            fields |= {"step": item["step"] + number, "metrics": {"loss": 0.3 + number % 7 / 100}}
            points[item["id"]] = {"loss": [(item["step"] + number, 0.3 + number % 7 / 100)]}
        runs.append(Run(**fields))
    for item in known["vms"]:
        fields = {name: value for name, value in item.items() if name != "order"}
        vms.append(Vm(**{**fields, "gauges": {**item["gauges"], "gpu": {"use": number % 100 / 100}}}))
    run = known["runs"][number % len(known["runs"])]
    text = f"step={number} loss=0.21{number % 1000:03d} lr=2.100e-04 grad_norm=1.204 clips_per_s=4811 of this quarter"
    lines = [LogLine(run["id"], f"{text} {at}", vm=run["vm"], t=time.time()) for at in range(10)]
    return Update(vms=vms, runs=runs, points=points if number % 2 else {}, lines=lines)


def _refuse(command: Message) -> Message:
    return {"id": command["id"], "state": "refused", "text": "this is a benchmark", "line": ""}
