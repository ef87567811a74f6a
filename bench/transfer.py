"""One big file each way: the bridge against nginx with its dav module, same disk, same client, same run.

The client is Python's http.client in this process for both. The bridge's uploads go in signed parts of 32 MiB, each
hashed by client and bridge; nginx takes one plain PUT and hashes nothing. CPU is that of the server process alone.
So that one sees how much of the difference is the hash, a bare SHA-256 of the same bytes is timed in the same rounds,
and an upload is also compared with a fictional nginx that takes so much longer: once, since both ends have a core.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import os
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any

from bench.serve_bridge import VM_ID, BridgeProcess
from bridgehead import files, names, signing
from bridgehead.records import Heartbeat

THROUGHPUT_GOAL = 0.7
CPU_GOAL = 1.2
_ROUNDS = 3
_CHUNK_BYTES = 1 << 20
_HASHED_BYTES = 1 << 18  # still in the core's own cache when it is hashed
_NGINX_CONF = """\
daemon off; master_process off; pid {root}/nginx.pid; error_log {root}/error.log;
events {{ worker_connections 64; }}
http {{
  access_log off; sendfile on; client_max_body_size 0; client_body_temp_path {root}/body; proxy_temp_path {root}/proxy;
  fastcgi_temp_path {root}/f; uwsgi_temp_path {root}/u; scgi_temp_path {root}/s;
  server {{ listen 127.0.0.1:{port};
    location / {{ root {root}/data; dav_methods PUT DELETE; create_full_put_path on; }} }}
}}
"""


@dataclass(frozen=True)
class Server:
    name: str
    port: int
    pid: int
    get: Callable[[], int]
    put: Callable[[], None]
    clear: Callable[[], None]  # away with what a put has left


@dataclass(frozen=True)
class Cost:
    """Seconds of one transfer, or of one hash."""

    wall: float = 9e9
    cpu: float = 9e9

    def least(self, other: Cost) -> Cost:
        return Cost(min(self.wall, other.wall), min(self.cpu, other.cpu))

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.wall + other.wall, self.cpu + other.cpu)


def against_nginx(mib: int) -> Iterator[dict[str, Any]]:
    """Rounds alternate between the servers; the best of each counts."""
    with tempfile.TemporaryDirectory(prefix="bridgehead-bench-") as name:
        root = Path(name)
        source = root / "big.bin"
        _make_file(source, mib)
        with _nginx(root / "nginx", source) as nginx, _bridge(root / "bridge", source) as bridge:
            for verb in ("get", "put"):
                yield _compare(verb, mib, nginx, bridge, source)


def _compare(verb: str, mib: int, nginx: Server, bridge: Server, source: Path) -> dict[str, Any]:
    ours, theirs, sha256 = Cost(), Cost(), Cost()
    for _ in range(_ROUNDS):
        theirs = theirs.least(_cost(nginx, verb, source))
        ours = ours.least(_cost(bridge, verb, source))
        if verb == "put":
            sha256 = sha256.least(_bare_sha256(source))
    throughput, cpu = _ratios(ours, theirs)
    gib = mib / 1024
    row = {
        "bench": f"{mib} MiB {verb.upper()} against nginx with dav",
        "bridge_mib_s": round(mib / ours.wall),
        "nginx_mib_s": round(mib / theirs.wall),
        "throughput_ratio": round(throughput, 2),
        "bridge_cpu_s_per_gib": round(ours.cpu / gib, 2),
        "nginx_cpu_s_per_gib": round(theirs.cpu / gib, 2),
        "cpu_ratio": round(cpu, 2),
        "goal": f"throughput >= {THROUGHPUT_GOAL}, cpu <= {CPU_GOAL}",
        "holds": throughput >= THROUGHPUT_GOAL and cpu <= CPU_GOAL,
    }
    return row if verb == "get" else {**row, **_against_hashing_nginx(ours, theirs, sha256, gib)}


def _against_hashing_nginx(ours: Cost, theirs: Cost, sha256: Cost, gib: float) -> dict[str, float]:
    throughput, cpu = _ratios(ours, theirs + sha256)
    return {
        "bare_sha256_cpu_s_per_gib": round(sha256.cpu / gib, 2),
        "throughput_ratio_to_nginx_plus_sha256_at_each_end": round(throughput, 2),
        "cpu_ratio_to_nginx_plus_sha256_at_each_end": round(cpu, 2),
    }


def _ratios(ours: Cost, theirs: Cost) -> tuple[float, float]:
    """Throughput and CPU."""
    return theirs.wall / ours.wall, ours.cpu / max(theirs.cpu, 1e-9)


def _cost(server: Server, verb: str, source: Path) -> Cost:
    if verb == "put":
        _touch_memory(source)
    repeats = 5 if verb == "get" else 1  # the clock of CPU time ticks every 10 ms
    cpu, start = _cpu_s(server.pid), time.perf_counter()
    for _ in range(repeats):
        getattr(server, verb)()
    cost = Cost((time.perf_counter() - start) / repeats, (_cpu_s(server.pid) - cpu) / repeats)
    server.clear()
    return cost


def _touch_memory(source: Path) -> None:
    """Leave as much free memory as the file needs that has been used a moment ago: on a virtual machine, memory that
    the host has yet to provide costs more than a whole transfer, and it would be chance which server gets it."""
    temp = source.with_name("touched")
    with temp.open("wb", buffering=0) as handle:
        for _ in range(source.stat().st_size // _HASHED_BYTES):
            handle.write(bytes(_HASHED_BYTES))
    temp.unlink()


def _bare_sha256(source: Path) -> Cost:
    """Of the file's bytes, without reading them."""
    digest, piece = hashlib.sha256(), memoryview(bytearray(_HASHED_BYTES))
    wall = cpu = 0.0
    with source.open("rb", buffering=0) as handle:
        while count := handle.readinto(piece):
            start, used = time.perf_counter(), time.thread_time()
            digest.update(piece[:count])
            wall += time.perf_counter() - start
            cpu += time.thread_time() - used
    return Cost(wall, cpu)


