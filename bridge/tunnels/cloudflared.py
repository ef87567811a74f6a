"""A Cloudflare quick tunnel: no account, a new random name at each start, one connection to the edge.

The name alone proves nothing: cloudflared prints it before any connection exists, and ignores `--url` when it finds
a configuration of its own. So name, state and route are asked of its metrics server, never read from its log.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import logging
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from bridge.tunnels.base import OnNewUrl
from bridge.tunnels.cloudflared_words import explain_exit, explain_silence
from bridgehead.errors import BridgeDownError

_LOG_LINES = 200  # without an edge it can write tens of lines a second, for ever
_LINE_MAX = 500
_HOST = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])\Z")
_ASK_TIMEOUT_S = 2.0
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Times:
    """Seconds; tests shorten them."""

    ask_s: float = 0.1  # between two questions while it starts
    check_s: float = 5.0  # between two looks of the watchdog
    down_after_s: float = 60.0  # not ready for so long: it will not recover by itself
    restart_s: float = 45.0  # given to a restarted one to come up
    pause_max_s: float = 60.0  # between failed restarts: 1, 2, 4 … up to this
    stop_s: float = 2.0  # after each signal


class Cloudflared:
    name = "cloudflared"

    def __init__(self, *, on_new_url: OnNewUrl | None = None, times: Times = Times()) -> None:
        self._on_new_url = on_new_url
        self._times = times
        self._lines: deque[str] = deque(maxlen=_LOG_LINES)
        self._process: _Process | None = None
        self._port = 0
        self._url = ""
        self._stopping = threading.Event()
        self._lock = threading.Lock()  # guards _process: the watchdog replaces it, stop() ends it
        self._watchdog: threading.Thread | None = None

    def start(self, local_port: int) -> None:
        """Start it and return at once. Raises BridgeDownError when it is not installed or can't be run."""
        self._port = local_port
        self._launch()

    def wait_url(self, timeout_s: float) -> str:
        """The public address, once cloudflared is connected and leads to the bridge. Raises BridgeDownError."""
        if not self._url:
            self._url = self._wait_ready(timeout_s)
            self._watchdog = threading.Thread(target=self._watch, name="cloudflared-watchdog", daemon=True)
            self._watchdog.start()
        return self._url

    def healthy(self) -> bool:
        process = self._process
        return process is not None and process.is_ready()

    @property
    def pid(self) -> int:
        """The present process, 0 when there is none. A restart by the watchdog brings another."""
        process = self._process
        return 0 if process is None else process.pid

    def stop(self) -> None:
        self._stopping.set()
        with self._lock:
            if self._process is not None:
                self._process.stop(self._times.stop_s)
        if self._watchdog is not None and self._watchdog is not threading.current_thread():
            self._watchdog.join(timeout=10)

    def log_tail(self) -> list[str]:
        return list(self._lines)

    def _launch(self) -> None:
        with self._lock:
            if self._process is not None:
                self._process.stop(self._times.stop_s)
            if not self._stopping.is_set():
                self._lines.clear()  # an old life's words must not explain a new one's end
                self._process = _Process(self._port, self._lines)

    def _wait_ready(self, timeout_s: float) -> str:
        """Poll until the present process has a name, a connection and the right route."""
        process = self._process
        if process is None:
            raise BridgeDownError("the tunnel has not been started")
        deadline = time.monotonic() + timeout_s
        host = ""
        while not self._stopping.is_set():
            code = process.exit_code()
            if code is not None:
                raise explain_exit(code, self.log_tail())
            host = host or process.host()
            if host and process.is_ready():
                process.check_route()
                return f"https://{host}"
            if time.monotonic() > deadline:
                raise explain_silence(timeout_s, self.log_tail(), named=bool(host))
            self._stopping.wait(self._times.ask_s)
        raise BridgeDownError("the tunnel was stopped while it started")

    def _watch(self) -> None:
        """Restart it when it has died or has not been ready for long, as after a laptop's sleep."""
        down_since: float | None = None
        while not self._stopping.wait(self._times.check_s):
            process = self._process
            if process is None or process.is_ready():
                down_since = None
                continue
            now = time.monotonic()
            down_since = now if down_since is None else down_since
            if process.exit_code() is not None or now - down_since >= self._times.down_after_s:
                self._restart()
                down_since = None

    def _restart(self) -> None:
        pause_s = 1.0
        while not self._stopping.is_set():
            try:
                self._launch()
                url = self._wait_ready(self._times.restart_s)
            except BridgeDownError as error:
                _log.warning("the tunnel is down: %s", error.message)
                self._stopping.wait(min(pause_s, self._times.pause_max_s))
                pause_s *= 2
                continue
            changed = url != self._url
            self._url = url
            if changed:
                self._report(url)
            return

    def _report(self, url: str) -> None:
        if self._on_new_url is None:
            return
        try:
            self._on_new_url(url)
        except Exception:  # noqa: BLE001 - the thread's edge: the tunnel must stay watched whatever its owner does
            _log.exception("the new address of the tunnel could not be passed on")


