"""The bridge against nginx with dav, rclone's webdav, copyparty and http.server: same files, same disk, same run.

Each of them does what it can of: one big file each way, many small ones each way, a big one of which 1 % has changed
each way, and a log that grows by 5 MB/s. The servers run one at a time, in rounds; the best of each counts. A big file
comes down by curl from all of them. For the rest the bridge is used by its own VM client, which checks every hash and
has each file on disk at the end, and the peers by curl, kept alive and with 50 transfers at once: it checks nothing
and flushes nothing. Of a file that has changed a peer has to send the whole, and a log goes to it as a file for each
second. CPU and peak memory are those of the server's processes; the client's are not told.

On loopback bytes cost nothing and round trips neither, so what sends less is not quicker there. The small and the
changed files go through a line as a tunnel is too, once.
"""

from __future__ import annotations

import contextlib
import functools
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from bench.line import line
from bench.peer_servers import PEERS, cpu_s, forget_peak, peak_mib
from bench.peer_sides import CASE_S, LOG_MB_S, LOG_S, SMALL_BYTES, Files, Side, ours, theirs
from bench.project import quantile

BRIDGE = "bridge"
NGINX = "nginx+dav"
BIG_GOAL, CPU_GOAL, OTHER_GOAL = 1.0, 1.0, 5.0
ROUNDS = 2
_LINE_MB_S, _LINE_DELAY_S = 12.5, 0.04  # 100 Mbit/s and 80 ms there and back: a good tunnel
_LINE = ", through a line"
_TICKS = 0.05  # CPU seconds; less than a few ticks of the kernel's clock makes no ratio


@dataclass(frozen=True)
class Size:
    mib: int
    files: int

    def mib_of(self, case: str) -> float:
        """What one turn of a case carries."""
        if case.startswith("small"):
            return self.files * SMALL_BYTES / 2**20
        return LOG_MB_S * LOG_S * 1e6 / 2**20 if case == "log" else self.mib


OFTEN = {"GET": 5}  # so often in one turn: the clock of CPU time ticks every 10 ms
CASES = ("GET", "PUT", "small files down", "small files up", "1 % changed, down", "1 % changed, up", "log")
LINE_CASES = ("small files down", "small files up", "1 % changed, down", "1 % changed, up")


_Start = Callable[[Path], contextlib.AbstractContextManager[Side]]


@dataclass
class Best:
    wall_s: float = 9e9
    cpu_s: float = 9e9
    peak_mib: float = 0.0
    delays_s: tuple[float, ...] = ()
    error: str = ""


def against_peers(mib: int, files: int) -> Iterator[dict[str, Any]]:
    """A row for each case and server, then one for each case that compares."""
    size = Size(mib, files)
    table: dict[str, dict[str, Best]] = {case: {} for case in (*CASES, *(case + _LINE for case in LINE_CASES))}
    with tempfile.TemporaryDirectory(prefix="bridgehead-peers-") as name:
        files_of = Files(Path(name) / "files", mib, files)
        for round_number in range(ROUNDS):
            for server, start in _sides(files_of).items():
                root = Path(name) / "server"
                with _whatever_is_wrong(table, server), start(root) as side:
                    _measure(table, server, side, CASES, "", round_number)
                    if round_number == ROUNDS - 1:
                        with line(side.port, _LINE_MB_S, _LINE_DELAY_S) as side.port:
                            _measure(table, server, side, LINE_CASES, _LINE, round_number + 1)
                shutil.rmtree(root, ignore_errors=True)
    for case, found in table.items():
        yield from (_row(case, server, best, size) for server, best in found.items())
    yield from (_verdict(case, found) for case, found in table.items())


def _measure(
    table: dict[str, dict[str, Best]], server: str, side: Side, cases: tuple[str, ...], suffix: str, number: int
) -> None:
    for case in cases:
        best = table[case + suffix].get(server, Best())
        if not best.error and (cost := _cost(side, case, number)) is not None:
            table[case + suffix][server] = _better(best, cost)
            print(f"{server}, {case}{suffix}: {cost.error or f'{cost.wall_s:.2f} s'}", file=sys.stderr, flush=True)


def _cost(side: Side, case: str, number: int) -> Best | None:
    """None when the server can't do it."""
    if not side.prepare(case, number):
        return None
    often = OFTEN.get(case, 1)
    forget_peak(side.pid)
    cpu, start = cpu_s(side.pid), time.perf_counter()
    try:
        with _at_most(CASE_S):
            for _ in range(often):
                delays = side.run(case)
    except (RuntimeError, OSError, subprocess.SubprocessError) as error:
        return Best(error=f"{type(error).__name__}: {error}"[:200])
    wall, used = time.perf_counter() - start, cpu_s(side.pid) - cpu
    return Best(wall / often, used / often, peak_mib(side.pid), tuple(delays))