@contextlib.contextmanager
def _nginx(root: Path, source: Path) -> Iterator[Server]:
    (root / "data").mkdir(parents=True)
    shutil.copyfile(source, root / "data" / "big.bin")
    port = _free_port()
    (root / "nginx.conf").write_text(_NGINX_CONF.format(root=root, port=port))
    program = shutil.which("nginx") or "/usr/sbin/nginx"
    process = subprocess.Popen([program, "-p", str(root), "-c", "nginx.conf"], stderr=subprocess.DEVNULL)
    try:
        _wait_port(port)
        yield Server(
            "nginx",
            port,
            process.pid,
            lambda: _drain(port, "/big.bin", {}),
            lambda: _plain_put(port, "/up.bin", source),
            lambda: (root / "data" / "up.bin").unlink(missing_ok=True),
        )
    finally:
        process.terminate()
        process.wait(10)


@contextlib.contextmanager
def _bridge(root: Path, source: Path) -> Iterator[Server]:
    (root / "payload").mkdir(parents=True)
    shutil.copyfile(source, root / "payload" / "big.bin")
    with BridgeProcess(root) as bridge:
        path = f"{names.SERVE_PREFIX}payload/payload/big.bin"

        def get() -> int:
            headers = signing.sign_request(bridge.key, bridge.key_id, "GET", path, "", {})
            return _drain(bridge.port, path, headers)

        get()  # the bridge hashes a payload file once and then remembers
        number = iter(range(1000))
        arrived = root / names.IN_FOLDER / bridge.run_id / names.ARTIFACTS
        yield Server(
            "bridge",
            bridge.port,
            bridge.pid,
            get,
            lambda: _parts_put(bridge, source, next(number)),
            lambda: shutil.rmtree(arrived, ignore_errors=True),
        )


