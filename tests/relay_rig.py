"""A relay: a real sshd on loopback with a config and keys of its own. No file of the user's is touched."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

from bridge.tunnels.spec import TunnelSpec
from bridgehead import processes
from support import wait_until

_SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
MISSING = "" if _SSHD and shutil.which("ssh") and shutil.which("ssh-keygen") else "needs ssh and sshd (openssh-server)"
_CONFIG = """\
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host
AuthorizedKeysFile {folder}/authorized
PidFile none
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
StrictModes no
ClientAliveInterval 1
ClientAliveCountMax 3
"""


class Relay:
    """`start` it; `sessions` are the processes of those who are connected."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.lines: list[str] = []  # more of its config
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True)
        for name in ("host", "user", "stranger"):
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
        """What the client has to be told."""
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

    def spec(self, *more: str, key: str = "user", host: str = "127.0.0.1", **values: object) -> TunnelSpec:
        return TunnelSpec(kind="ssh", host=host, options=self.options(*more, key=key), **values)  # type: ignore[arg-type]

    def start(self) -> None:
        assert _SSHD is not None
        config = self.folder / "config"
        config.write_text(_CONFIG.format(port=self.port, folder=self.folder) + "".join(f"{x}\n" for x in self.lines))
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)  # sshd as root insists on it
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [_SSHD, "-D", "-e", "-f", str(config)], stdin=subprocess.DEVNULL, stderr=log
            )
        wait_until(self._listens, 20, what="sshd")

    def sessions(self) -> list[int]:
        return [] if self._process is None else sorted(processes.descendants(self._process.pid))

    def signal_sessions(self, sign: signal.Signals) -> None:
        for pid in self.sessions():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, sign)

    def stop(self) -> None:
        """The whole machine is gone: those connected too."""
        if self._process is None:
            return
        self.signal_sessions(signal.SIGKILL)
        self._process.kill()
        self._process.wait()
        self._process = None

    def _listens(self) -> bool:
        assert self._process is not None and self._process.poll() is None, (self.folder / "log").read_text()
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0


@contextlib.contextmanager
def relay(folder: Path) -> Iterator[Relay]:
    made = Relay(folder)
    try:
        yield made
    finally:
        made.stop()


def make_key(path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
