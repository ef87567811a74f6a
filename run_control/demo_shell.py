"""How the demo drives the product: as a person would, by its public commands, each a process of its own."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bridgehead.errors import BridgeheadError
from run_control.bridge_control import detached_environment

COMMAND_TIMEOUT_S = 120.0
_FINISH_S = 30.0  # how long a command that was under way gets when the demo is interrupted

Run = dict[str, Any]  # a run as `--json` prints it


class DemoFailed(BridgeheadError):
    """Something that the demo promises did not hold."""

    code = "demo_failed"


class CommandFailed(DemoFailed):
    """A command ended with a code; its message says which and why."""

    code = "command_failed"

    def __init__(self, words: tuple[str, ...], exit_code: int, error: dict[str, Any]) -> None:
        shown = " ".join(words)
        super().__init__(f"bridgehead {shown}: exit {exit_code}: {error.get('message', 'no answer')}")
        self.answered = str(error.get("code", ""))


class Shell:
    """Runs `bridgehead … --json` in one project folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, *words: str) -> dict[str, Any]:
        """The command's data. Raises CommandFailed."""
        process = self.popen(*words)
        try:
            output, _ = process.communicate(timeout=COMMAND_TIMEOUT_S)
        except BaseException:
            # A command that is starting something must not be cut off half-way: cleaning up would miss it.
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=_FINISH_S)
            process.kill()
            raise
        answer = _last_object(output)
        if process.returncode != 0 or not answer.get("ok"):
            raise CommandFailed(words, process.returncode, answer.get("error", {}))
        data: dict[str, Any] = answer["data"]
        return data

    def popen(self, *words: str) -> subprocess.Popen[str]:
        # A session of its own: Ctrl-C reaches the demo alone, which then ends everything in order.
        return subprocess.Popen(
            [sys.executable, "-m", "run_control.cli", *words, "--json"],
            cwd=self.folder,
            env=detached_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )


class Follower:
    """`bridgehead wait --json RUN…` in the background: the newest state of each run, as it changes."""

    def __init__(self, shell: Shell, run_ids: list[str], on_change: Callable[[Run], None]) -> None:
        self.runs: dict[str, Run] = {}
        self._changed = threading.Condition()
        self._on_change = on_change
        self._process = shell.popen("wait", *run_ids)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def until(self, run_id: str, holds: Callable[[Run], bool], *, timeout_s: float, what: str) -> Run:
        """Wait until `holds` for the run and return it. Raises DemoFailed when the run fails or time is up."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while True:
                run = self.runs.get(run_id)
                if run is not None and holds(run):
                    return run
                if run is not None and run["state"] in ("failed", "stopped", "done", "rejected"):
                    raise DemoFailed(f"{run_id} is {run['state']} before {what}: {run['reason'] or run['message']}")
                if self._process.poll() is not None and not self._thread.is_alive():
                    raise DemoFailed(f"bridgehead wait ended before {what}")
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    raise DemoFailed(f"{what} did not happen in {timeout_s:.0f} s")
                self._changed.wait(min(left_s, 0.5))

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._thread.join(timeout=5)
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _read(self) -> None:
        for event in _objects(self._process):
            run = event.get("run")
            if run is None:
                continue
            with self._changed:
                self.runs[run["run_id"]] = run
                self._changed.notify_all()
            self._on_change(run)


def _objects(process: subprocess.Popen[str]) -> Iterator[dict[str, Any]]:
    with contextlib.suppress(ValueError):  # closed while it was being read
        for line in process.stdout or ():
            yield json.loads(line)


def _last_object(output: str) -> dict[str, Any]:
    lines = output.strip().splitlines()
    answer = json.loads(lines[-1]) if lines else {}
    return answer if isinstance(answer, dict) else {}
