"""The bridge as a process of its own: `python -m run_control.bridge_process ROOT --port N [--tunnel KIND]`.

Started detached by `bridgehead up`. What it is and where it listens stands in .bridgehead/bridge.json, written anew
whenever that changes; a lock on .bridgehead/bridge.lock makes a second one in the same project refuse, and the lock
file says who holds it, for when the record is lost.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from bridge import own_process, tunnels
from bridge.front_door import FrontDoor, Standing, Times
from bridge.probe import SETTLE_S, Probe
from bridge.server import Bridge, BridgeSettings
from bridge.tunnels.base import Tunnel
from bridge.tunnels.none import lan_host
from bridge.tunnels.spec import TunnelSpec
from bridgehead import files, names, os_errors, processes
from bridgehead.errors import BridgeDownError, BridgeheadError
from run_control import announce, locks, notebook, project_file, tunnel_table
from run_control.notifier import Notifier
from run_control.project import Project

TUNNEL_READY_S = 60.0
SETTLED_S = 10.0  # given to an address that was there before the bridge
_HEARD_S = 30.0  # a VM beats every 5 s
_TAIL_LINES = 20  # of the tunnel's own output, into our log when it fails
_log = logging.getLogger(__name__)


class BridgeState:
    STARTING = "starting"
    READY = "ready"
    FAILED = "failed"


def main(argv: list[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT. Exit codes are those of the error tree."""
    parser = argparse.ArgumentParser(prog="python -m run_control.bridge_process")
    parser.add_argument("root", type=Path)
    parser.add_argument("--port", type=int, default=names.DEFAULT_PORT)
    parser.add_argument("--tunnel", default="", help="default: what [tunnel] of the project file says")
    args = parser.parse_args(argv)
    project = Project(args.root)
    record = _Record(project.bridge_record)
    lock = locks.take(project.bridge_lock)
    if lock is None:
        sys.stderr.write("another bridge serves this project\n")
        return BridgeDownError.exit_code
    try:
        record.write(BridgeState.STARTING)
        locks.describe(lock, record.identity())  # after the record: a lock without one means that it was lost
        asyncio.run(_until_told(project, args.port, args.tunnel, record))
        locks.describe(lock, {})  # before the record goes, or it would look lost
        project.bridge_record.unlink(missing_ok=True)
        return 0
    except BridgeheadError as error:
        record.write(BridgeState.FAILED, error=error.to_json())
        sys.stderr.write(f"error: {error.message}\n")
        return error.exit_code
    except OSError as error:  # a file that is no file, a full disk: `up` reads the reason from the record
        found = os_errors.in_words(error)
        with contextlib.suppress(OSError):  # the record itself, say
            record.write(BridgeState.FAILED, error=found.to_json())
        sys.stderr.write(f"error: {found.in_one_line()}\n")
        return found.exit_code
    except Exception as error:  # the process edge: `up` reads the reason from the record
        record.write(BridgeState.FAILED, error=BridgeheadError(f"{type(error).__name__}: {error}").to_json())
        raise  # to the log
    finally:
        os.close(lock)


