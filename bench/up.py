"""VM to laptop: many small files against nginx with its dav module, and a log that grows fast. Same disk, same run.

The small files go to nginx by its best client, curl with parallel transfers on connections that are kept (`curl -Z`),
and to the bridge by the VM's own uploader. nginx hashes nothing and flushes nothing; the bridge has every file verified
and on disk before it answers. On loopback both are about as fast as the file system makes files; what batches save is
round trips, so the same is done through a line that has one. CPU is that of the server process alone, the client's is
told beside it.
The log is shipped by the status daemon, as on a VM; the baseline copies the same bytes from file to file.
"""

from __future__ import annotations

import contextlib
import functools
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.delay import line
from bench.project import quantile, until
from bench.serve_bridge import VM_ID, BridgeProcess
from bench.transfer import _cpu_s, _nginx
from bridgehead import files, names
from bridgehead.pairing import Pairing
from bridgehead.records import Heartbeat, RunRecord, StageSpec
from vm_daemons.artefacts import Artefacts
from vm_daemons.client import BridgeClient
from vm_daemons.home import VmHome
from vm_daemons.upload_pace import UploadPace

SMALL_GOAL = 5.0
LOG_MB_S = 5.0
LAG_GOAL_S = 0.5
_ROUNDS = 3
_SMALL_BYTES = 4096
_PARALLEL = 50
ROUND_TRIP_S = 0.04  # what a VM far away has at best


@dataclass
class _Cost:
    wall: float = 9e9
    server_cpu: float = 9e9
    client_cpu: float = 9e9

    def least(self, other: _Cost) -> _Cost:
        return other if other.wall < self.wall else self


def rows(count: int = 10_000) -> Iterator[dict[str, Any]]:
    """All of this file."""
    if shutil.which("nginx") or Path("/usr/sbin/nginx").exists():
        yield from small_files(count)
    else:
        print("up: nginx is not here; on Debian: apt-get install nginx-light", file=sys.stderr)
    yield from fast_log()


def small_files(count: int = 10_000) -> Iterator[dict[str, Any]]:
    """On loopback, where each server is as fast as it can make files, and through a line with a round trip."""
    for round_trip_s in (0.0, ROUND_TRIP_S):
        yield _small_files(count, round_trip_s)


def _small_files(count: int, round_trip_s: float) -> dict[str, Any]:
    """`count` files of 4 KiB; rounds alternate, new contents each time, the best of each counts."""
    with tempfile.TemporaryDirectory(prefix="bridgehead-bench-") as name:
        root = Path(name)
        probe = root / "probe"
        probe.write_bytes(b"x")
        (root / "bridge").mkdir()
        ours, theirs = _Cost(), _Cost()
        with contextlib.ExitStack() as stack:
            nginx = stack.enter_context(_nginx(root / "nginx", probe))
            bridge = stack.enter_context(BridgeProcess(root / "bridge"))
            ports = [nginx.port, bridge.port]
            if round_trip_s:
                ports = [stack.enter_context(line(port, round_trip_s)) for port in ports]
            home = _paired_home(root / "vm", bridge, ports[1])
            client = BridgeClient(home)
            artefacts = Artefacts(client, UploadPace())
            for number in range(_ROUNDS):
                listed = _make_small(home.run(bridge.run_id), number, count)
                folder = home.run(bridge.run_id)
                curl = functools.partial(_curl, root, folder, listed, ports[0])
                send = functools.partial(_send, artefacts, folder, bridge.run_id, listed)
                theirs = theirs.least(_cost(nginx.pid, curl))
                _beat(client)
                ours = ours.least(_cost(bridge.pid, send))
                _compare_all(folder, root / "bridge" / names.IN_FOLDER / bridge.run_id, listed)
        ratio = theirs.wall / ours.wall
        where = f"through a round trip of {round_trip_s * 1000:g} ms" if round_trip_s else "on loopback"
        return {
            "bench": f"{count} files of 4 KiB up {where}, against nginx with dav by curl -Z",
            "bridge_files_s": round(count / ours.wall),
            "nginx_files_s": round(count / theirs.wall),
            "ratio": round(ratio, 2),
            "bridge_cpu_s": round(ours.server_cpu, 2),
            "nginx_cpu_s": round(theirs.server_cpu, 2),
            "uploader_cpu_s": round(ours.client_cpu, 2),
            "curl_cpu_s": round(theirs.client_cpu, 2),
            "goal": f"ratio >= {SMALL_GOAL}",
            "holds": ratio >= SMALL_GOAL,
        }


def fast_log(seconds: float = 20.0) -> Iterator[dict[str, Any]]:
    """A log at 5 MB/s for so long: does every byte arrive, how far behind is it, and what does that cost."""
    with tempfile.TemporaryDirectory(prefix="bridgehead-bench-") as name:
        root = Path(name)
        (root / "bridge").mkdir()
        with BridgeProcess(root / "bridge") as bridge:
            home = _paired_home(root / "vm", bridge)
            log = _running(home, bridge.run_id) / names.LOG
            arrived = root / "bridge" / names.IN_FOLDER / bridge.run_id / names.LOG
            with _status_daemon(home) as daemon_pid:
                pids = (daemon_pid, bridge.pid)
                before = [_cpu_s(pid) for pid in pids]
                lags = _Lags(arrived)
                written, took_s = _write(log, seconds, lags)
                until(lambda: arrived.exists() and arrived.stat().st_size >= written, 60, "the end of the log")
                used = [_cpu_s(pid) - start for pid, start in zip(pids, before, strict=True)]
                lags.stop()
            same = arrived.read_bytes() == log.read_bytes()
        bare = _bare_copy(log, root / "copy")
        p95 = quantile(lags.seen, 0.95)
        yield {
            "bench": f"a log at {LOG_MB_S:g} MB/s for {seconds:g} s",
            "mb_s": round(written / took_s / 1e6, 2),
            "every_byte": same,
            "lag_median_s": round(quantile(lags.seen, 0.5), 3),
            "lag_p95_s": round(p95, 3),
            "daemon_cpu_percent": round(100 * used[0] / took_s, 1),
            "bridge_cpu_percent": round(100 * used[1] / took_s, 1),
            "bare_copy_cpu_percent": round(100 * bare / took_s, 1),
            "goal": f"every byte, p95 < {LAG_GOAL_S} s behind",
            "holds": same and p95 < LAG_GOAL_S,
        }


