"""A Cloudflare tunnel. Quick: no account, a new random name at each start. Named: the user's own host name.

The name alone proves nothing: cloudflared prints it before any connection exists, and ignores `--url` when it finds
a configuration of its own. So name, state and route are asked of its metrics server, never read from its log.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from dataclasses import dataclass, replace
from pathlib import Path

from bridge.tunnels import token_file
from bridge.tunnels.base import OnNewUrl
from bridge.tunnels.cloudflared_process import Launch, Process
from bridge.tunnels.cloudflared_words import (
    MetricsPortTaken,
    NoTokenFile,
    RateLimited,
    explain_exit,
    explain_route,
    explain_silence,
    route_error,
)
from bridge.tunnels.sleep import SleepWatch
from bridge.tunnels.spec import TunnelSpec
from bridgehead.errors import BridgeDownError

_LOG_LINES = 200  # without an edge it can write tens of lines a second, for ever
_PORT_TRIES = 3
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Times:
    """Seconds; tests shorten them."""

    ask_s: float = 0.1  # between two questions while it starts
    check_s: float = 5.0  # between two looks of the watchdog
    down_after_s: float = 60.0  # not ready for so long: it will not recover by itself
    restart_s: float = 45.0  # given to a restarted one to come up
    route_s: float = 10.0  # from a connection to the right route, which comes from the dashboard
    pause_max_s: float = 60.0  # between failed restarts: 1, 2, 4 … up to this
    limited_s: float = 600.0  # before another try when Cloudflare says that there were too many
    stop_s: float = 2.0  # after each signal


class Cloudflared:
    name = "cloudflared"

    def __init__(self, spec: TunnelSpec, *, on_new_url: OnNewUrl | None = None, times: Times = Times()) -> None:
        """Raises UsageError when the token file of a named tunnel can't be used."""
        token = token_file.read(Path(spec.token_file)) if spec.token_file else ""
        self._start_with = Launch(0, spec.protocol, spec.hostname, spec.token_file, token)
        self._on_new_url = on_new_url
        self._times = times
        self._lines: deque[str] = deque(maxlen=_LOG_LINES)
        self._process: Process | None = None
        self._url = ""
        self._trouble = ""
        self._again = threading.Event()  # somebody outside wants a fresh start
        self._stopping = threading.Event()
        self._lock = threading.Lock()  # guards _process: the watchdog replaces it, stop() ends it
        self._watchdog: threading.Thread | None = None

    def start(self, local_port: int) -> None:
        """Start it and return at once. Raises BridgeDownError when it is not installed or can't be run."""
        self._start_with = replace(self._start_with, local_port=local_port)
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

    def trouble(self) -> str:
        """What is known to be wrong: of a named tunnel the dashboard may lead elsewhere at any time."""
        return self._trouble

    def restart(self) -> None:
        """Begin anew at the watchdog's next look; a quick tunnel then has another address."""
        self._again.set()

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

    @property
    def _quick(self) -> bool:
        return not self._start_with.hostname

    def _launch(self) -> None:
        with self._lock:
            if self._process is not None:
                self._process.stop(self._times.stop_s)
            if not self._stopping.is_set():
                self._lines.clear()  # an old life's words must not explain a new one's end
                self._process = Process(self._start_with, self._lines)

    def _wait_ready(self, timeout_s: float) -> str:
        """The address, after as many starts as it takes: a port may be taken, an old version lacks an option."""
        deadline = time.monotonic() + timeout_s
        tries = 1
        while True:
            try:
                return self._wait_ready_once(timeout_s, deadline)
            except NoTokenFile:
                if self._start_with.token_in_environment:
                    raise
                self._start_with = replace(self._start_with, token_in_environment=True)
            except MetricsPortTaken:
                tries += 1
                if tries > _PORT_TRIES:
                    raise
            self._launch()

    def _wait_ready_once(self, timeout_s: float, deadline: float) -> str:
        """Poll until the present process has a name, a connection and the right route."""
        process = self._process
        if process is None:
            raise BridgeDownError("the tunnel has not been started")
        host, ready_since = "", 0.0
        while not self._stopping.is_set():
            code = process.exit_code()
            if code is not None:
                raise explain_exit(code, self.log_tail())
            now = time.monotonic()
            host = host or process.host()
            if host and process.is_ready():
                ready_since = ready_since or now
                if self._leads_here(process, host, final=self._quick or now - ready_since > self._times.route_s):
                    return f"https://{host}"
            if now > deadline:
                raise explain_silence(timeout_s, self.log_tail(), named=bool(host))
            self._stopping.wait(self._times.ask_s)
        raise BridgeDownError("the tunnel was stopped while it started")

    def _leads_here(self, process: Process, host: str, *, final: bool) -> bool:
        """Whether the route is right. Raises BridgeDownError when it is not and `final` says that it won't change."""
        target = self._start_with.target
        self._trouble = explain_route(process.route(host), host, target, quick=self._quick)
        if self._trouble and final:
            raise route_error(self._trouble, host, target, quick=self._quick)
        return not self._trouble

    def _watch(self) -> None:
        """Restart it when it has died or has not been ready for long, as after a laptop's sleep."""
        down_since: float | None = None
        sleep = SleepWatch()
        while not self._stopping.wait(self._times.check_s):
            if sleep.woke(self._times.check_s):
                down_since = None  # give it the time to connect again by itself: a quick one keeps its name so
            process = self._process
            if self._again.is_set():
                self._restart()
            elif process is None or process.is_ready():
                if process is not None and not self._quick:
                    self._look_at_route(process)
            else:
                now = time.monotonic()
                down_since = now if down_since is None else down_since
                if process.exit_code() is None and now - down_since < self._times.down_after_s:
                    continue
                self._restart()
            down_since = None

    def _look_at_route(self, process: Process) -> None:
        """No restart cures a wrong one; whoever asks is told."""
        before = self._trouble
        with contextlib.suppress(BridgeDownError):
            self._leads_here(process, self._start_with.hostname, final=False)
        if self._trouble and self._trouble != before:
            _log.warning("%s", self._trouble)

    def _restart(self) -> None:
        self._again.clear()
        pause_s = 1.0
        while not self._stopping.is_set():
            try:
                self._launch()
                url = self._wait_ready(self._times.restart_s)
            except BridgeDownError as error:
                self._trouble = error.message
                _log.warning("the tunnel is down: %s", error.message)
                limited = isinstance(error, RateLimited)
                self._stopping.wait(self._times.limited_s if limited else min(pause_s, self._times.pause_max_s))
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
