"""The bridge as a process of its own: `python -m run_control.bridge_process ROOT --port N --tunnel NAME`.

Started detached by `bridgehead up`. What it is and where it listens stands in .bridgehead/bridge.json, written anew
whenever that changes; a lock on .bridgehead/bridge.lock makes a second one in the same project refuse, and the lock
file says who holds it, for when the record is lost.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from bridge import tunnels
from bridge.server import Bridge, BridgeSettings
from bridge.tunnels.base import Tunnel
from bridgehead import files, names, processes
from bridgehead.errors import BridgeDownError, BridgeheadError
from run_control import locks, notebook, project_file
from run_control.project import Project

TUNNEL_READY_S = 60.0
_LOOK_S = 2.0  # between two looks whether the tunnel has a new process
_STOP = ""  # in place of the tunnel's next address


class BridgeState:
    STARTING = "starting"
    READY = "ready"
    FAILED = "failed"


def main(argv: list[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT. Exit codes are those of the error tree."""
    parser = argparse.ArgumentParser(prog="python -m run_control.bridge_process")
    parser.add_argument("root", type=Path)
    parser.add_argument("--port", type=int, default=names.DEFAULT_PORT)
    parser.add_argument("--tunnel", default="none")
    args = parser.parse_args(argv)
    project = Project(args.root)
    record = _Record(project.bridge_record, args.tunnel)
    lock = locks.take(project.bridge_lock)
    if lock is None:
        sys.stderr.write("another bridge serves this project\n")
        return BridgeDownError.exit_code
    try:
        record.write(BridgeState.STARTING)
        locks.describe(lock, record.identity())  # after the record: a lock without one means that it was lost
        asyncio.run(_serve(project, args.port, args.tunnel, record))
        locks.describe(lock, {})  # before the record goes, or it would look lost
        project.bridge_record.unlink(missing_ok=True)
        return 0
    except BridgeheadError as error:
        record.write(BridgeState.FAILED, error=error.to_json())
        sys.stderr.write(f"error: {error.message}\n")
        return error.exit_code
    except Exception as error:  # the process edge: `up` reads the reason from the record
        record.write(BridgeState.FAILED, error=BridgeheadError(f"{type(error).__name__}: {error}").to_json())
        raise  # to the log
    finally:
        os.close(lock)


class _Record:
    """bridge.json. Its writer is this process alone."""

    def __init__(self, path: Path, tunnel: str) -> None:
        self._path = path
        pid = os.getpid()
        self._fixed = {
            "v": names.RECORD_VERSION,
            "pid": pid,
            "start": processes.start_ticks(pid),
            "boot_id": processes.boot_id(),
            "started": time.time(),
            "tunnel": tunnel,
        }

    def identity(self) -> dict[str, Any]:
        """What tells this very process from all others."""
        return {key: self._fixed[key] for key in ("pid", "start", "boot_id")}

    def write(self, state: str, **values: Any) -> None:
        files.write_json(self._path, {**self._fixed, "state": state, **values}, mode=0o600)


async def _serve(project: Project, port: int, tunnel_name: str, record: _Record) -> None:
    bridge = Bridge(BridgeSettings(project.root, project_file.loader(project.root), port=port))
    loop = asyncio.get_running_loop()
    addresses: asyncio.Queue[str] = asyncio.Queue()
    for sig in (signal.SIGTERM, signal.SIGINT):
        signal.signal(sig, lambda *_: _tell(loop, addresses, _STOP))  # the loop's own handlers are for POSIX alone
    # A tunnel that comes back under another name says so from a thread of its own.
    tunnel = tunnels.make(tunnel_name, on_new_url=lambda url: _tell(loop, addresses, url))
    await bridge.start()
    try:
        await asyncio.to_thread(tunnel.start, bridge.port)
        record.write(BridgeState.STARTING, **_process_of(tunnel))  # known even if we are killed while it connects
        url = await asyncio.to_thread(tunnel.wait_url, TUNNEL_READY_S)
        while url != _STOP:
            notebook.write(project.notebook, bridge.pairing(url))
            process = _process_of(tunnel)
            values = {"port": bridge.port, "url": url, "boot_sha256": bridge.boot_sha256, **process}
            record.write(BridgeState.READY, **values)
            url = await _next_address(addresses, tunnel, process, url)
    finally:
        await asyncio.to_thread(tunnel.stop)
        await bridge.stop()


async def _next_address(addresses: asyncio.Queue[str], tunnel: Tunnel, process: dict[str, int], url: str) -> str:
    """The tunnel's next address, or the same once its process is another one: the record has to name that."""
    while True:
        with contextlib.suppress(TimeoutError):
            return await asyncio.wait_for(addresses.get(), _LOOK_S)
        if _process_of(tunnel) != process:
            return url


def _process_of(tunnel: Tunnel) -> dict[str, int]:
    """The tunnel's own process for the record: whoever finds this one killed has to end that one."""
    pid = int(getattr(tunnel, "pid", 0))
    return {"tunnel_pid": pid, "tunnel_start": processes.start_ticks(pid) if pid else 0}


def _tell(loop: asyncio.AbstractEventLoop, addresses: asyncio.Queue[str], url: str) -> None:
    loop.call_soon_threadsafe(addresses.put_nowait, url)


if __name__ == "__main__":
    sys.exit(main())
