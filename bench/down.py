"""The payload down to a VM against nginx: many small files, and a big one of which 1 % has changed.

Ours is the whole sync as the cell and `sync:` do it: manifest, fetch, every hash checked, everything in its place.
nginx is asked by curl, whose fastest way here counts (one keep-alive connection, two, 16 or 50 transfers at once). It
checks nothing and writes where it is told; of a changed file it has to send the whole. Both without fsync.

On loopback neither case can be won by sending less: to make 10,000 files takes curl hardly longer than to make them,
and a GiB takes it less time than one SHA-256 of the new version. Through a line as a tunnel is, bytes and round trips
count.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.line import line
from bench.serve_bridge import BridgeProcess
from bridgehead import names
from bridgehead.pairing import Pairing
from vm_daemons import payload
from vm_daemons.client import BridgeClient
from vm_daemons.home import VmHome

GOAL = 5.0
LINE_MB_S, LINE_DELAY_S = 12.5, 0.04  # 100 Mbit/s and 80 ms there and back: a good tunnel
_ROUNDS = 3
_PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin"])
_FILE_BYTES = 4096
_PER_FOLDER = 100
_SETTLE_S = 2.2  # only then the laptop remembers what a file hashed to
_SEED = 20261129
_WAYS = ((1, 0), (2, 0), (1, 16), (1, 50))  # curl: processes, and transfers at once in each (0: one after the other)
_CONF = """\
daemon off; master_process off; pid {root}/nginx.pid; error_log {root}/error.log;
events {{ worker_connections 256; }}
http {{
  access_log off; sendfile on; tcp_nopush on; keepalive_requests 1000000; open_file_cache max=20000;
  client_body_temp_path {root}/b; proxy_temp_path {root}/p; fastcgi_temp_path {root}/f; uwsgi_temp_path {root}/u;
  scgi_temp_path {root}/s;
  server {{ listen 127.0.0.1:{port}; location / {{ root {data}; }} }}
}}
"""


@dataclass(frozen=True)
class _Sides:
    """Both servers on the same folder `data`, by the ports that a client is to use."""

    root: Path
    data: Path
    nginx_port: int
    bridge: BridgeProcess
    bridge_port: int

    def home(self) -> VmHome:
        """A VM that has nothing yet."""
        shutil.rmtree(self.root / "vm", ignore_errors=True)
        home = VmHome(self.root / "vm")
        home.create()
        pairing = Pairing(f"http://127.0.0.1:{self.bridge_port}", self.bridge.key_id, self.bridge.key, "0" * 64)
        home.save_pairing(pairing)
        return home


def can_run() -> bool:
    """Whether nginx and curl are here; says what is not."""
    lacking = [name for name in ("nginx", "curl") if shutil.which(name, path=_PATH) is None]
    if lacking:
        print(f"down: {' and '.join(lacking)} not here; on Debian: apt-get install nginx-light curl", file=sys.stderr)
    return not lacking


def against_nginx(count: int, mib: int) -> Iterator[dict[str, Any]]:
    """One row for each case, on loopback and through a line; the best of several rounds in turn counts."""
    with _both() as sides:
        _make_small(sides.data, count)
        BridgeClient(sides.home()).manifest_document()  # hashed once, and remembered
        yield _row(f"{count} files of 4 KiB down", *_small(sides, count, _ROUNDS))
        with _through_a_line(sides) as slow:
            yield _row(f"{count} files of 4 KiB down, {_line()}", *_small(slow, count, 1, _WAYS[-1:]))
    with _both() as sides:
        _make_big(sides.data / "big.bin", mib)
        yield from _big(sides, mib)


def _row(what: str, ours_s: float, theirs_s: float, **more: Any) -> dict[str, Any]:
    ratio = theirs_s / ours_s
    row = {"bench": what, "bridge_s": round(ours_s, 3), "nginx_s": round(theirs_s, 3), "ratio": round(ratio, 2), **more}
    return {**row, "goal": f">= {GOAL:g} x nginx", "holds": ratio >= GOAL}


# --- many small files -----------------------------------------------------------------------------------


def _small(sides: _Sides, count: int, rounds: int, ways: tuple[tuple[int, int], ...] = _WAYS) -> tuple[float, float]:
    ours_s = theirs_s = 9e9
    for _ in range(rounds):
        for way in ways:
            theirs_s = min(theirs_s, _seconds(lambda: _curl_small(sides, count, *way)))  # noqa: B023 - called at once
        home = sides.home()
        ours_s = min(ours_s, _seconds(lambda: _sync(home, count)))  # noqa: B023 - called at once
    return ours_s, theirs_s


def _curl_small(sides: _Sides, count: int, processes: int, at_once: int) -> None:
    target = _fresh(sides.root / "out")
    for folder in range(-(-count // _PER_FOLDER)):
        (target / f"d{folder}").mkdir()
    running = []
    for number in range(processes):
        config = sides.root / f"curl{number}"
        with config.open("w") as handle:
            for index in range(number, count, processes):
                path = _small_path(index)
                handle.write(f'url="http://127.0.0.1:{sides.nginx_port}/{path}"\noutput="{target}/{path}"\n')
        how = ["-Z", "--parallel-max", str(at_once)] if at_once else []
        running.append(subprocess.Popen(["curl", "-sS", *how, "-K", str(config)], stderr=subprocess.DEVNULL))
    if sum(process.wait() for process in running):
        raise RuntimeError("curl failed")


def _make_small(data: Path, count: int) -> None:
    for index in range(count):
        path = data / _small_path(index)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(os.urandom(_FILE_BYTES))
    time.sleep(_SETTLE_S)


def _small_path(index: int) -> str:
    return f"d{index // _PER_FOLDER}/f{index}.bin"


# --- a big file of which 1 % changes ------------------------------------------------------------------------


def _big(sides: _Sides, mib: int) -> Iterator[dict[str, Any]]:
    BridgeClient(sides.home()).manifest_document()
    home = sides.home()
    first_s = _seconds(lambda: _sync(home, 1))
    whole_s = min(_seconds(lambda: _curl_big(sides)) for _ in range(_ROUNDS))
    row = _row(f"{mib} MiB down, checked and in place", first_s, whole_s)
    yield {key: value for key, value in row.items() if key not in ("goal", "holds")}
    yield _changed_row(f"{mib} MiB with 1 % changed", sides, home, mib, _ROUNDS)
    with _through_a_line(sides) as slow:
        home.save_pairing(
            Pairing(f"http://127.0.0.1:{slow.bridge_port}", sides.bridge.key_id, sides.bridge.key, "0" * 64)
        )
        yield _changed_row(f"{mib} MiB with 1 % changed, {_line()}", slow, home, mib, 1)


def _changed_row(what: str, sides: _Sides, home: VmHome, mib: int, rounds: int) -> dict[str, Any]:
    ours_s = theirs_s = hash_s = 9e9
    fetched_bytes = 0
    for number in range(rounds):
        _change(sides.data / "big.bin", mib, number)
        hash_s = min(hash_s, _seconds(lambda: BridgeClient(home).manifest_document()))
        told: dict[str, Any] = {}
        ours_s = min(ours_s, _seconds(lambda: told.update(_sync(home, 1))))  # noqa: B023 - called at once
        fetched_bytes = told["fetched_bytes"]
        theirs_s = min(theirs_s, _seconds(lambda: _curl_big(sides)))
    more = {"bridge_mib_sent": round(fetched_bytes / 2**20, 1), "laptop_hash_s": round(hash_s, 3)}
    return _row(what, ours_s, theirs_s, **more, ratio_with_laptop_hash=round(theirs_s / (ours_s + hash_s), 2))


def _change(path: Path, mib: int, number: int) -> None:
    """One per cent of it, in places of 1 MiB that lie anywhere."""
    places = random.Random(_SEED + number)
    with path.open("r+b") as handle:
        for _ in range(max(1, mib // 100)):
            handle.seek(places.randrange((mib - 1) * 2**20))
            handle.write(os.urandom(2**20))
    time.sleep(_SETTLE_S)


def _make_big(path: Path, mib: int) -> None:
    with path.open("wb") as handle:
        for _ in range(mib):
            handle.write(os.urandom(2**20))
    time.sleep(_SETTLE_S)


def _curl_big(sides: _Sides) -> None:
    target = _fresh(sides.root / "out")
    url = f"http://127.0.0.1:{sides.nginx_port}/big.bin"
    subprocess.run(["curl", "-sS", "-o", str(target / "big.bin"), url], check=True)


# --- both sides -----------------------------------------------------------------------------------------


def _sync(home: VmHome, count: int) -> dict[str, Any]:
    told = payload.sync(BridgeClient(home), home)
    if told["files"] != count:
        raise RuntimeError(f"{told['files']} files instead of {count}")
    return told


def _seconds(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def _fresh(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return folder


def _line() -> str:
    return f"through {LINE_MB_S:g} MB/s and {LINE_DELAY_S * 2000:g} ms there and back"


@contextlib.contextmanager
def _through_a_line(sides: _Sides) -> Iterator[_Sides]:
    with (
        line(sides.nginx_port, LINE_MB_S, LINE_DELAY_S) as nginx_port,
        line(sides.bridge_port, LINE_MB_S, LINE_DELAY_S) as bridge_port,
    ):
        yield _Sides(sides.root, sides.data, nginx_port, sides.bridge, bridge_port)


@contextlib.contextmanager
def _both() -> Iterator[_Sides]:
    with tempfile.TemporaryDirectory(prefix="bridgehead-bench-") as name:
        root = Path(name)
        data = root / "project" / names.VM_PAYLOAD
        data.mkdir(parents=True)
        with BridgeProcess(root / "project") as bridge, _nginx(root / "nginx", data) as nginx_port:
            yield _Sides(root, data, nginx_port, bridge, bridge.port)


@contextlib.contextmanager
def _nginx(root: Path, data: Path) -> Iterator[int]:
    root.mkdir()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    (root / "nginx.conf").write_text(_CONF.format(root=root, data=data, port=port))
    program = shutil.which("nginx", path=_PATH) or "nginx"
    process = subprocess.Popen([program, "-p", str(root), "-c", "nginx.conf"], stderr=subprocess.DEVNULL)
    try:
        for _ in range(200):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            time.sleep(0.05)
        yield port
    finally:
        process.terminate()
        process.wait(10)
