"""A server under load, in a process of its own: the bridge, or a bare aiohttp server that keeps nothing.

A task on its loop sleeps 10 ms again and again and notes how late it wakes: `lag`. How much of that time the loop's own
thread was at work is noted too, since on a machine with too few cores most of a lag is time in which the process did
not run at all. SIGUSR1 forgets what was noted so far (the end of the warm-up), SIGTERM prints it and ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aiohttp import web

from bridge import own_process
from bridge.project import ProjectView
from bridge.server import Bridge, BridgeSettings
from bridgehead import names
from bridgehead.records import StageSpec

STAGE = "work"
PAYLOAD = "payload/model.bin"
BLOCKED_S = 0.05
_TICK_S = 0.01


def vm_name(number: int) -> str:
    return f"vm-{number:03d}"


class LoopWatch:
    """How late the loop wakes a sleeper, and for how long its thread was at work meanwhile."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self._lags_s: list[float] = []
        self._bursts_s: list[float] = []

    async def run(self) -> None:
        while True:
            wall, cpu = time.perf_counter(), time.thread_time()
            await asyncio.sleep(_TICK_S)
            self._lags_s.append(time.perf_counter() - wall - _TICK_S)
            self._bursts_s.append(time.thread_time() - cpu)

    def told(self) -> dict[str, Any]:
        lags, bursts = sorted(self._lags_s) or [0.0], sorted(self._bursts_s) or [0.0]
        return {
            "ticks": len(self._lags_s),
            "lag_p99_ms": round(lags[int(len(lags) * 0.99)] * 1e3, 1),
            "lag_max_ms": round(lags[-1] * 1e3, 1),
            "lags_over_50_ms": sum(lag > BLOCKED_S for lag in lags),
            "work_max_ms": round(bursts[-1] * 1e3, 1),
            "works_over_50_ms": sum(burst > BLOCKED_S for burst in bursts),
        }


async def _bridge(root: Path, vms: int) -> dict[str, Any]:
    project = ProjectView("load", {STAGE: StageSpec(STAGE, "true")}, payload_include=["payload/**"])
    bridge = Bridge(BridgeSettings(root=root, load_project=lambda: project, port=0))
    await bridge.start()
    own_process.make_prompt()
    rows = bridge.ledger.take([(1 + n, f"@{vm_name(n)} run:{STAGE}") for n in range(vms)], project)
    for number in range(vms):
        bridge.ledger.deliver(vm_name(number), 0)
    key_id, key = bridge.keys.current()
    return {"port": bridge.port, "key_id": key_id, "key": key.hex(), "runs": [row.run_id for row in rows]}


async def _bare(root: Path, vms: int) -> dict[str, Any]:
    """Reads each body and forgets it; a poll waits for the next lines of queue.txt for its VM."""
    queue = root / names.QUEUE_FILE
    payload = (root / PAYLOAD).read_bytes()

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        if request.path == names.QUEUE_PATH:
            vm, after = request.query["vm"], int(request.query["after"])
            deadline = time.monotonic() + float(request.query["wait"])
            while not (lines := _lines(queue, vm)[after:]) and time.monotonic() < deadline:
                await asyncio.sleep(0.02)
            return web.json_response({"lines": lines})
        if request.method == "GET":
            return web.Response(body=payload)
        size = 0
        async for piece in request.content.iter_any():
            size += len(piece)
        offset = int(request.headers.get(names.HEADER_OFFSET, "0")) + size
        return web.Response(status=204, headers={names.HEADER_OFFSET: str(offset)})

    runner = web.ServerRunner(web.Server(handle))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    runs = [f"{STAGE}-{number:04d}-abcdef" for number in range(vms)]
    return {"port": runner.addresses[0][1], "key_id": "none", "key": bytes(32).hex(), "runs": runs}


def _lines(queue: Path, vm: str) -> list[str]:
    with contextlib.suppress(FileNotFoundError):
        return [line for line in queue.read_text().splitlines() if line.startswith(f"@{vm} ")]
    return []


async def _serve(kind: str, root: Path, vms: int) -> None:
    starts: dict[str, Callable[[Path, int], Any]] = {"bridge": _bridge, "bare": _bare}
    said = await starts[kind](root, vms)
    watch, ended = LoopWatch(), asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGUSR1, watch.forget)
    loop.add_signal_handler(signal.SIGTERM, ended.set)
    ticking = asyncio.create_task(watch.run())
    print(json.dumps(said), flush=True)
    await ended.wait()
    ticking.cancel()
    print(json.dumps(watch.told()), flush=True)
    os._exit(0)  # what is open does not matter any more; a graceful end would wait for the polls


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])))
