"""Load: 50 VMs that poll, beat, push a log each, send artefacts as slowly as a tunnel lets them, and fetch the payload.

200 requests are in flight (a quick tunnel's cap): a long poll, a log part and two slow uploads for each VM. The same
load goes to a bare aiohttp server in the same run, which reads the bodies and keeps nothing: what is late there is the
machine's doing, since server, VMs and whatever else runs share its cores. Told for each: errors, bytes that were lost
(hash of each log), p95 from a line in queue.txt to the VM's having it, how late the loop wakes a sleeper, and how the
server's memory grows after the warm-up.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.load_server import BLOCKED_S, PAYLOAD, vm_name
from bench.project import quantile
from bridgehead import names
from bridgehead.queue_lines import encode_shell

ANSWER_GOAL_S = 0.1  # p95
SLOPE_GOAL_MIB_PER_MINUTE = 1.0
_CLIENTS = 2  # processes: with more, the VMs would take the cores from the server
_LINES_PER_S = 4.0
_PAYLOAD_BYTES = 1 << 20
_GRACE_S = 60.0


@dataclass(frozen=True)
class Load:
    """How much of it; `slow` uploads of each VM are under way at once."""

    minutes: float = 10.0
    vms: int = 50
    log_mib_s: float = 1.0
    slow: int = 2

    @property
    def seconds(self) -> float:
        return self.minutes * 60


@dataclass
class Seen:
    """What came of it."""

    errors: list[str] = field(default_factory=list)
    answers_s: list[float] = field(default_factory=list)
    logs: dict[str, dict[str, Any]] = field(default_factory=dict)
    lines: int = 0
    requests: int = 0
    in_flight_max: int = 0
    lost_logs: int = 0
    cpu_s: float = 0.0
    rss_mib: list[tuple[float, float]] = field(default_factory=list)  # minute, MiB
    fsyncs_s: list[float] = field(default_factory=list)  # of a file of ours on the same disk meanwhile
    loop: dict[str, Any] = field(default_factory=dict)


def under_load(load: Load) -> Iterator[dict[str, Any]]:
    """The bare server first, then the bridge, then a row of both against the goals."""
    bare = yield from _told("bare", load)
    seen = yield from _told("bridge", load)
    p95, bare_p95 = quantile(seen.answers_s or [9e9], 0.95), quantile(bare.answers_s or [9e9], 0.95)
    slope = slope_mib_per_minute(seen.rss_mib)
    whole = not seen.errors and not seen.lost_logs and len(seen.answers_s) == seen.lines
    yield {
        "bench": f"{load.vms} VMs for {load.minutes:g} minutes: the bridge against a bare server under the same load",
        "no_error_no_lost_byte": whole,
        "answer_p95_s": round(p95, 4),
        "bare_answer_p95_s": round(bare_p95, 4),
        "disk_fsync_p95_s": round(quantile(seen.fsyncs_s or [0.0], 0.95), 4),
        "loop_works_over_50_ms": seen.loop["works_over_50_ms"],
        "loop_lag_max_ms": seen.loop["lag_max_ms"],
        "bare_loop_lag_max_ms": bare.loop["lag_max_ms"],
        "memory_slope_mib_per_minute": round(slope, 2),
        "goal": f"no error, no lost byte; p95 < {ANSWER_GOAL_S} s; the loop never at work for over {BLOCKED_S} s; "
        f"memory slope < {SLOPE_GOAL_MIB_PER_MINUTE} MiB/min",
        "holds": whole
        and p95 < ANSWER_GOAL_S
        and not seen.loop["works_over_50_ms"]
        and slope < SLOPE_GOAL_MIB_PER_MINUTE,
    }


def _told(kind: str, load: Load) -> Generator[dict[str, Any], None, Seen]:
    seen = run(kind, load)
    yield {
        "bench": f"load: {kind}",
        "errors": len(seen.errors),
        "first_errors": seen.errors[:3],
        "lost_logs": seen.lost_logs,
        "log_mib": round(sum(log["size"] for log in seen.logs.values()) / 2**20),
        "lines": seen.lines,
        "answered": len(seen.answers_s),
        "answer_median_s": round(quantile(seen.answers_s or [9e9], 0.5), 4),
        "answer_p95_s": round(quantile(seen.answers_s or [9e9], 0.95), 4),
        "requests_per_s": round(seen.requests / load.seconds, 1),
        "in_flight_max": seen.in_flight_max,
        "server_cores": round(seen.cpu_s / load.seconds, 2),
        "rss_mib": [round(value) for _, value in seen.rss_mib[:: max(1, len(seen.rss_mib) // 10)]],
        "disk_fsync_median_s": round(quantile(seen.fsyncs_s or [0.0], 0.5), 4),
        "disk_fsync_p95_s": round(quantile(seen.fsyncs_s or [0.0], 0.95), 4),
        "rss_slope_mib_per_minute": round(slope_mib_per_minute(seen.rss_mib), 2),
        **{f"loop_{name}": value for name, value in seen.loop.items()},
    }
    return seen


def run(kind: str, load: Load) -> Seen:
    """One server (`bridge` or `bare`) under one load, on the disk of the temporary folder."""
    with tempfile.TemporaryDirectory(prefix="bridgehead-load-") as name:
        root = Path(name)
        needed = int(load.vms * load.log_mib_s * load.seconds * 2**20) + (8 << 20) * load.vms * load.slow
        if kind == "bridge" and shutil.disk_usage(root).free < needed + (5 << 30):
            raise RuntimeError(f"{root.parent} has no room for {needed >> 30} GiB of logs: less time, or TMPDIR")
        (root / PAYLOAD).parent.mkdir()
        (root / PAYLOAD).write_bytes(os.urandom(_PAYLOAD_BYTES))
        (root / names.QUEUE_FILE).touch()
        with _started([sys.executable, "-m", "bench.load_server", kind, name, str(load.vms)]) as server:
            assert server.stdout is not None
            said = json.loads(server.stdout.readline())
            seen = _loaded(server.pid, said, load, root / names.QUEUE_FILE)
            server.send_signal(signal.SIGTERM)
            seen.loop = json.loads(server.stdout.readline())
            server.wait(20)
        if kind == "bridge":
            seen.lost_logs = sum(
                not _is_whole(root / names.IN_FOLDER, run_id, log) for run_id, log in seen.logs.items()
            )
        return seen


def _loaded(pid: int, said: dict[str, Any], load: Load, queue: Path) -> Seen:
    seen = Seen()
    ended = threading.Event()
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(_client(said, load, share)) for share in range(_CLIENTS)]
        time.sleep(min(5.0, load.seconds / 10))  # everyone has opened everything
        os.kill(pid, signal.SIGUSR1)
        cpu = _cpu_s(pid)
        watchers = [
            threading.Thread(target=_watch_memory, args=(pid, seen.rss_mib, ended), daemon=True),
            threading.Thread(target=_watch_disk, args=(queue.with_name("probe"), seen.fsyncs_s, ended), daemon=True),
        ]
        for watcher in watchers:
            watcher.start()
        seen.lines = _write_lines(queue, load)
        for client in clients:
            out, _ = client.communicate(timeout=load.seconds + _GRACE_S)
            if client.returncode or not out:
                raise RuntimeError(f"the VMs' process ended with {client.returncode}")
            told = json.loads(out.splitlines()[-1])
            seen.errors += told["errors"]
            seen.answers_s += told["answers_s"]
            seen.logs |= told["logs"]
            seen.requests += told["requests"]
            seen.in_flight_max += told["in_flight_max"]
        seen.cpu_s = _cpu_s(pid) - cpu
        ended.set()
        for watcher in watchers:
            watcher.join(10)
    return seen


def _write_lines(queue: Path, load: Load) -> int:
    """Lines for VMs at random, each with the moment at which it was written; the last one early enough to arrive."""
    chance, lines = random.Random(1), 0
    deadline = time.monotonic() + load.seconds * 0.85 - 5.0
    while time.monotonic() < deadline or not lines:
        time.sleep(chance.uniform(0.5, 1.5) / _LINES_PER_S)
        vm = vm_name(chance.randrange(load.vms))
        with queue.open("a") as handle:
            handle.write(f"@{vm} {encode_shell(f'echo {time.time():.6f}')}\n")
        lines += 1
    return lines


@contextlib.contextmanager
def _client(said: dict[str, Any], load: Load, share: int) -> Iterator[subprocess.Popen[bytes]]:
    mine = range(share, load.vms, _CLIENTS)
    given = {
        **{key: said[key] for key in ("port", "key_id", "key")},
        "runs": [said["runs"][number] for number in mine],
        "vms": [vm_name(number) for number in mine],
        "seconds": load.seconds,
        "log_mib_s": load.log_mib_s,
        "slow": load.slow,
    }
    with _started([sys.executable, "-m", "bench.load_vms"]) as process:
        assert process.stdin is not None
        process.stdin.write(json.dumps(given).encode() + b"\n")
        process.stdin.flush()
        yield process


@contextlib.contextmanager
def _started(argv: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=Path(__file__).parents[1])
    try:
        yield process
    finally:
        process.kill()
        process.wait(20)
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


def _is_whole(arrived: Path, run_id: str, log: Mapping[str, Any]) -> bool:
    """Whether the log is what its VM was told that is there. What was under way at the end may lie behind it."""
    path, digest, left = arrived / run_id / names.LOG, hashlib.sha256(), int(log["size"])
    if not path.exists():
        return False
    with path.open("rb") as handle:
        while left and (piece := handle.read(min(left, 1 << 20))):
            digest.update(piece)
            left -= len(piece)
    return left == 0 and digest.hexdigest() == str(log["sha256"])


def _watch_memory(pid: int, rss_mib: list[tuple[float, float]], ended: threading.Event) -> None:
    start = time.monotonic()
    while not ended.wait(1.0):
        with contextlib.suppress(OSError):
            rss_mib.append(((time.monotonic() - start) / 60, _rss_mib(pid)))


def _watch_disk(probe: Path, fsyncs_s: list[float], ended: threading.Event) -> None:
    """What a small durable write costs beside the load: a line must be durable twice before its VM may have it."""
    with probe.open("ab", buffering=0) as handle:
        while not ended.wait(0.5):
            handle.write(bytes(4096))
            start = time.perf_counter()
            os.fsync(handle.fileno())
            fsyncs_s.append(time.perf_counter() - start)


def slope_mib_per_minute(rss_mib: list[tuple[float, float]]) -> float:
    """Least squares over the second half; 0 when there is too little of it."""
    half = rss_mib[len(rss_mib) // 2 :]
    if len(half) < 5:
        return 0.0
    mean_x, mean_y = (sum(values) / len(half) for values in zip(*half, strict=True))
    spread = sum((x - mean_x) ** 2 for x, _ in half)
    return sum((x - mean_x) * (y - mean_y) for x, y in half) / spread if spread else 0.0


def _rss_mib(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