class _Record:
    """bridge.json. Its writer is this process alone."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._written: dict[str, Any] = {}
        self._failing = False
        pid = os.getpid()
        self._always: dict[str, Any] = {
            "v": names.RECORD_VERSION,
            "pid": pid,
            "start": processes.start_ticks(pid),
            "boot_id": processes.boot_id(),
            "started": time.time(),
        }

    def identity(self) -> dict[str, Any]:
        """What tells this very process from all others."""
        return {key: self._always[key] for key in ("pid", "start", "boot_id")}

    def always(self, **values: Any) -> None:
        """What is in it from now on."""
        self._always.update(values)

    def write(self, state: str, **values: Any) -> None:
        """Does nothing when that is what it says already."""
        record = {**self._always, "state": state, **values}
        if record != self._written:
            files.write_json(self._path, record, mode=0o600)
            self._written = record

    def keep_up(self, state: str, **values: Any) -> None:
        """`write` for a bridge that serves already: a full disk is no reason to end. The next call tries again."""
        try:
            self.write(state, **values)
            self._failing = False
        except OSError as error:
            if not self._failing:
                _log.warning("%s can't be written: %s", self._path.name, error.strerror)
            self._failing = True


async def _until_told(project: Project, port: int, kind: str, record: _Record) -> None:
    """Serve until a signal comes, whatever is under way then. Raises what the serving ends with."""
    loop, told = asyncio.get_running_loop(), asyncio.Event()
    for sig in (signal.SIGTERM, signal.SIGINT):
        signal.signal(sig, lambda *_: loop.call_soon_threadsafe(told.set))  # the loop's own are for POSIX alone
    spec = tunnel_table.with_kind(project_file.load(project.root).tunnel, kind)
    record.always(tunnel=spec.kind)
    serving = asyncio.create_task(_serve(project, port, spec, record))
    waiting = asyncio.create_task(told.wait())
    await asyncio.wait({serving, waiting}, return_when=asyncio.FIRST_COMPLETED)
    for task in (serving, waiting):
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def _serve(project: Project, port: int, spec: TunnelSpec, record: _Record) -> None:
    settings = BridgeSettings(
        project.root, project_file.loader(project.root), port=port, also_host=lan_host(spec, port)
    )
    bridge = Bridge(settings)
    loop = asyncio.get_running_loop()
    # A tunnel that comes back under another name says so from a thread of its own.
    tunnel = tunnels.make(spec, on_new_url=lambda url: _call_on(loop, door.moved, url))
    await bridge.start()
    own_process.make_prompt()
    announcer = announce.announcer(project, bridge)
    teller = Notifier(project)
    teller.start()
    try:
        door = _front_door(project, bridge, tunnel, record, announcer)
        await asyncio.to_thread(tunnel.start, bridge.port)
        record.write(BridgeState.STARTING, **_process_of(tunnel))  # known even if we are killed while it connects
        await door.open(await asyncio.to_thread(tunnel.wait_url, TUNNEL_READY_S))
        if spec.kind == tunnels.NONE and not spec.url:
            await asyncio.Event().wait()  # the way from this machine to itself needs no watch
        await door.keep()
    except BridgeDownError:
        for line in tunnel.log_tail()[-_TAIL_LINES:]:
            _log.warning("%s: %s", spec.kind, line)
        raise
    finally:
        await asyncio.to_thread(announcer.stop)
        await asyncio.to_thread(teller.stop)
        await asyncio.to_thread(tunnel.stop)
        await bridge.stop()


def _front_door(
    project: Project, bridge: Bridge, tunnel: Tunnel, record: _Record, announcer: announce.Announcer
) -> FrontDoor:
    published = ""
    loop = asyncio.get_running_loop()

    async def publish(url: str) -> None:
        """A proven address: whoever reads the notebook or the record from now on gets this one."""
        nonlocal published
        await asyncio.to_thread(announcer.announce, url)  # first: the pairing code bears the address's number
        notebook.write(project.notebook, bridge.pairing(url))
        published = url

    def told(standing: Standing) -> None:
        values = {"tunnel_state": str(standing.state), "tunnel_since": standing.since, "tunnel_note": standing.note}
        values |= {**_process_of(tunnel), "address_trouble": announcer.trouble}
        if published:
            values |= {"port": bridge.port, "url": published, "boot_sha256": bridge.boot_sha256}
        record.keep_up(BridgeState.READY if published else BridgeState.STARTING, **values)

    async def heard() -> bool:
        vms = await asyncio.to_thread(bridge.ledger.vms)
        return any(time.time() - vm.last_seen < _HEARD_S for vm in vms)

    probe = Probe(bridge.keys.current, bridge.announce_host)
    times = Times(settle_s=SETTLED_S if tunnel.name == tunnels.NONE else SETTLE_S)
    door = FrontDoor(tunnel, probe, publish=publish, told=told, heard=heard, times=times)
    announcer.on_change = lambda: _call_on(loop, lambda: told(door.standing))
    return door


def _process_of(tunnel: Tunnel) -> dict[str, Any]:
    """The tunnel's own process for the record: whoever finds this one killed has to end that one."""
    pid = int(getattr(tunnel, "pid", 0))
    return {"tunnel_pid": pid, "tunnel_start": processes.start_ticks(pid) if pid else 0}


def _call_on(loop: asyncio.AbstractEventLoop, function: Any, *arguments: Any) -> None:
    with contextlib.suppress(RuntimeError):  # the loop has ended: nobody is left to hear it
        loop.call_soon_threadsafe(function, *arguments)


if __name__ == "__main__":
    sys.exit(main())