def _drain(port: int, path: str, headers: dict[str, str]) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", path, headers=headers)
    response = connection.getresponse()
    if response.status != 200:
        raise RuntimeError(f"GET {path}: {response.status}")
    buffer, total = bytearray(_CHUNK_BYTES), 0
    while count := response.readinto(buffer):
        total += count
    connection.close()
    return total


def _plain_put(port: int, path: str, source: Path) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.blocksize = _CHUNK_BYTES
    with source.open("rb") as handle:
        connection.request("PUT", path, body=handle, headers={"Content-Length": str(source.stat().st_size)})
        if connection.getresponse().status not in (201, 204):
            raise RuntimeError("PUT failed")
    connection.close()


def _parts_put(bridge: BridgeProcess, source: Path, number: int) -> None:
    """As the VM's own uploader does it: open, then parts, each signed with its digest."""
    path, query = f"{names.IN_PREFIX}{bridge.run_id}/{names.ARTIFACTS}/up{number}.bin", f"vm={VM_ID}&attempt=1"
    size = source.stat().st_size
    connection = http.client.HTTPConnection("127.0.0.1", bridge.port, timeout=60)
    beat = files.canonical_json(Heartbeat(VM_ID, "boot", time.time()).to_json())  # else it is soon taken for lost
    _signed(connection, bridge, "POST", f"{names.VMS_PREFIX}{VM_ID}/heartbeat", "", {}, beat)
    common = {names.HEADER_GENERATION: f"bench-{number}"}
    _signed(
        connection, bridge, "POST", path, query, {**common, names.HEADER_LENGTH: str(size), names.HEADER_COMPLETE: "?0"}
    )
    offset = 0
    for part, digest in _hashed_parts(source):
        last = offset + len(part) == size
        headers = {
            **common,
            names.HEADER_OFFSET: str(offset),
            names.HEADER_COMPLETE: "?1" if last else "?0",
            "Content-Type": "application/partial-upload",
        }
        _signed(connection, bridge, "PATCH", path, query, headers, part, digest)
        offset += len(part)
    connection.close()


def _hashed_parts(source: Path) -> Iterator[tuple[memoryview, bytes]]:
    """Each part with its SHA-256, good until the next is asked for; that is read and hashed meanwhile."""

    def read(handle: FileIO, buffer: memoryview) -> tuple[memoryview, bytes]:
        digest, filled = hashlib.sha256(), 0
        while count := handle.readinto(buffer[filled : filled + _HASHED_BYTES]):
            digest.update(buffer[filled : filled + count])
            filled += count
        return buffer[:filled], digest.digest()

    buffers = [memoryview(bytearray(names.PART_MAX_BYTES)) for _ in range(2)]
    with source.open("rb", buffering=0) as handle, ThreadPoolExecutor(1) as ahead:
        part, digest = read(handle, buffers[0])
        while part:
            buffers.reverse()
            following = ahead.submit(read, handle, buffers[0])
            yield part, digest
            part, digest = following.result()


def _signed(
    connection: http.client.HTTPConnection,
    bridge: BridgeProcess,
    method: str,
    path: str,
    query: str,
    headers: dict[str, str],
    body: bytes | memoryview = b"",
    digest: bytes | None = None,
) -> None:
    digest = digest or hashlib.sha256(body).digest()
    signature = signing.sign_request(bridge.key, bridge.key_id, method, path, query, headers, body_sha256=digest)
    connection.request(method, f"{path}?{query}" if query else path, body=body, headers={**headers, **signature})
    response = connection.getresponse()
    text = response.read()
    if response.status >= 300:
        raise RuntimeError(f"{method} {path}: {response.status} {text[:200]!r}")


def _make_file(path: Path, mib: int) -> None:
    block = os.urandom(_CHUNK_BYTES)
    with path.open("wb") as handle:
        for number in range(mib):
            handle.write(number.to_bytes(8, "big") + block[8:])
        handle.flush()
        os.fsync(handle.fileno())


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_port(port: int) -> None:
    deadline = time.monotonic() + 10
    pause = threading.Event()
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        pause.wait(0.05)
    raise RuntimeError(f"nothing listens on {port}")
