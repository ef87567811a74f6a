"""The user's own host between VM and laptop: a real sshd on loopback, with a config and keys of its own.

`ssh -N -R` of the product leads through it. Its ports are seen by the campaign in the words of sshd's own log, so that
the breakable proxy can stand before each of them.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

from bridgehead import processes

_SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
_CONFIG = """\
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host
AuthorizedKeysFile {folder}/authorized
PidFile none
LogLevel DEBUG1
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
StrictModes no
ClientAliveInterval 1
ClientAliveCountMax 3
"""
_ALLOCATED = re.compile(rb"debug1: Allocated listen port (\d+)")
_START_S = 60.0


def missing() -> str:
    """Why there can be no relay on this machine; empty when there can."""
    programs = ("ssh", "ssh-keygen")
    return "" if _SSHD and all(map(shutil.which, programs)) else "needs ssh and sshd (openssh-server)"


class Relay:
    """`start` and `stop` as often as wanted; `on_port` hears, in a thread, of each port that it chose for a forward."""

    def __init__(self, folder: Path, on_port: Callable[[int], None] = lambda _port: None) -> None:
        self.folder = folder
        self.port = free_port()
        self.lines: list[str] = []  # more of its config
        self._on_port = on_port
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True)
        for name in ("host", "user"):
            make_key(folder / name)
        self.allow("user")
        self.know("host")

    def allow(self, name: str, options: str = "") -> None:
        """Only that key may come in."""
        (self.folder / "authorized").write_text(f"{options} {(self.folder / f'{name}.pub').read_text()}".strip() + "\n")

    def know(self, name: str) -> None:
        """The client expects that host key."""
        kind, key, *_ = (self.folder / f"{name}.pub").read_text().split()
        (self.folder / "known").write_text(f"[127.0.0.1]:{self.port} {kind} {key}\n")

    def options(self, *more: str, key: str = "user") -> tuple[str, ...]:
        """What the client has to be told; no file of the user's is used."""
        return (
            *more,
            f"Port={self.port}",
            "IdentitiesOnly=yes",
            "IdentityAgent=none",
            f"IdentityFile={self.folder / key}",
            f"UserKnownHostsFile={self.folder / 'known'}",
            "GlobalKnownHostsFile=/dev/null",
            "StrictHostKeyChecking=yes",
        )

    def start(self) -> None:
        assert _SSHD is not None
        config = self.folder / "config"
        config.write_text(_CONFIG.format(port=self.port, folder=self.folder) + "".join(f"{x}\n" for x in self.lines))
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)  # sshd as root insists on it
        argv = [_SSHD, "-D", "-e", "-f", str(config)]
        self._process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True)
        threading.Thread(target=self._read, args=(self._process.stderr,), name="relay", daemon=True).start()
        deadline = time.monotonic() + _START_S
        while not self._listens():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise OSError(f"sshd does not start: {(self.folder / 'log').read_text(errors='replace')[-300:]}")
            time.sleep(0.02)

    def sessions(self) -> list[int]:
        """The processes of those who are connected."""
        return [] if self._process is None else sorted(processes.descendants(self._process.pid))

    def signal_sessions(self, sign: signal.Signals) -> int:
        """How many there were."""
        found = self.sessions()
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, sign)
        return len(found)

    def stop(self) -> None:
        """The whole machine is gone: those connected too."""
        process, self._process = self._process, None
        if process is None:
            return
        os.kill(process.pid, signal.SIGSTOP)  # so that nobody comes in meanwhile
        for pid in processes.descendants(process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.kill()
        process.wait()

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def _read(self, stream: IO[bytes]) -> None:
        with stream, (self.folder / "log").open("ab", buffering=0) as log:
            for line in stream:
                log.write(line)
                if found := _ALLOCATED.search(line):
                    self._on_port(int(found[1]))


def make_key(path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
