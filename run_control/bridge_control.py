"""Starting, finding and stopping this project's bridge process."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import bridgehead
from bridgehead import files, names, processes
from bridgehead.errors import BridgeDownError
from bridgehead.pairing import Pairing
from run_control.project import Project

START_TIMEOUT_S = 90.0  # a tunnel may need a minute
STOP_TIMEOUT_S = 20.0
_MODULE = "run_control.bridge_process"
_LISTEN = "0A"


@dataclass(frozen=True)
class LiveBridge:
    """A bridge that serves right now."""

    pid: int
    start: int
    port: int
    url: str
    boot_sha256: str
    tunnel: str


def find(project: Project) -> LiveBridge | None:
    """The live bridge of this project, None when there is none (a record left by a dead one counts as none)."""
    record = files.read_json(project.bridge_record)
    if not isinstance(record, dict) or record.get("state") != "ready":
        return None
    if record.get("boot_id") != processes.boot_id() or not processes.is_alive(record["pid"], record["start"]):
        return None
    return LiveBridge(
        pid=record["pid"],
        start=record["start"],
        port=record["port"],
        url=record["url"],
        boot_sha256=record["boot_sha256"],
        tunnel=record["tunnel"],
    )


def need(project: Project) -> LiveBridge:
    """The live bridge. Raises BridgeDownError."""
    live = find(project)
    if live is None:
        raise BridgeDownError(f"no bridge is running for {project.root.name}", hint="bridgehead up")
    return live


def pairing(project: Project, live: LiveBridge) -> Pairing:
    """The pairing code's content. Holds the key: never print it unasked. Raises PairingError."""
    from bridge.keys import KeyStore

    key_id, key = KeyStore(project.private / names.KEYS_FILE).current()
    return Pairing(live.url, key_id, key, live.boot_sha256)


def start(project: Project, *, port: int, tunnel: str) -> LiveBridge:
    """Start the bridge detached and wait until it serves. Raises BridgeDownError that says what stands in the way."""
    refuse_taken_port(port)
    project.make_private()
    process = _spawn(project, port, tunnel)
    try:
        return _await_ready(project, process)
    except BaseException:  # Ctrl-C included: a bridge that nobody waits for would be found by nobody
        process.terminate()
        raise


def _await_ready(project: Project, process: subprocess.Popen[bytes]) -> LiveBridge:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        live = find(project)
        if live is not None and live.pid == process.pid:
            return live
        if process.poll() is not None:
            raise _why_it_ended(project, process.pid)
        time.sleep(0.05)
    raise BridgeDownError("the bridge did not come up in time", hint=f"look into {project.bridge_log}")


def stop(project: Project) -> bool:
    """Stop the bridge and all it started (the tunnel). Returns whether there was one."""
    record = files.read_json(project.bridge_record)
    if not isinstance(record, dict) or record.get("boot_id") != processes.boot_id():
        project.bridge_record.unlink(missing_ok=True)
        return False
    pid, start = int(record["pid"]), int(record["start"])
    session = [child for child in processes.all_pids() if processes.session_of(child) == pid]
    ticks = {child: processes.start_ticks(child) for child in session}
    was_alive = processes.send(pid, signal.SIGTERM, started_ticks=start)
    deadline = time.monotonic() + STOP_TIMEOUT_S
    while was_alive and processes.is_alive(pid, start) and time.monotonic() < deadline:
        time.sleep(0.02)
    for child, started_ticks in ticks.items() if was_alive else ():
        processes.send(child, processes.KILL, started_ticks=started_ticks)
    project.bridge_record.unlink(missing_ok=True)
    return was_alive


def refuse_taken_port(port: int) -> None:
    """Raises BridgeDownError that names the port and, where it can be seen, who holds it."""
    with contextlib.closing(socket.socket(socket.AF_INET, socket.SOCK_STREAM)) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except PermissionError:
            raise BridgeDownError(f"port {port} needs rights you don't have", hint="choose one over 1023") from None
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            owner = port_owner(port)
            by = f" by process {owner} ({processes.command_line(owner)})" if owner else " by another program"
            raise BridgeDownError(
                f"port {port} is taken{by}", hint=f"bridgehead up --port {port + 1}, or end that program"
            ) from None


def port_owner(port: int) -> int:
    """The pid that listens on 127.0.0.1:port or on all addresses; 0 when it can't be seen from here."""
    inodes = _listening_inodes(port)
    for pid in processes.all_pids() if inodes else ():
        with contextlib.suppress(OSError):
            for entry in os.scandir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    if os.readlink(entry.path) in inodes:
                        return pid
    return 0


def _listening_inodes(port: int) -> set[str]:
    found = set()
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in Path("/proc/net", table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                    found.add(f"socket:[{fields[9]}]")
    return found


def detached_environment() -> dict[str, str]:
    """The environment for our own background processes: they find our packages wherever they are started."""
    root = str(Path(bridgehead.__file__).parent.parent)
    return {**os.environ, "PYTHONPATH": root, "PYTHONSAFEPATH": "1"}


def _spawn(project: Project, port: int, tunnel: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", _MODULE, str(project.root), "--port", str(port), "--tunnel", tunnel]
    project.bridge_record.unlink(missing_ok=True)
    log = os.open(project.bridge_log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=project.root,
            env=detached_environment(),
            start_new_session=True,
        )
    finally:
        os.close(log)


def _why_it_ended(project: Project, pid: int) -> BridgeDownError:
    record = files.read_json(project.bridge_record)
    if isinstance(record, dict) and record.get("pid") == pid and isinstance(record.get("error"), dict):
        error = record["error"]
        return BridgeDownError(str(error.get("message")), hint=str(error.get("hint", "")))
    return BridgeDownError("the bridge ended while starting", hint=f"look into {project.bridge_log}")
