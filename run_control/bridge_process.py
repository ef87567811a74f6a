"""The bridge as a process of its own: `python -m run_control.bridge_process ROOT --port N --tunnel NAME`.

Started detached by `bridgehead up`. What it is and where it listens stands in .bridgehead/bridge.json, written anew
whenever that changes; a lock on .bridgehead/bridge.lock makes a second one in the same project refuse.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from bridge import tunnels
from bridge.server import Bridge, BridgeSettings
from bridgehead import files, names, processes
from bridgehead.errors import BridgeDownError, BridgeheadError
from run_control import locks, notebook, project_file
from run_control.project import Project

LOCK_FILE = "bridge.lock"
TUNNEL_READY_S = 60.0
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
    lock = locks.take(project.private / LOCK_FILE)
    if lock is None:
        sys.stderr.write("another bridge serves this project\n")
        return BridgeDownError.exit_code
    try:
        record.write(BridgeState.STARTING)
        asyncio.run(_serve(project, args.port, args.tunnel, record))
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

    def write(self, state: str, **values: Any) -> None:
        files.write_json(self._path, {**self._fixed, "state": state, **values}, mode=0o600)


async def _serve(project: Project, port: int, tunnel_name: str, record: _Record) -> None:
    bridge = Bridge(BridgeSettings(project.root, project_file.loader(project.root), port=port))
    loop = asyncio.get_running_loop()
    addresses: asyncio.Queue[str] = asyncio.Queue()
    for sig in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(sig, addresses.put_nowait, _STOP)
    # A tunnel that comes back under another name says so from a thread of its own.
    tunnel = tunnels.make(tunnel_name, on_new_url=lambda url: _tell(loop, addresses, url))
    await bridge.start()
    try:
        await asyncio.to_thread(tunnel.start, bridge.port)
        url = await asyncio.to_thread(tunnel.wait_url, TUNNEL_READY_S)
        while url != _STOP:
            notebook.write(project.notebook, bridge.pairing(url))
            record.write(BridgeState.READY, port=bridge.port, url=url, boot_sha256=bridge.boot_sha256)
            url = await addresses.get()
    finally:
        await asyncio.to_thread(tunnel.stop)
        await bridge.stop()


def _tell(loop: asyncio.AbstractEventLoop, addresses: asyncio.Queue[str], url: str) -> None:
    loop.call_soon_threadsafe(addresses.put_nowait, url)


if __name__ == "__main__":
    sys.exit(main())
