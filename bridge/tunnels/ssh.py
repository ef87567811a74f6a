"""A reverse forward through a host of your own: `ssh -N -R`, with your own ~/.ssh/config, keys and agent.

No limit on sizes or time; the relay sees what a tunnel's operator sees. Where the relay listens decides who gets in:

- `bind` on loopback (the default): a web server on the relay, which has a certificate, passes requests on; `url` is
  its address. With a fixed `remote_port`, since it has to know where to pass them.
- `bind = "0.0.0.0"`: the relay's sshd needs `GatewayPorts clientspecified`. Plain http; requests are signed.

The port comes from ssh's own words: at LogLevel DEBUG1 it says that the forward was accepted, and the user's LogLevel
can't hide it. What else it says at that level goes unread. Source of the words: OpenSSH 9.2, clientloop.c and ssh.c.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
from collections.abc import Sequence

from bridge.tunnels import public_url, ssh_words
from bridge.tunnels.base import OnNewUrl
from bridge.tunnels.process import DEFAULT_TIMES, Supervisor, Times, environment
from bridge.tunnels.spec import TunnelSpec
from bridgehead.errors import BridgeDownError, UsageError

PORT_WORD = "{port}"
_HOST = re.compile(r"(?:[^\s@-][^\s@]*@)?[A-Za-z0-9\[][A-Za-z0-9._:%\[\]-]*\Z")
_BIND = re.compile(r"[A-Za-z0-9:\[][A-Za-z0-9.:\[\]-]*\Z|\*\Z")
_OPTION = re.compile(r"[A-Za-z][A-Za-z0-9]*(?:\s*=\s*|\s+)\S[^\r\n\0]*\Z")
# The first value that ssh is told of an option is the one that counts: these can't be changed by `options`,
_FIXED = (
    "BatchMode=yes",  # never asks
    "ExitOnForwardFailure=yes",
    "LogLevel=DEBUG1",
    "ControlMaster=no",  # a shared connection would keep the forward when this process ends
    "ControlPath=none",
    "PermitLocalCommand=no",
)
# and these can.
_PRESET = ("ServerAliveInterval=5", "ServerAliveCountMax=2", "ConnectTimeout=10")
_ALLOCATED = re.compile(r"Allocated port (\d+) for remote forward to 127\.0\.0\.1:(\d+)\Z")
_ACCEPTED = re.compile(r"debug1: remote forward success for: listen \S*?(\d+), connect 127\.0\.0\.1:(\d+)\Z")
_IDLE_TALK = re.compile(
    r"debug\d: (?!Remote: (?:Server has disabled|port forwarding refused))|Transferred: |Bytes per "
)
_DISCARD_PORT = 9  # nobody listens there
_RESOLVE_TIMEOUT_S = 10.0
_REACH_TIMEOUT_S = 5.0


class SshReverse:
    """Raises UsageError for a [tunnel] that can't be meant."""

    name = "ssh"

    def __init__(self, spec: TunnelSpec, *, on_new_url: OnNewUrl | None = None, times: Times = DEFAULT_TIMES) -> None:
        check(spec)
        self._spec = spec
        self._relay = ""  # the relay's own name, which may differ from what the user calls it
        self._local_port = 0
        self._supervisor = Supervisor(self.name, self._begin, on_new_url=on_new_url, times=times)

    def start(self, local_port: int) -> None:
        """Begin to connect. Raises BridgeDownError: no ssh here, or no address that would lead to the relay's port."""
        self._local_port = local_port
        program()
        self._relay = resolve(self._spec)
        if not self._spec.url and public_url.is_loopback(self._spec.bind) and not public_url.is_loopback(self._relay):
            raise BridgeDownError(
                f"{self._spec.host} would listen on its own loopback, which no VM reaches",
                hint="let a web server on the relay pass requests on and set url to its address, "
                'or set bind = "0.0.0.0", with GatewayPorts clientspecified in the relay\'s sshd_config',
            )
        self._supervisor.start()

    def wait_url(self, timeout_s: float) -> str:
        return self._supervisor.wait_url(timeout_s)

    def healthy(self) -> bool:
        """Whether ssh runs and the relay has accepted the forward. Within 15 s of a silent cut it has ended."""
        return self._supervisor.up

    @property
    def pid(self) -> int:
        return self._supervisor.pid

    def trouble(self) -> str:
        """Why it is down, in one line; "" while it is up."""
        return self._supervisor.trouble

    def restart(self) -> None:
        """Begin anew soon, when it says that all is well and nothing gets through. Returns at once."""
        self._supervisor.restart()

    def stop(self) -> None:
        self._supervisor.stop()

    def log_tail(self) -> list[str]:
        return self._supervisor.log_tail()

    def _begin(self) -> _Connection:
        return _Connection(self._spec, self._local_port, self._relay)


