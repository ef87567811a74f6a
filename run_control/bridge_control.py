"""Starting, finding and stopping this project's bridge process."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeGuard

import bridgehead
from bridgehead import files, names, processes
from bridgehead.errors import BridgeDownError
from bridgehead.pairing import Pairing
from bridgehead.records import duration
from run_control import locks, project_file
from run_control.project import Project

START_TIMEOUT_S = 150.0  # a tunnel may need a minute, and its name another one to be known everywhere
STOP_TIMEOUT_S = 20.0
TUNNEL_STOP_TIMEOUT_S = 3.0  # after each signal
DISK_MIN_BYTES = 32 << 20
RESTART = "bridgehead down, then bridgehead up"
_READY = "ready"
_MODULE = "run_control.bridge_process"
_LISTEN = "0A"


@dataclass(frozen=True)
class LiveBridge:
    """A bridge that serves right now. When its record is lost only its process is known, and `url` is empty."""

    pid: int
    start: int
    port: int = 0
    url: str = ""
    boot_sha256: str = ""
    tunnel: str = ""
    tunnel_state: str = ""  # a bridge.front_door.DoorState
    tunnel_since: float = 0.0  # seconds since 1970
    tunnel_note: str = ""  # what is wrong with the way in


def find(project: Project) -> LiveBridge | None:
    """The live bridge of this project, None when there is none (a record left by a dead one counts as none)."""
    record = _record(project)
    if record is None:
        return _holder(project)
    if not processes.is_alive(record["pid"], record["start"]):
        return _holder(project)  # the record is an older bridge's
    if record.get("state") != _READY:
        return None
    return LiveBridge(**{item.name: record[item.name] for item in fields(LiveBridge)})


def need(project: Project) -> LiveBridge:
    """The live bridge, with its address. Raises BridgeDownError."""
    live = find(project)
    if live is None:
        raise BridgeDownError(f"no bridge is running for {project.root.name}", hint="bridgehead up")
    if not live.url:
        raise BridgeDownError(record_lost(project, live), hint=RESTART)
    return live


def way_in(live: LiveBridge, *, now: float | None = None) -> str:
    """How the public address is, in one line."""
    lasting = duration((time.time() if now is None else now) - live.tunnel_since)
    why = f": {live.tunnel_note}" if live.tunnel_note else ""
    return f"tunnel {live.tunnel} at {live.url}: {live.tunnel_state} for {lasting}{why}"


def record_lost(project: Project, live: LiveBridge) -> str:
    return f"the bridge runs as process {live.pid}, but {project.bridge_record} is missing or damaged"


def _record(project: Project) -> dict[str, Any] | None:
    """bridge.json when it is one of this boot and whole, else None."""
    record = files.read_json(project.bridge_record)
    if not _names_a_process(record):
        return None
    ready = record.get("state") == _READY
    if ready and not all(type(record.get(item.name)) is type(item.default) for item in fields(LiveBridge)[2:]):
        return None
    return dict(record)


def _holder(project: Project) -> LiveBridge | None:
    """Who wrote itself into the lock file, when that process still lives."""
    values = locks.described(project.bridge_lock)
    if not _names_a_process(values) or not processes.is_alive(values["pid"], values["start"]):
        return None
    return LiveBridge(values["pid"], values["start"])


def _names_a_process(values: Any) -> TypeGuard[dict[str, Any]]:
    if not isinstance(values, dict) or values.get("boot_id") != processes.boot_id():
        return False
    return type(values.get("pid")) is int and type(values.get("start")) is int


def pairing(project: Project, live: LiveBridge, key_id: str = "") -> Pairing:
    """The pairing code's content, for the current key or the one named. Holds the key: never print it unasked.

    Raises PairingError and ProjectError.
    """
    from bridge.address_record import AddressRecord
    from bridge.keys import KeyStore

    store = project_file.load(project.root).store.folder
    keys = KeyStore(project.private / names.KEYS_FILE)
    seq = AddressRecord(project.private / names.ADDRESS).seq_of(live.url)
    found = keys.pairing(live.url, live.boot_sha256, store=store, key_id=key_id)
    return dataclasses.replace(found, seq=seq)


def start(project: Project, *, port: int, tunnel: str = "") -> LiveBridge:
    """Start the bridge detached and wait until it serves through its public address.

    `tunnel` is a kind, "" the one that the project file names. Raises BridgeDownError that says what stands in the way.
    """
    record = _record(project)
    other = _holder(project)
    if other is not None:
        raise BridgeDownError(f"a bridge is starting already, as process {other.pid}", hint=RESTART)
    _end_tunnel(record)  # of a bridge that was killed: the record that names it is about to go
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
        if live is not None and live.pid == process.pid and live.url:
            return live
        if process.poll() is not None:
            raise _why_it_ended(project, process.pid, process.returncode)
        time.sleep(0.05)
    raise BridgeDownError("the bridge did not come up in time", hint=f"look into {project.bridge_log}")


def stop(project: Project) -> bool:
    """Stop the bridge and all it started (the tunnel). Returns whether there was one."""
    record = _record(project)
    known = (record["pid"], record["start"]) if record else (0, 0)
    holder = None if processes.is_alive(*known) else _holder(project)
    pid, start = (holder.pid, holder.start) if holder else known
    session = [child for child in processes.all_pids() if pid and processes.session_of(child) == pid]
    ticks = {child: processes.start_ticks(child) for child in session}
    was_alive = processes.send(pid, signal.SIGTERM, started_ticks=start)
    if was_alive:
        _await_end(pid, start, STOP_TIMEOUT_S)
    for child, started_ticks in ticks.items() if was_alive else ():
        processes.send(child, processes.KILL, started_ticks=started_ticks)
    _end_tunnel(record)
    project.bridge_record.unlink(missing_ok=True)
    return was_alive


def _end_tunnel(record: dict[str, Any] | None) -> None:
    """End the tunnel's process that the record names: it is in a session of its own and outlives a killed bridge."""
    pid, start = (record or {}).get("tunnel_pid"), (record or {}).get("tunnel_start")
    if type(pid) is not int or type(start) is not int:
        return
    for sign in (signal.SIGTERM, processes.KILL):
        if processes.send(pid, sign, started_ticks=start):
            _await_end(pid, start, TUNNEL_STOP_TIMEOUT_S)


