"""A tunnel's program as a child process that is watched: started again when it ends, stopped in steps, its log bounded.

`Child` is one life of the program. `Supervisor` gives it one life after the other and knows the address that leads to
the present one. What the program prints, and what its end means, is read by the `Life` that its tunnel provides.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Protocol

from bridge.tunnels import redaction
from bridge.tunnels.base import OnNewUrl
from bridgehead.errors import BridgeDownError

LOG_LINES = 200
LINE_BYTES = 500  # of a line in the log
_READ_BYTES = 4096  # of a line that is looked at: addresses stand in the first few hundred
_CONTROL = re.compile(rb"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[@-_]|[\x00-\x08\x0b-\x1f\x7f]")  # colours, and what rings a bell
_OURS = "BRIDGEHEAD_"
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Times:
    """Seconds; tests shorten them."""

    ask_s: float = 0.05  # between two questions for the address while it starts
    check_s: float = 0.5  # between two looks of the watchdog
    restart_s: float = 45.0  # given to a restarted one to come up
    pause_s: float = 1.0  # before it is started again; doubled from one short life to the next
    pause_max_s: float = 60.0
    steady_s: float = 60.0  # a life that was up for so long was a good one: the pauses begin anew
    stop_s: float = 2.0  # after each signal


DEFAULT_TIMES = Times()


class Life(Protocol):
    """One life of the program, as its tunnel sees it. `read` is called in a thread of its own."""

    def arguments(self) -> list[str]:
        """The command line. Raises BridgeDownError when there can't be one. No secret may stand in it."""

    def read(self, line: str) -> bool:
        """Take note of a line that the program printed. Whether it belongs into the log."""

    def address(self) -> str:
        """Where requests come in, "" while that is not known. Raises BridgeDownError when it never will be."""

    def why_ended(self, code: int, lines: Sequence[str]) -> BridgeDownError:
        """Why the program ended, negative codes being signals. 0 is no better an end than others."""

    def why_silent(self, waited_s: float, lines: Sequence[str]) -> BridgeDownError:
        """Why it has no address after so long, though it lives."""


class Supervisor:
    """start → wait_url → … → stop, as a Tunnel has them. `begin` makes the tunnel's view of each new life."""

    def __init__(
        self,
        name: str,
        begin: Callable[[], Life],
        *,
        on_new_url: OnNewUrl | None = None,
        times: Times = DEFAULT_TIMES,
        hide: Sequence[str] = (),  # secrets that the program may print
    ) -> None:
        self.trouble = ""  # why it is down, in one line; "" while it is up
        self._name = name
        self._begin = begin
        self._on_new_url = on_new_url
        self._times = times
        self._hide = hide
        self._log_lines: deque[str] = deque(maxlen=LOG_LINES)
        self._now: tuple[Life, Child] | None = None
        self._url = ""
        self._up_at = 0.0  # monotonic
        self._pause_s = times.pause_s
        self._stopping = threading.Event()
        self._asked = threading.Event()  # for a fresh start
        self._lock = threading.Lock()  # guards _now: the watchdog replaces it, stop() ends it
        self._watchdog: threading.Thread | None = None

    def start(self) -> None:
        """Start the program and return at once. Raises BridgeDownError when it can't be run."""
        self._launch()

    def wait_url(self, timeout_s: float) -> str:
        """The address, once there is one; from then on the program is watched. Raises BridgeDownError."""
        if not self._url:
            self._url = self._wait_address(timeout_s)
            self._up_at = time.monotonic()
            self._watchdog = threading.Thread(target=self._watch, name=f"{self._name}-watchdog", daemon=True)
            self._watchdog.start()
        return self._url

    @property
    def up(self) -> bool:
        """Whether the present life runs and has its address."""
        if self._now is None:
            return False
        life, child = self._now
        return child.exit_code() is None and bool(_address_of(life))

    @property
    def pid(self) -> int:
        """The present process, 0 when there is none. Each life has another."""
        return self._now[1].pid if self._now is not None else 0

    def restart(self) -> None:
        """Give it a new life soon, from the watchdog's thread. Returns at once."""
        self._asked.set()

    def stop(self) -> None:
        """End it and all that it started. May be called at any time, more than once."""
        self._stopping.set()
        with self._lock:
            if self._now is not None:
                self._now[1].stop(self._times.stop_s)
        if self._watchdog is not None and self._watchdog is not threading.current_thread():
            self._watchdog.join(timeout=10)

    def log_tail(self) -> list[str]:
        """The last lines that it printed, over all its lives."""
        return list(self._log_lines)

    # --- lives --------------------------------------------------------------------------------------

    def _launch(self) -> None:
        with self._lock:
            if self._now is not None:
                self._now[1].stop(self._times.stop_s)
            if not self._stopping.is_set():
                life = self._begin()
                self._now = (life, Child(life.arguments(), life.read, self._log_lines.append, self._hide))

    def _wait_address(self, timeout_s: float) -> str:
        """Ask the present life until it has its address."""
        if self._now is None:
            raise BridgeDownError("the tunnel has not been started")
        life, child = self._now
        deadline = time.monotonic() + timeout_s
        while not self._stopping.is_set():
            code = child.exit_code()
            if code is not None:
                raise life.why_ended(code, child.lines)
            if url := life.address():
                return url
            if time.monotonic() > deadline:
                raise life.why_silent(timeout_s, child.lines)
            self._stopping.wait(self._times.ask_s)
        raise BridgeDownError("the tunnel was stopped while it started")

    def _watch(self) -> None:
        while not self._stopping.wait(self._times.check_s):
            assert self._now is not None
            life, child = self._now
            code = child.exit_code()
            if code is not None:
                self._restart(life.why_ended(code, child.lines))
            elif self._asked.is_set():
                self._restart(BridgeDownError("nothing gets through, so it is started anew"))
            elif url := _address_of(life):
                self._take(url)

    def _restart(self, why: BridgeDownError) -> None:
        """Until it is up again. The pause grows over lives that come up and end at once, too."""
        if time.monotonic() - self._up_at >= self._times.steady_s:
            self._pause_s = self._times.pause_s
        while True:
            self.trouble = why.in_one_line()
            pause_s = self._pause_s
            _log.warning("the tunnel %s is down: %s (next try in %g s)", self._name, self.trouble, pause_s)
            if self._stopping.wait(pause_s):
                return
            self._pause_s = min(2 * pause_s, self._times.pause_max_s)
            self._asked.clear()
            try:
                self._launch()
                url = self._wait_address(self._times.restart_s)
            except BridgeDownError as error:
                why = error
                continue
            self.trouble = ""
            self._up_at = time.monotonic()
            _log.warning("the tunnel %s is up again", self._name)
            self._take(url)
            return

    def _take(self, url: str) -> None:
        """Tell the owner when it is another one."""
        if url == self._url:
            return
        self._url = url
        if self._on_new_url is None:
            return
        try:
            self._on_new_url(url)
        except Exception:  # noqa: BLE001 - the thread's edge: the tunnel must stay watched whatever its owner does
            _log.exception("the new address of the tunnel could not be passed on")


