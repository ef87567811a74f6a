"""A sink in a process of its own that writes down each message, for tests; how it behaves says <folder>/mode.

ok, hang (for ever), die (before it takes anything), forget (it takes all and dies before it says so), refuse,
refuse RUN, hang RUN, or stubborn: it hangs when it is to close.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from run_control.tracking.messages import Answer, Message, SinkError
from run_control.tracking.sink_process import serve


class Recorder:
    def __init__(self, settings: dict[str, Any]) -> None:
        self._folder = Path(settings["folder"])
        with (self._folder / "pids").open("a") as stream:
            stream.write(f"{os.getpid()}\n")
        print("a tool that prints onto stdout")

    def tell(self, message: Message) -> Answer:
        mode, _, run = self._mode().partition(" ")
        mine = not run or run == message.run
        if mode == "hang" and mine:
            time.sleep(600)
        if mode == "die" and mine:
            os._exit(9)
        if mode == "refuse" and mine:
            raise SinkError("no", "ask again")
        with (self._folder / "told.jsonl").open("a") as stream:
            stream.write(json.dumps(asdict(message)) + "\n")
        if mode == "forget" and mine:
            os._exit(9)
        return Answer({"messages": int(message.place.get("messages", 0)) + 1})

    def close(self) -> None:
        if self._mode() == "stubborn":
            time.sleep(600)

    def _mode(self) -> str:
        path = self._folder / "mode"
        return path.read_text() if path.exists() else "ok"


if __name__ == "__main__":
    sys.exit(serve(Recorder))
