"""Runs of which something has arrived, and a sink that writes down what it is told, or misbehaves when asked to."""

from __future__ import annotations

import contextlib
import json
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from project_support import Seeded

from bridgehead import files, names
from bridgehead.names import RunState
from run_control.tracking.feeder import Feed, Feeder

SINK = Path(__file__).with_name("tracking_sink.py")
AT = 1_700_000_000.0


@contextlib.contextmanager
def silent_server() -> Iterator[str]:
    """The address of a server that takes connections and never answers."""
    held: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    held.append(server.accept()[0])

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
        thread.join(100)
    for connection in held:
        connection.close()


def progress(folder: Path, step: int, *, attempt: int = 1, **metrics: float) -> None:
    """One word of progress, as bridgehead.run writes it; `at` is the step's own."""
    told = {"step": step, "total_steps": 100, "epoch": 0, "total_epochs": 0, "metrics": metrics}
    line(folder, {"v": 1, "at": AT + step, "attempt": attempt, "event": "progress", **told})


def line(folder: Path, event: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / names.PROGRESS).open("a") as stream:
        stream.write(json.dumps(event) + "\n")


def end(seeded: Seeded, run_id: str, state: RunState = RunState.DONE, **results: Any) -> None:
    """The run ends: its exit record and results arrive, and then the ledger hears of it."""
    folder = seeded.project.run(run_id)
    code = 0 if state is RunState.DONE else 1
    record = {"v": 1, "run_id": run_id, "attempt": 1, "state": str(state), "exit_code": code}
    files.write_json(folder / names.EXIT, {**record, "started": AT, "ended": AT + 360})
    if results:
        files.write_json(folder / names.RESULTS, {"v": 1, "run_id": run_id, **results})
    seeded.finish(run_id, state, code)


class Recorder:
    """The sink's folder: what it was told, and how it is to behave (see tracking_sink.py)."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)

    def behave(self, mode: str) -> None:
        files.write_atomic(self.folder / "mode", mode.encode())

    @property
    def told(self) -> list[dict[str, Any]]:
        path = self.folder / "told.jsonl"
        return [json.loads(text) for text in path.read_text().splitlines()] if path.exists() else []

    def rows(self, run_id: str, metric: str = "loss") -> list[list[float]]:
        """[[step, value], …] in the order in which they came."""
        points = [point for message in self.told if message["run"] == run_id for point in message["points"]]
        return [[step, metrics[metric]] for step, _, _, metrics in points if metric in metrics]

    def ends(self, run_id: str) -> list[dict[str, Any]]:
        return [message["end"] for message in self.told if message["run"] == run_id and message["end"]]

    @property
    def pids(self) -> list[int]:
        path = self.folder / "pids"
        return [int(text) for text in path.read_text().split()] if path.exists() else []

    def feed(self, *, name: str = "recorder", timeout_s: float = 60.0, whole: bool = False) -> Feed:
        return Feed(name, {"folder": str(self.folder)}, [sys.executable, str(SINK)], timeout_s, whole)


def feeder(seeded: Seeded, feed: Feed, **more: Any) -> Feeder:
    return Feeder(seeded.project, "watch", feed, **{"first_pause_s": 0.0, "look_every_s": 0.05, **more})