class _Connection:
    """One life of ssh."""

    def __init__(self, spec: TunnelSpec, local_port: int, relay: str) -> None:
        self._spec = spec
        self._local_port = local_port
        self._relay = relay
        self._remote_port = 0  # 0: not accepted yet
        self._url = ""

    def arguments(self) -> list[str]:
        return forward_arguments(self._spec, self._local_port)

    def read(self, line: str) -> bool:
        if found := _ALLOCATED.search(line) or _ACCEPTED.match(line):
            port, to = int(found[1]), int(found[2])
            # Port 0 was accepted: which one it became stands in the next line. The user's own forwards go elsewhere.
            if port and to == self._local_port and not (self._spec.remote_port and port != self._spec.remote_port):
                self._remote_port = port
        return not _IDLE_TALK.match(line)

    def address(self) -> str:
        if not self._url and self._remote_port:
            self._url = self._find_url(self._remote_port)
        return self._url

    def why_ended(self, code: int, lines: Sequence[str]) -> BridgeDownError:
        return ssh_words.why_ended(self._spec.host, code, lines)

    def why_silent(self, waited_s: float, lines: Sequence[str]) -> BridgeDownError:
        return ssh_words.why_silent(self._spec.host, waited_s, lines)

    def _find_url(self, port: int) -> str:
        if self._spec.url:
            return public_url.check(self._spec.url.replace(PORT_WORD, str(port)), "url")
        host = self._relay
        if not public_url.is_loopback(self._spec.bind):
            _refuse_hidden_port(host, port)
        return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def check(spec: TunnelSpec) -> None:
    """Raises UsageError for values that ssh would take for something else."""
    if not spec.host:
        raise UsageError(
            "the ssh tunnel needs to know its relay", hint='[tunnel] host = "user@relay", or a name from ~/.ssh/config'
        )
    if not _HOST.match(spec.host):
        raise UsageError(f"not a host for ssh: {spec.host!r}", hint="user@relay, or a name from ~/.ssh/config")
    if not _BIND.match(spec.bind):
        raise UsageError(f"not an address to listen at: {spec.bind!r}", hint='bind = "127.0.0.1" or "0.0.0.0"')
    if not 0 <= spec.remote_port < 65536:
        raise UsageError(f"not a port: {spec.remote_port}", hint="remote_port is 1 to 65535, or 0: the relay chooses")
    for option in spec.options:
        if not _OPTION.match(option):
            raise UsageError(f"not an option of ssh: {option!r}", hint='write it as "Name=value"; see `man ssh_config`')
    if spec.url:
        public_url.check(spec.url.replace(PORT_WORD, "1"), "url")


def program() -> str:
    """Where ssh is. Raises BridgeDownError."""
    found = shutil.which("ssh")
    if found is None:
        raise BridgeDownError("ssh is not on your PATH", hint="install OpenSSH's client, or use another tunnel")
    return found


def forward_arguments(spec: TunnelSpec, local_port: int) -> list[str]:
    """The command line of a reverse forward to 127.0.0.1:local_port. Raises BridgeDownError when ssh is missing."""
    bind = f"[{spec.bind}]" if ":" in spec.bind and not spec.bind.startswith("[") else spec.bind
    forward = f"{bind}:{spec.remote_port}:127.0.0.1:{local_port}"
    return [program(), "-N", "-T", "-a", "-x", *_options(spec), "-R", forward, spec.host]


def try_forward(spec: TunnelSpec, deadline_s: float) -> str:
    """Connect, have the relay listen, and end it: the address that it would be. Raises UsageError, BridgeDownError."""
    tunnel = SshReverse(spec)
    try:
        tunnel.start(_DISCARD_PORT)
        return tunnel.wait_url(deadline_s)
    finally:
        tunnel.stop()


def resolve(spec: TunnelSpec) -> str:
    """The host name that ssh would connect to, its config applied. Connects to nothing. Raises BridgeDownError."""
    argv = [program(), "-G", *_options(spec), spec.host]
    try:
        told = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_RESOLVE_TIMEOUT_S,
            env=environment(os.environ),
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BridgeDownError(
            f"`ssh -G` can't be run: {error}", hint=ssh_words.BY_HAND.format(host=spec.host)
        ) from None
    if told.returncode != 0:
        raise ssh_words.why_ended(spec.host, told.returncode, told.stderr.splitlines())
    names = [line.partition(" ")[2].strip() for line in told.stdout.splitlines() if line.startswith("hostname ")]
    return names[0] if names else spec.host.rpartition("@")[2]


def _options(spec: TunnelSpec) -> list[str]:
    return [word for option in (*_FIXED, *spec.options, *_PRESET) for word in ("-o", option)]


def _refuse_hidden_port(host: str, port: int) -> None:
    """A relay without GatewayPorts says yes to any bind address and listens on its loopback. Raises BridgeDownError.

    Only a plain refusal proves that: whether others get through a firewall is for the probe of the public address.
    """
    try:
        socket.create_connection((host, port), timeout=_REACH_TIMEOUT_S).close()
    except ConnectionRefusedError:
        raise BridgeDownError(
            f"{host} accepted the forward, but listens at port {port} on its own loopback alone",
            hint="GatewayPorts clientspecified in the relay's sshd_config, or url and a web server there",
        ) from None
    except OSError:
        return