class _Process:
    """One life of the program, with the metrics server that it is asked through."""

    def __init__(self, local_port: int, lines: deque[str]) -> None:
        program = shutil.which("cloudflared")
        if program is None:
            raise BridgeDownError(
                "cloudflared is not on your PATH",
                hint="install it (developers.cloudflare.com, “Downloads”), or start with --tunnel none",
            )
        self._target = f"http://127.0.0.1:{local_port}"
        self._metrics_port = _free_port()
        self._folder = tempfile.TemporaryDirectory(prefix="bridgehead-tunnel-")
        config = Path(self._folder.name) / "empty.yml"
        config.touch()  # keeps a configuration in the user's home from taking over
        arguments = ["tunnel", "--config", str(config), "--no-autoupdate"]
        arguments += ["--metrics", f"127.0.0.1:{self._metrics_port}", "--protocol", "http2", "--url", self._target]
        try:
            self._popen = subprocess.Popen(
                [program, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,  # a wrong option is told on stdout, all else on stderr
                stderr=subprocess.STDOUT,
                env={key: value for key, value in os.environ.items() if not key.startswith("TUNNEL_")},
                start_new_session=True,  # Ctrl-C is ours to handle: it must not die before the bridge
            )
        except OSError as error:
            self._folder.cleanup()
            raise BridgeDownError(
                f"cloudflared can't be started: {error.strerror}", hint=f"look at {program}"
            ) from None
        assert self._popen.stdout is not None
        self._pump = threading.Thread(target=_pump, args=(self._popen.stdout, lines.append), daemon=True)
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
        """The name that the tunnel got, empty while it has none. It may not be reachable yet."""
        answer = self._ask("/quicktunnel")
        host = str(answer.get("hostname", "")) if answer is not None else ""
        return host if _HOST.match(host) else ""

    def is_ready(self) -> bool:
        """Whether it has a connection to the edge now."""
        return self._popen.poll() is None and self._ask("/ready") is not None

    def check_route(self) -> None:
        """Raises BridgeDownError when the tunnel would lead to something else than the bridge."""
        answer = self._ask("/config") or {}
        try:
            service = str(answer["config"]["ingress"][0]["service"])
        except (KeyError, IndexError, TypeError):
            service = "nowhere that it tells of"
        if service != self._target:
            raise BridgeDownError(
                f"cloudflared leads to {service}, not to the bridge at {self._target}",
                hint="a cloudflared configuration on this machine takes over; move ~/.cloudflared/config.yml away",
            )

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


def _pump(stream: IO[bytes], keep: Callable[[str], None]) -> None:
    """Read until the program has closed its output, however much it writes."""
    with stream:
        while line := stream.readline(_LINE_MAX):
            text = line.decode(errors="replace").rstrip()
            if text:
                keep(text)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
