"""Three machines on one: a laptop, a relay and a VM, each a network namespace of its own, with lines that can fail.

laptop 10.77.1.1 ── veth ── 10.77.1.2 relay 10.77.2.1 ── tun ── wire ── tun ── 10.77.2.2 VM

The relay is a process that forwards TCP, as a tunnel does: whoever holds it can cut it, and both ends see a connection
that ends. The line between laptop and relay is a pair of veth devices: taken down, packets are lost and nobody is told.
The line between relay and VM is a `Wire`: each packet passes through here and may be dropped, doubled, held back or
overtaken. (The kernel's own netem does the same, where a kernel has it; a wire needs tun alone.)
"""

from __future__ import annotations

import contextlib
import fcntl
import heapq
import os
import random
import selectors
import shutil
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
LAPTOP, RELAY, VM = "laptop", "relay", "vm"
LAPTOP_HOST, RELAY_TO_LAPTOP, RELAY_HOST, VM_HOST = "10.77.1.1", "10.77.1.2", "10.77.2.1", "10.77.2.2"
PORT = 8766
_PREFIX = "bhnet"
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
_MTU = 1400


def why_not() -> str:
    """Why there are no namespaces here; "" when there are."""
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        return "network namespaces need Linux and root"
    if shutil.which("ip") is None or not os.path.exists("/dev/net/tun"):
        return "needs ip (apt-get install iproute2) and /dev/net/tun"
    probe = f"{_PREFIX}-{os.getpid()}-probe"
    made = subprocess.run(["ip", "netns", "add", probe], capture_output=True, text=True, check=False)
    subprocess.run(["ip", "netns", "del", probe], capture_output=True, check=False)
    return "" if made.returncode == 0 else f"no namespace can be made: {made.stderr.strip()}"


def ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, timeout=20, check=False)
    if done.returncode:
        raise RuntimeError(f"ip {' '.join(words)}: {done.stderr.strip()}")


@dataclass
class Weather:
    """What happens to the packets of a wire, each way. Fractions are 0 to 1."""

    delay_s: float = 0.0
    jitter_s: float = 0.0  # so much longer for each packet by chance: more than the gap between them reorders them
    lost: float = 0.0
    doubled: float = 0.0
    bytes_per_s: float = 0.0  # 0: any
    cut: bool = False


class Wire:
    """A thread that carries packets between two tun devices. Set `weather` at any moment."""

    def __init__(self, seed: int) -> None:
        self.weather = Weather()
        self.dropped = self.doubled = self.carried = self.overtaken = 0
        self._chance = random.Random(seed)
        self._fds = (self._tun(f"bh{os.getpid() % 100000}a"), self._tun(f"bh{os.getpid() % 100000}b"))
        self._due: list[tuple[float, int, int, bytes]] = []
        self._free_at = [0.0, 0.0]
        self._count = 0
        self._latest = [0.0, 0.0]
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._carry, name="wire", daemon=True)

    @staticmethod
    def _tun(name: str) -> int:
        fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(fd, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TUN | _IFF_NO_PI))
        return fd

    def connect(self, one: str, one_host: str, other: str, other_host: str) -> None:
        """Put each end into its namespace (the devices' names end in a and b) and begin."""
        for letter, namespace, host in (("a", one, one_host), ("b", other, other_host)):
            device = f"bh{os.getpid() % 100000}{letter}"
            ip("link", "set", device, "netns", namespace)
            ip("-n", namespace, "addr", "add", f"{host}/30", "dev", device)
            ip("-n", namespace, "link", "set", device, "mtu", str(_MTU), "up")
        self._thread.start()

    def end(self) -> None:
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join(100)
        for fd in self._fds:
            os.close(fd)

    def _carry(self) -> None:
        with selectors.DefaultSelector() as ready:
            for way, fd in enumerate(self._fds):
                ready.register(fd, selectors.EVENT_READ, way)
            while not self._ended.is_set():
                wait_s = 0.05 if not self._due else max(0.0, min(0.05, self._due[0][0] - time.monotonic()))
                for key, _ in ready.select(wait_s):
                    with contextlib.suppress(BlockingIOError):
                        while True:
                            self._take(key.data, os.read(key.fd, 65536))
                while self._due and self._due[0][0] <= time.monotonic():
                    _, number, way, packet = heapq.heappop(self._due)
                    self.overtaken += number < self._latest[way]
                    self._latest[way] = max(number, self._latest[way])
                    with contextlib.suppress(OSError):  # the other end is full or gone: so it is on a line
                        os.write(self._fds[1 - way], packet)

    def _take(self, way: int, packet: bytes) -> None:
        weather, chance, now = self.weather, self._chance, time.monotonic()
        if weather.cut or chance.random() < weather.lost:
            self.dropped += 1
            return
        start = max(now, self._free_at[way])
        if weather.bytes_per_s:
            if start - now > 1.0:  # the queue of a slow line is not endless
                self.dropped += 1
                return
            start += len(packet) / weather.bytes_per_s
            self._free_at[way] = start
        copies = 1 + (chance.random() < weather.doubled)
        self.doubled += copies - 1
        for _ in range(copies):
            self._count += 1
            self.carried += 1
            due = start + weather.delay_s + chance.random() * weather.jitter_s
            heapq.heappush(self._due, (due, self._count, way, packet))