# --- small files ---------------------------------------------------------------------------------------------


def _make_small(run_dir: Path, number: int, count: int) -> list[str]:
    listed = [f"{names.ARTIFACTS}/r{number}/{index // 1000}/f{index:05d}.bin" for index in range(count)]
    for relative in listed:
        path = run_dir / relative
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.urandom(_SMALL_BYTES))
    os.sync()
    return listed


def _curl(root: Path, folder: Path, listed: list[str], port: int) -> None:
    config = root / "curl.conf"
    blocks = [
        f'upload-file = "{folder / path}"\nurl = "http://127.0.0.1:{port}/{path}"\noutput = /dev/null'
        for path in listed
    ]
    config.write_text("\nnext\n".join(blocks))
    argv = ["curl", "-s", "-S", "-f", "-Z", "--parallel-max", str(_PARALLEL), "-K", str(config)]
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=600)


def _send(artefacts: Artefacts, folder: Path, run_id: str, listed: list[str]) -> None:
    if refused := artefacts.send(folder, run_id, 1, listed):
        raise RuntimeError(f"refused: {refused}")


def _compare_all(folder: Path, arrived: Path, listed: list[str]) -> None:
    for relative in listed:
        if (folder / relative).read_bytes() != (arrived / relative).read_bytes():
            raise RuntimeError(f"{relative} arrived as something else")


def _cost(server_pid: int, transfer: Callable[[], None]) -> _Cost:
    server, client, start = _cpu_s(server_pid), _own_cpu_s(), time.perf_counter()
    transfer()
    return _Cost(time.perf_counter() - start, _cpu_s(server_pid) - server, _own_cpu_s() - client)


def _own_cpu_s() -> float:
    """Of this process and the children that it has waited for."""
    mine, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return mine.ru_utime + mine.ru_stime + children.ru_utime + children.ru_stime


# --- the log -------------------------------------------------------------------------------------------------------


@dataclass
class _Lags:
    """How old the newest byte on the laptop is, looked at every 10 ms; `note` is told what was written when."""

    arrived: Path
    seen: list[float] = field(default_factory=list)
    _written: list[tuple[float, int]] = field(default_factory=list)
    _over: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def note(self, size: int) -> None:
        self._written.append((time.monotonic(), size))

    def stop(self) -> None:
        self._over.set()
        self._thread.join(10)

    def _look(self) -> None:
        at = 0
        while not self._over.wait(0.01):
            with contextlib.suppress(FileNotFoundError):
                size = self.arrived.stat().st_size
                now = time.monotonic()
                while at < len(self._written) and self._written[at][1] <= size:
                    self.seen.append(now - self._written[at][0])
                    at += 1


def _write(log: Path, seconds: float, lags: _Lags) -> tuple[int, float]:
    """Lines of 100 bytes, a burst every 10 ms; (bytes, seconds)."""
    line = b"x" * 99 + b"\n"
    start, written = time.monotonic(), log.stat().st_size if log.exists() else 0
    with log.open("ab", buffering=0) as handle:
        while (passed := time.monotonic() - start) < seconds:
            lines = int(passed * LOG_MB_S * 1e6 - written) // len(line)
            if lines > 0:
                written += handle.write(line * lines)
                lags.note(written)
            time.sleep(0.01)
    return written, time.monotonic() - start


@contextlib.contextmanager
def _status_daemon(home: VmHome) -> Iterator[int]:
    env = {**os.environ, names.ENV_HOME: str(home.root)}
    argv = [sys.executable, "-m", "vm_daemons.status_daemon"]
    process = subprocess.Popen(argv, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until(lambda: (home.state / f"{names.STATUS_DAEMON}.beat").exists(), 30, "the status daemon")
        yield process.pid
    finally:
        process.terminate()
        process.wait(20)


def _bare_copy(source: Path, target: Path) -> float:
    """CPU seconds of copying the same bytes in the pieces that the daemon sends."""
    start = time.process_time()
    with source.open("rb", buffering=0) as reader, target.open("wb", buffering=0) as writer:
        while piece := reader.read(2**19):
            writer.write(piece)
    return time.process_time() - start


# --- both ----------------------------------------------------------------------------------------------------------


def _paired_home(root: Path, bridge: BridgeProcess, port: int = 0) -> VmHome:
    home = VmHome(root)
    home.create()
    home.save_pairing(Pairing(f"http://127.0.0.1:{port or bridge.port}", bridge.key_id, bridge.key, "0" * 64))
    home.update_record(vm_id=VM_ID, project="bench")
    home.run(bridge.run_id).mkdir(parents=True)
    return home


def _running(home: VmHome, run_id: str) -> Path:
    run_dir = home.run(run_id)
    record = RunRecord(run_id, "big", "bench", "c" * 32, 1, VM_ID, time.time(), StageSpec("big", "true"))
    files.write_json(run_dir / names.RUN_RECORD, record.to_json())
    return run_dir


def _beat(client: BridgeClient) -> None:
    """Else the bridge soon takes the VM for lost."""
    client.heartbeat(Heartbeat(VM_ID, "boot", time.time()))
