"""The follower's end of a sink's process: ask it something and get an answer, or its end, within a given time."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from bridgehead import processes
from bridgehead.errors import TransferError
from run_control.bridge_control import detached_environment
from run_control.tracking import messages
from run_control.tracking.spec import SinkKind

OPEN_S: Final = 600.0  # to import its package and to make its database: minutes, on a laptop that does something else
_END_S = 5.0
_LOG_MAX_BYTES = 1 << 20


class SinkFailed(TransferError):
    """The sink took nothing. `alive`: its process answered, so that others of its runs may do better."""

    def __init__(self, message: str, *, hint: str = "", alive: bool = False) -> None:
        super().__init__(message, hint=hint)
        self.alive = alive


class SinkProcess:
    """For one thread; `kill` may come from another."""

    def __init__(self, argv: Sequence[str], settings: dict[str, Any], log: Path, *, open_s: float = OPEN_S) -> None:
        """Start it and have it open its sink. Raises SinkFailed."""
        self.holds = 0
        self._log = log
        self._expired = False
        stream = os.open(log, os.O_WRONLY | os.O_CREAT | (os.O_TRUNC if _is_long(log) else os.O_APPEND), 0o600)
        try:
            self._process = subprocess.Popen(
                list(argv),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stream,
                env=detached_environment(),
                start_new_session=True,
            )
        except OSError as error:
            raise SinkFailed(f"its process can't be started: {error.strerror}") from None
        finally:
            os.close(stream)
        try:
            self.ask({"op": messages.OPEN, "settings": settings}, open_s)
        except BaseException:
            self.kill()
            self._close_pipes()
            raise

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, message: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        """Its answer. Raises SinkFailed; when nothing came in time, its process has been killed."""
        timer = threading.Timer(timeout_s, self._expire)
        timer.daemon = True
        timer.start()
        try:
            line = self._exchange(json.dumps(message).encode() + b"\n")
        finally:
            timer.cancel()
        if self._expired:
            self.kill()  # the timer's thread may still be at it, and until then it counts as alive
            raise SinkFailed(f"no answer for {timeout_s:g} s; its process was ended", hint=f"look into {self._log}")
        try:
            answer = json.loads(line)
        except ValueError:
            self.kill()  # whatever is left of it: it closes its ends before it is gone
            raise SinkFailed("its process ended", hint=f"look into {self._log}") from None
        if not answer["ok"]:
            raise SinkFailed(str(answer["error"]), hint=str(answer["hint"]), alive=True)
        self.holds = int(answer.get("holds") or 0)
        return dict(answer)

    def close(self, timeout_s: float = _END_S) -> None:
        """In order if it does that in time; in any case it is gone afterwards, with all that it started."""
        if self.alive:
            with contextlib.suppress(SinkFailed):
                self.ask({"op": messages.CLOSE}, timeout_s)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(timeout_s)
        self.kill()
        self._close_pipes()

    def kill(self) -> None:
        """It and its descendants, at once. From any thread, and more than once."""
        pid = self._process.pid
        if self._process.poll() is None:
            ticks = {child: processes.start_ticks(child) for child in processes.descendants(pid)}
            if hasattr(os, "killpg"):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(pid, signal.SIGKILL)
            self._process.kill()
            for child, started_ticks in ticks.items():
                processes.send(child, processes.KILL, started_ticks=started_ticks)
        self._process.wait()

    def _expire(self) -> None:
        self._expired = True
        self.kill()

    def _close_pipes(self) -> None:
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):  # what was not written goes to nobody
                    stream.close()

    def _exchange(self, line: bytes) -> bytes:
        """The answer's line; empty when it ended."""
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(line)
            self._process.stdin.flush()
            return self._process.stdout.readline()
        except (OSError, ValueError):  # it does not read any more
            return b""


def argv_of(kind: SinkKind) -> list[str]:
    return [sys.executable, "-m", "run_control.tracking.sink_process", str(kind)]


def _is_long(log: Path) -> bool:
    try:
        return log.stat().st_size > _LOG_MAX_BYTES
    except OSError:
        return False
