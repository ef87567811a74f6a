"""TensorBoard: an event file for each run, <folder>/<run>/…; `tensorboard --logdir FOLDER` shows them side by side."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from run_control.tracking.event_file import EventFile, scalar, text
from run_control.tracking.flat import flat
from run_control.tracking.messages import Answer, Message

FILE = "events.out.tfevents.bridgehead"  # TensorBoard reads what has "tfevents" in its name
_BYTES = "bytes"


class TensorBoardSink:
    """place: {"bytes": how much of the run's file counts}."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._folder = Path(settings["folder"])
        self._files: dict[str, EventFile] = {}

    def tell(self, message: Message) -> Answer:
        path = self._folder / message.run / FILE
        told_bytes = int(message.place.get(_BYTES, 0))
        known = self._files.get(message.run)
        if told_bytes > (path.stat().st_size if path.exists() else 0):
            self._files.pop(message.run, None)  # somebody removed it: all of it again
            return Answer(behind=-1)
        if known is None or known.size != told_bytes:
            known = self._files[message.run] = EventFile(path, told_bytes)
        known.append(_records(message), float(message.head["created"]))
        if message.end is not None:
            self._files.pop(message.run, None)
        return Answer({_BYTES: known.size})

    def close(self) -> None:
        """Nothing is open between two messages."""


def _records(message: Message) -> Iterator[bytes]:
    created = float(message.head["created"])
    if message.head_is_new:
        yield text("run", _markdown(message.head), created)
    for step, _, at, metrics in message.points:
        for name, value in metrics.items():
            yield scalar(name, value, step, at or created)
    if message.end is not None:
        yield text("end", _markdown(message.end), created)


def _markdown(values: dict[str, Any]) -> str:
    rows = [f"| {_cell(name)} | {_cell(value)} |" for name, value in flat(values).items()]
    return "\n".join(["| | |", "|---|---|", *rows])


def _cell(value: object) -> str:
    return " ".join(str(value).split()).replace("|", "\\|")
