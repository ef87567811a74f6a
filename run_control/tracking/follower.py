"""Follows in/ and tells the sinks of it: `python -m run_control.tracking.follower ROOT`, started detached by `up`.

It reads the ledger and in/, writes its own folder .bridgehead/tracking/, and waits for nobody: bridge and runs know
nothing of it. A thread and a process for each sink; `stop` leaves behind no process, whatever the sinks do.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from bridgehead import files, names, processes
from bridgehead.errors import BridgeDownError, BridgeheadError
from run_control import locks, project_file
from run_control.project import Project
from run_control.tracking import control
from run_control.tracking.child import argv_of
from run_control.tracking.feeder import Feed, Feeder
from run_control.tracking.spec import TrackingSpec, missing

STOP_S: Final = 4.0  # for sinks to let go; then their processes are killed
_WAKE_EVERY_S = 0.25  # to hear of a signal, and of a change in the project file
_NICE = 10  # laptop and bridge come first
_log = logging.getLogger(__name__)


def main(argv: list[str] | None = None) -> int:
    """Follow until SIGTERM or SIGINT. Exit codes are those of the error tree."""
    [root] = sys.argv[1:] if argv is None else argv
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    if hasattr(os, "nice"):
        with contextlib.suppress(OSError):
            os.nice(_NICE)
    signs: list[int] = []  # an Event's own lock may be held by the very thread that the signal interrupts
    for sign in (signal.SIGTERM, signal.SIGINT):
        signal.signal(sign, lambda number, _: signs.append(number))
    try:
        follow(Project(Path(root)), lambda: bool(signs))
    except BridgeheadError as error:
        _log.error("%s", error.in_one_line())
        return error.exit_code
    return 0


def feeds(spec: TrackingSpec) -> list[Feed]:
    return [
        Feed(
            str(kind),
            spec.settings(kind),
            argv_of(kind),
            spec.timeout_s,
            spec.whole(kind),
            functools.partial(missing, kind),
        )
        for kind in spec.sinks
    ]


def follow(project: Project, told: Callable[[], bool], say: Callable[[str], None] = _log.info) -> None:
    """Until `told()` says so; a changed [tracking] counts at once. Raises BridgeDownError: somebody does it."""
    with _alone(project):
        name, spec = project_file.tracking(project.root)
        try:
            while not told():
                follower = _Follower(project, name, feeds(spec), say)
                follower.start()
                try:
                    name, spec = _changed(project, told, (name, spec))
                finally:
                    follower.stop()
        finally:
            control.record_path(project).unlink(missing_ok=True)


def once(project: Project) -> list[Feeder]:
    """Tell all sinks of all that has arrived, one after the other; their `standing` says how it went.

    Raises BridgeDownError when somebody follows already.
    """
    with _alone(project):
        name, spec = project_file.tracking(project.root)
        done = [Feeder(project, name, feed) for feed in feeds(spec)]
        for feeder in done:
            try:
                feeder.round()
            finally:
                feeder.close()
        return done


class _Follower:
    """The threads of one [tracking] table."""

    def __init__(self, project: Project, name: str, told: Sequence[Feed], say: Callable[[str], None]) -> None:
        self._project, self._say = project, say
        self._lock = threading.Lock()
        self._said: dict[str, str] = {}
        self._feeders = [Feeder(project, name, feed, changed=self._write) for feed in told]
        self._threads = [
            threading.Thread(target=feeder.run, name=feeder.feed.name, daemon=True) for feeder in self._feeders
        ]

    def start(self) -> None:
        self._say(f"following: {', '.join(feeder.feed.name for feeder in self._feeders) or 'nothing'}")
        self._write()
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        for feeder in self._feeders:
            feeder.stop()
        deadline = time.monotonic() + STOP_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        for feeder in self._feeders:
            feeder.kill()

    def _write(self) -> None:
        """For `status`, whenever a sink's trouble comes or goes."""
        with self._lock:
            sinks = {
                feeder.feed.name: {"trouble": feeder.standing.trouble, "next": feeder.standing.next}
                for feeder in self._feeders
            }
            try:
                files.write_json(control.record_path(self._project), {"v": names.RECORD_VERSION, "sinks": sinks})
            except OSError as error:
                _log.warning("%s can't be written: %s", control.record_path(self._project).name, error.strerror)
            for name, found in sinks.items():
                if found["trouble"] != self._said.get(name, ""):
                    self._said[name] = found["trouble"]
                    self._say(f"{name}: {found['trouble'] or 'told of everything again'}")


def _changed(project: Project, told: Callable[[], bool], known: tuple[str, TrackingSpec]) -> tuple[str, TrackingSpec]:
    """Waits until the table is another one, or `told()`. A mistake in the file leaves what was there."""
    seen: Any = None
    while not told():
        time.sleep(_WAKE_EVERY_S)
        with contextlib.suppress(OSError, BridgeheadError):
            found = project.file.stat().st_mtime_ns
            if found == seen:
                continue
            seen = found
            now = project_file.tracking(project.root)
            if now != known:
                return now
    return known


@contextlib.contextmanager
def _alone(project: Project) -> Iterator[None]:
    """Holds the lock that says who tells the sinks of this project."""
    folder = control.folder(project)
    project.make_private()
    folder.mkdir(mode=0o700, exist_ok=True)
    fd = locks.take(control.lock_path(project))
    if fd is None:
        holder = locks.described(control.lock_path(project)) or {}
        raise BridgeDownError(
            f"process {holder.get('pid', '?')} tells the sinks of this project already",
            hint="bridgehead down ends the one that up has started",
        )
    pid = os.getpid()
    try:
        locks.describe(fd, {"pid": pid, "start": processes.start_ticks(pid), "boot_id": processes.boot_id()})
        yield
    finally:
        locks.describe(fd, {})
        os.close(fd)


if __name__ == "__main__":
    sys.exit(main())
