"""A bridge in a process of its own, with one run that a make-believe VM owns, for measuring transfers."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

from bridge.project import ProjectView
from bridge.server import Bridge, BridgeSettings
from bridgehead.records import StageSpec

VM_ID = "vm-bench"


class BridgeProcess:
    """Starts the process; port, key and the run's id are its first line of output."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def __enter__(self) -> BridgeProcess:
        argv = [sys.executable, "-m", "bench.serve_bridge", str(self.root)]
        self._process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        said: dict[str, Any] = json.loads(self._process.stdout.readline())
        self.port: int = said["port"]
        self.run_id: str = said["run_id"]
        self.key_id: str = said["key_id"]
        self.key = bytes.fromhex(said["key"])
        self.pid = self._process.pid
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        self._process.wait(20)


async def _serve(root: Path) -> None:
    project = ProjectView("bench", {"big": StageSpec("big", "true")}, payload_include=["payload/**"])
    bridge = Bridge(BridgeSettings(root=root, load_project=lambda: project, port=0))
    await bridge.start()
    (row,) = bridge.ledger.take([(1, "run:big")], project)
    bridge.ledger.deliver(VM_ID, 0)
    key_id, key = bridge.keys.current()
    said = {"port": bridge.port, "run_id": row.run_id, "key_id": key_id, "key": key.hex()}
    print(json.dumps(said), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_serve(Path(sys.argv[1])))