class Child:
    """A program in a session of its own, its output read until it is closed, however much it writes."""

    def __init__(
        self,
        arguments: Sequence[str],
        read: Callable[[str], bool],
        keep: Callable[[str], None],
        hide: Sequence[str] = (),
    ) -> None:
        self._hide = (*hide, *redaction.in_environment(os.environ))
        self.lines: deque[str] = deque(maxlen=LOG_LINES)  # of this life alone: they explain its end
        self._swept = False
        try:
            self._popen = subprocess.Popen(
                arguments,
                stdin=subprocess.DEVNULL,  # it can't ask anybody anything
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=environment(os.environ),
                start_new_session=True,  # Ctrl-C is ours to handle: it must not die before the bridge
            )
        except OSError as error:
            raise BridgeDownError(
                f"{arguments[0]} can't be started: {error.strerror}", hint="look whether it runs by hand"
            ) from None
        assert self._popen.stdout is not None
        self._pump = threading.Thread(target=self._read_all, args=(self._popen.stdout, read, keep), daemon=True)
        self._pump.start()

    @property
    def pid(self) -> int:
        return self._popen.pid

    def exit_code(self) -> int | None:
        """None while it lives. Once it is dead, what it started is too, and its last words have been read."""
        code = self._popen.poll()
        if code is not None:
            self._sweep()
        return code

    def stop(self, wait_s: float) -> None:
        """SIGTERM lets it end in order, a second one hurries those that wait, SIGKILL is the last word."""
        for sign in (signal.SIGTERM, signal.SIGTERM, getattr(signal, "SIGKILL", signal.SIGTERM)):
            if self._popen.poll() is not None:
                break
            self._send(sign)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._popen.wait(wait_s)
        self._sweep()

    def _send(self, sign: int) -> None:
        """To the program and what it started: a wrapper script ends without a word to its child."""
        if hasattr(os, "killpg"):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._popen.pid, sign)
        else:
            self._popen.send_signal(sign)  # Windows: what it started lives on

    def _sweep(self) -> None:
        """Once after its death, while its number is not another's yet."""
        if self._swept:
            return
        self._swept = True
        if hasattr(os, "killpg"):
            self._send(signal.SIGKILL)
        self._pump.join(timeout=2)

    def _read_all(self, stream: IO[bytes], read: Callable[[str], bool], keep: Callable[[str], None]) -> None:
        with stream:
            while raw := stream.readline(_READ_BYTES):
                for part in raw.split(b"\r"):  # a line that is drawn again and again
                    line = _CONTROL.sub(b"", part).decode(errors="replace").strip()
                    line = redaction.hide(line, self._hide)
                    if line and read(line):
                        short = line.encode()[:LINE_BYTES].decode(errors="ignore")
                        self.lines.append(short)
                        keep(short)


def environment(of: Mapping[str, str]) -> dict[str, str]:
    """What a tunnel's program inherits: all but what is ours."""
    return {name: value for name, value in of.items() if not name.upper().startswith(_OURS)}


def how_it_ended(program: str, code: int, lines: Sequence[str]) -> str:
    """`ssh ended with exit code 255: its last line`."""
    last = f": {lines[-1][:200]}" if lines else " and said nothing"
    how = f"signal {-code}" if code < 0 else f"exit code {code}"
    return f"{program} ended with {how}{last}"


def _address_of(life: Life) -> str:
    """Of a life under way: one that can't be had just now changes nothing."""
    try:
        return life.address()
    except BridgeDownError as error:
        _log.warning("the tunnel's address can't be read: %s", error.message)
        return ""