def _better(one: Best, other: Best) -> Best:
    if other.error:
        return other
    quick = min(one, other, key=lambda best: best.wall_s)
    return Best(quick.wall_s, min(one.cpu_s, other.cpu_s), max(one.peak_mib, other.peak_mib), quick.delays_s)


def _row(case: str, server: str, best: Best, size: Size) -> dict[str, Any]:
    row: dict[str, Any] = {"bench": f"peers: {case}", "case": case, "server": server}
    if best.error:
        return {**row, "error": best.error}
    mib = size.mib_of(case)
    row |= {"s": round(best.wall_s, 3), "mib_s": round(mib / best.wall_s, 1)}
    if case.startswith("small"):
        row["files_s"] = round(size.files / best.wall_s)
    if best.delays_s:
        row["delay_p95_s"] = round(quantile(list(best.delays_s), 0.95), 3)
    return {**row, "cpu_s_per_gib": round(best.cpu_s / mib * 1024, 2), "peak_mib": round(best.peak_mib)}


def _verdict(case: str, found: dict[str, Best]) -> dict[str, Any]:
    """Against nginx for the big ones, against the best peer for the rest."""
    row: dict[str, Any] = {"bench": f"peers: {case}, the bridge against them"}
    ours = found.get(BRIDGE, Best(error="not run"))
    peers = {server: best for server, best in found.items() if server != BRIDGE and not best.error}
    if ours.error or not peers:
        return {**row, "error": ours.error or "no peer ran", "holds": False}
    ratios = {server: round(best.wall_s / ours.wall_s, 2) for server, best in peers.items()}
    if case == "log":
        return {
            **row,
            "cpu_ratio": {name: round(ours.cpu_s / max(best.cpu_s, _TICKS), 2) for name, best in peers.items()},
        }
    if case not in ("GET", "PUT"):
        holds = min(ratios.values()) >= OTHER_GOAL
        return {**row, "times_as_fast_as": ratios, "goal": f">= {OTHER_GOAL:g} x every peer", "holds": holds}
    told = NGINX in peers and peers[NGINX].cpu_s > _TICKS
    cpu = round(ours.cpu_s / peers[NGINX].cpu_s, 2) if told else None
    holds = cpu is not None and ratios[NGINX] >= BIG_GOAL and cpu <= CPU_GOAL
    goal = f"throughput >= {BIG_GOAL:g} and CPU <= {CPU_GOAL:g} of nginx"
    return {**row, "throughput_ratio": ratios, "cpu_ratio_to_nginx": cpu, "goal": goal, "holds": holds}


def markdown(rows: list[dict[str, Any]]) -> str:
    """The table of the README, from the rows."""
    told = [row for row in rows if "server" in row]
    lines = ["| case | server | MiB/s | files/s | delay p95 | CPU s/GiB | peak MiB |", "|---|---|---|---|---|---|---|"]
    for case in dict.fromkeys(row["case"] for row in told):
        mine = [row for row in told if row["case"] == case]
        for row in sorted(mine, key=lambda row: row["server"] != BRIDGE):
            cells = [row.get(name, "") for name in ("mib_s", "files_s", "delay_p95_s", "cpu_s_per_gib", "peak_mib")]
            shown = [row["error"], "", "", "", ""] if "error" in row else cells
            lines.append(f"| {case} | {row['server']} | " + " | ".join(map(str, shown)) + " |")
        absent = [peer.name for peer in PEERS if peer.name not in {row["server"] for row in mine}]
        if mine and absent:
            lines.append(f"| {case} | {', '.join(absent)} | can't | | | | |")
    return "\n".join(lines)


def _sides(files: Files) -> dict[str, _Start]:
    """The bridge first; peers that are not here are said on stderr and left out."""
    found: dict[str, Callable[[Path], contextlib.AbstractContextManager[Side]]] = {
        BRIDGE: lambda root: ours(root, files)
    }
    for peer in PEERS:
        missing = peer.install()
        if missing:
            print(f"peers: {missing}", file=sys.stderr)
        else:
            found[peer.name] = functools.partial(theirs, peer=peer, files=files)
    return found


@contextlib.contextmanager
def _whatever_is_wrong(table: dict[str, dict[str, Best]], server: str) -> Iterator[None]:
    """A server that does not start or dies costs its own rows alone."""
    try:
        yield
    except (RuntimeError, OSError) as error:
        for found in table.values():
            found.setdefault(server, Best(error=f"{type(error).__name__}: {error}"[:200]))


@contextlib.contextmanager
def _at_most(seconds: int) -> Iterator[None]:
    """RuntimeError in this thread, the main one, once that has passed."""

    def ended(number: int, frame: FrameType | None) -> None:
        raise RuntimeError(f"not done after {seconds} s")

    former = signal.signal(signal.SIGALRM, ended)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, former)
