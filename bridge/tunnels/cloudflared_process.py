"""One life of the program cloudflared, and the metrics server that it is asked through."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from bridge.tunnels.ingress import Route, route_of
from bridgehead.errors import BridgeDownError

_LINE_MAX = 500
_READ_MAX = 1 << 14  # far more than a token is long: it is found whole before a line is cut
_HOST = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])\Z")
_ASK_TIMEOUT_S = 2.0
_HIDDEN = "(the token)"


@dataclass(frozen=True)
class Launch:
    """How to start it. `token` is known only so that it can be kept out of what is written down."""

    local_port: int
    protocol: str = "http2"
    hostname: str = ""  # of a named tunnel
    token_file: str = ""
    token: str = field(default="", repr=False)
    token_in_environment: bool = False  # for a cloudflared of before April 2025, which has no --token-file

    @property
    def target(self) -> str:
        return f"http://127.0.0.1:{self.local_port}"

    def arguments(self, config: Path, metrics_port: int) -> list[str]:
        """An empty `config` keeps a configuration in the user's home from taking over, silently."""
        shared = ["tunnel", "--config", str(config), "--no-autoupdate", "--metrics", f"127.0.0.1:{metrics_port}"]
        protocol = ["--protocol", self.protocol]
        if not self.hostname:
            return [*shared, *protocol, "--url", self.target]
        # `run` has an option --protocol of its own, whose default would hide the one before it.
        return [*shared, "run", *protocol, *([] if self.token_in_environment else ["--token-file", self.token_file])]

    def environment(self) -> dict[str, str]:
        """Without what would change the tunnel from outside."""
        kept = {key: value for key, value in os.environ.items() if not key.startswith("TUNNEL_")}
        return {**kept, "TUNNEL_TOKEN": self.token} if self.token_in_environment else kept


class Process:
    """Started by its making. Raises BridgeDownError when the program is not there or can't be run."""

    def __init__(self, launch: Launch, lines: deque[str]) -> None:
        program = shutil.which("cloudflared")
        if program is None:
            raise BridgeDownError(
                "cloudflared is not on your PATH",
                hint="install it (developers.cloudflare.com, “Downloads”), or start with --tunnel none",
            )
        self._launch = launch
        self._metrics_port = _free_port()
        self._folder = tempfile.TemporaryDirectory(prefix="bridgehead-tunnel-")
        config = Path(self._folder.name) / "empty.yml"
        config.touch()
        try:
            self._popen = subprocess.Popen(
                [program, *launch.arguments(config, self._metrics_port)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,  # a wrong option is told on stdout, all else on stderr
                stderr=subprocess.STDOUT,
                env=launch.environment(),
                start_new_session=True,  # Ctrl-C is ours to handle: it must not die before the bridge
            )
        except OSError as error:
            self._folder.cleanup()
            raise BridgeDownError(
                f"cloudflared can't be started: {error.strerror}", hint=f"look at {program}"
            ) from None
        assert self._popen.stdout is not None
        pump_arguments = (self._popen.stdout, lines.append, launch.token)
        self._pump = threading.Thread(target=_pump, args=pump_arguments, daemon=True)
        self._pump.start()

    @property
    def pid(self) -> int:
        return self._popen.pid

    def exit_code(self) -> int | None:
        """None while it lives. Once it is dead, its last words have been read."""
        code = self._popen.poll()
        if code is not None:
            self._pump.join(timeout=2)
        return code

    def host(self) -> str:
        """The name that the tunnel has, empty while it has none. It may not be reachable yet."""
        if self._launch.hostname:
            return self._launch.hostname
        answer = self._ask("/quicktunnel")
        host = str(answer.get("hostname", "")) if answer is not None else ""
        return host if _HOST.match(host) else ""

    def is_ready(self) -> bool:
        """Whether it has a connection to the edge now."""
        return self._popen.poll() is None and self._ask("/ready") is not None

    def route(self, host: str) -> Route | None:
        """Where it sends what comes for `host`; None when it does not say."""
        answer = self._ask("/config")
        return None if answer is None else route_of(answer, host, self._launch.local_port)

    def stop(self, wait_s: float) -> None:
        """SIGTERM lets requests in flight end, a second one does not wait for them, SIGKILL is the last word."""
        for sign in (signal.SIGTERM, signal.SIGTERM, getattr(signal, "SIGKILL", signal.SIGTERM)):
            if self._popen.poll() is not None:
                break
            self._popen.send_signal(sign)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._popen.wait(wait_s)
        self._pump.join(timeout=2)
        self._folder.cleanup()

    def _ask(self, path: str) -> dict[str, Any] | None:
        """The JSON object that the metrics server answers with status 200, else None."""
        connection = http.client.HTTPConnection("127.0.0.1", self._metrics_port, timeout=_ASK_TIMEOUT_S)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            answer = json.loads(response.read(1 << 20))
            return answer if response.status == 200 and isinstance(answer, dict) else None
        except (OSError, http.client.HTTPException, ValueError):
            return None
        finally:
            connection.close()


def _pump(stream: IO[bytes], keep: Callable[[str], None], secret: str) -> None:
    """Read until the program has closed its output, however much it writes."""
    with stream:
        while line := stream.readline(_READ_MAX):
            text = line.decode(errors="replace").rstrip()
            if text:
                keep((text.replace(secret, _HIDDEN) if secret else text)[:_LINE_MAX])


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