def _await_end(pid: int, start: int, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while processes.is_alive(pid, start) and time.monotonic() < deadline:
        time.sleep(0.02)


def refuse_full_disk(project: Project) -> None:
    """Raises BridgeDownError: a bridge that can't write its record or its log could not even say why it ended."""
    free = shutil.disk_usage(project.root).free
    if free < DISK_MIN_BYTES:
        raise BridgeDownError(
            f"the disk that holds {project.root} is full: {free / 2**20:.1f} MiB free",
            hint=f"make room for {DISK_MIN_BYTES >> 20} MiB there, then bridgehead up",
        )


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
    command = [sys.executable, "-m", _MODULE, str(project.root), "--port", str(port)]
    command += ["--tunnel", tunnel] if tunnel else []
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


def _why_it_ended(project: Project, pid: int, exit_code: int | None) -> BridgeDownError:
    record = files.read_json(project.bridge_record)
    if isinstance(record, dict) and record.get("pid") == pid and isinstance(record.get("error"), dict):
        error = record["error"]
        return BridgeDownError(str(error.get("message")), hint=str(error.get("hint", "")))
    if exit_code == BridgeDownError.exit_code:  # it refuses before it may write the record
        text = f"another bridge holds {project.bridge_lock}, and nothing tells which process that is"
        return BridgeDownError(text, hint="end that process (run_control.bridge_process), then bridgehead up")
    return BridgeDownError("the bridge ended while starting", hint=f"look into {project.bridge_log}")