class Net:
    """The three namespaces and their lines. `start` runs a program in one of them; all of it is gone at the end."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.running: list[subprocess.Popen[bytes]] = []

    @staticmethod
    def namespace(who: str) -> str:
        return f"{_PREFIX}-{os.getpid()}-{who}"

    def cable(self, *, plugged: bool) -> None:
        """Between laptop and relay."""
        ip("-n", self.namespace(RELAY), "link", "set", "cable1", "up" if plugged else "down")

    def start(self, who: str, argv: list[str], log: Path, env: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
        with log.open("ab") as output:
            process = subprocess.Popen(
                ["ip", "netns", "exec", self.namespace(who), *argv], cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output,
                stderr=subprocess.STDOUT, env={**os.environ, "PYTHONPATH": str(ROOT), **(env or {})},
                start_new_session=True,
            )  # fmt: skip
        self.running.append(process)
        return process

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """SIGKILL, and wait until it is gone."""
        process.send_signal(signal.SIGKILL)  # ip has become the program: it is the same process
        process.wait(100)


@contextlib.contextmanager
def net(seed: int = 0) -> Iterator[Net]:
    """Up, and by name down again, whatever happened; also what an earlier process that was killed has left."""
    _sweep()
    names = {who: Net.namespace(who) for who in (LAPTOP, RELAY, VM)}
    wire = Wire(seed)
    made = Net(wire)
    try:
        for name in names.values():
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        ip(
            "-n",
            names[LAPTOP],
            "link",
            "add",
            "cable0",
            "type",
            "veth",
            "peer",
            "name",
            "cable1",
            "netns",
            names[RELAY],
        )
        ip("-n", names[LAPTOP], "addr", "add", f"{LAPTOP_HOST}/30", "dev", "cable0")
        ip("-n", names[RELAY], "addr", "add", f"{RELAY_TO_LAPTOP}/30", "dev", "cable1")
        ip("-n", names[LAPTOP], "link", "set", "cable0", "up")
        ip("-n", names[RELAY], "link", "set", "cable1", "up")
        wire.connect(names[RELAY], RELAY_HOST, names[VM], VM_HOST)
        yield made
    finally:
        wire.end()
        for name in names.values():
            _remove(name)
        for process in made.running:
            process.wait(100)


def _sweep() -> None:
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False).stdout
    for line in listed.splitlines():
        name = line.split()[0]
        prefix, _, rest = name.partition("-")
        pid = rest.partition("-")[0]
        if prefix == _PREFIX and pid.isdigit() and not os.path.exists(f"/proc/{pid}"):
            _remove(name)


def _remove(namespace: str) -> None:
    """End what runs in it, stages of the VM too, then the namespace itself."""
    for _ in range(50):
        found = subprocess.run(["ip", "netns", "pids", namespace], capture_output=True, text=True, check=False)
        pids = found.stdout.split()
        if not pids:
            break
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        time.sleep(0.05)
    subprocess.run(["ip", "netns", "del", namespace], capture_output=True, check=False)
