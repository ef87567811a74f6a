"""One sink and what it is told: a thread that looks at what has arrived, and a process that it tells of it.

Whatever the sink does holds up this thread alone, and that no longer than the message's time. Who failed is put off,
longer each time; what it missed lies in in/ and is told later, in order.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from bridge.ledger_reader import LedgerReader
from bridge.ledger_rows import CommandRow
from bridgehead import names
from bridgehead.errors import BridgeheadError
from run_control import live_view
from run_control.project import Project
from run_control.tracking import messages, story
from run_control.tracking.child import SinkFailed, SinkProcess
from run_control.tracking.cursors import Cursors
from run_control.tracking.story import Told

LOOK_EVERY_S: Final = 3.0
IDLE_S: Final = 60.0  # without news, and with no run open: its process ends until there are some
FIRST_PAUSE_S: Final = 5.0
MOST_PAUSE_S: Final = 300.0
_GROWTH = 3.0
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Feed:
    """One sink, and how it is told."""

    name: str
    settings: dict[str, Any]
    argv: Sequence[str]
    timeout_s: float
    whole: bool = False  # a run in one piece once it has ended; not as it goes
    missing: Callable[[], str] = lambda: ""  # the command that installs what it needs


@dataclass
class Standing:
    """How a sink is; `runs` are those that it knows all of, `points` what it was told since this began."""

    runs: int = 0
    points: int = 0
    waiting: int = 0
    trouble: str = ""
    next: str = ""


@dataclass
class _PutOff:
    tries: int = 0
    until: float = 0.0

    def again(self, first_s: float) -> None:
        self.until = time.monotonic() + min(first_s * _GROWTH ** min(self.tries, 20), MOST_PAUSE_S)
        self.tries += 1

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self.until


@dataclass
class _State:
    seen: dict[str, Any] = field(default_factory=dict)  # run → what was there when nothing was left to tell
    ended: set[str] = field(default_factory=set)  # of those, the runs that are over
    failed: dict[str, _PutOff] = field(default_factory=dict)  # run → when to try again
    pause: _PutOff = field(default_factory=_PutOff)  # of the sink as a whole


class Feeder:
    """`round()` tells what there is to tell, once; `run()` does so until `stop()`."""

    def __init__(
        self,
        project: Project,
        name: str,
        feed: Feed,
        *,
        look_every_s: float = LOOK_EVERY_S,
        first_pause_s: float = FIRST_PAUSE_S,
        idle_s: float = IDLE_S,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        """`name` is the project's; `changed` hears of each new trouble and of its end."""
        self.feed = feed
        self.standing = Standing()
        self._project, self._name, self._changed = project, name, changed
        self._look_every_s, self._first_pause_s, self._idle_s = look_every_s, first_pause_s, idle_s
        self._folder = project.private / names.TRACKING
        self._cursors = Cursors(self._folder / feed.name)
        self._state = _State()
        self._ledger: LedgerReader | None = None
        self._version: int | None = None
        self._rows: list[CommandRow] = []
        self._child: SinkProcess | None = None
        self._used = 0.0
        self._stopping = threading.Event()

    def run(self) -> None:
        """The thread's whole life."""
        while not self._stopping.is_set():
            try:
                self.round()
                self._rest()
            except Exception as error:  # noqa: BLE001 - the thread's edge: other sinks go on, and the next look comes
                _log.exception("%s: unexpected", self.feed.name)
                self._trouble(f"internal: {type(error).__name__}", "")
            self._stopping.wait(self._look_every_s)
        self.close()

    def stop(self) -> None:
        self._stopping.set()

    def kill(self) -> None:
        """End its process whatever it is doing; from another thread."""
        child = self._child
        if child is not None:
            child.kill()

    def close(self) -> None:
        if self._child is not None:
            self._child.close()
            self._child = None
        if self._ledger is not None:
            self._ledger.close()
            self._ledger = None

    def round(self) -> None:
        """Tell all runs' news, those that failed before last; a failure is in `standing` and is not raised."""
        if not self._state.pause.is_over:
            return
        due = self._due()
        self.standing.waiting = len(due)
        failed = False
        for row in due:
            if self._stopping.is_set():
                return
            try:
                self._tell_run(row)
                self._state.failed.pop(row.run_id, None)
                self._state.pause = _PutOff()
                self.standing.waiting -= 1
            except (SinkFailed, OSError) as error:
                failed = True
                self._note(row, error)
                if not (isinstance(error, SinkFailed) and error.alive):
                    break
        self.standing.runs = len(self._state.ended)
        if not failed and not self._state.failed:
            self._trouble("", "")

    # --- what is due -------------------------------------------------------------------------------------

    def _due(self) -> list[CommandRow]:
        found = [row for row in self._all_rows() if self._mark(row) != self._state.seen.get(row.run_id, ())]
        due = [row for row in found if row.run_id not in self._state.failed or self._state.failed[row.run_id].is_over]
        return sorted(due, key=lambda row: row.run_id in self._state.failed)

    def _all_rows(self) -> list[CommandRow]:
        """Runs of which something has arrived; those of the last look when the ledger can't be read."""
        try:
            if self._ledger is None:
                if not self._project.ledger.is_file():
                    return []
                self._ledger = LedgerReader(self._project.ledger)
            version = self._ledger.version()
            if version != self._version:
                self._rows, self._version = self._ledger.commands(), version
        except (BridgeheadError, sqlite3.Error) as error:
            _log.warning("%s: %s", self.feed.name, error)
            self._ledger, self._version = None, None
        return [row for row in self._rows if story.is_told(self._project, row) and (row.ended or not self.feed.whole)]

    def _mark(self, row: CommandRow) -> tuple[Any, ...]:
        """What differs when there may be something to tell."""
        folder = self._project.run(row.run_id)
        ended = (row.state, live_view.stamp(folder / names.RESULTS)) if row.ended else ()
        return (live_view.stamp(folder / names.PROGRESS), *ended)

    # --- telling -----------------------------------------------------------------------------------------

    def _tell_run(self, row: CommandRow) -> None:
        """All that is new of a run. Raises SinkFailed and OSError; what the sink took before that stays told."""
        mark, path = self._mark(row), self._project.run(row.run_id) / names.PROGRESS
        stored = self._cursors.get(row.run_id)
        head = story.head(self._name, row)
        end = story.end(self._project, row) if row.ended else None
        digests = story.digest(head), story.digest(end) if end is not None else ""
        if (stored.head, stored.end) != digests or not story.is_read(path, stored):
            self._tell_news(row.run_id, Told(place=stored.place) if self.feed.whole else stored, head, end)
        self._state.seen[row.run_id] = mark
        if row.ended:
            self._state.ended.add(row.run_id)
            self._cursors.forget(row.run_id)

    def _tell_news(self, run_id: str, told: Told, head: dict[str, Any], end: dict[str, Any] | None) -> None:
        path = self._project.run(run_id) / names.PROGRESS
        anew, more, rewound = self.feed.whole, True, False
        while more and not self._stopping.is_set():
            points, after, more = story.read_on(path, told)
            after.head = story.digest(head)
            said = {"head": head, "head_is_new": anew or after.head != told.head, "place": told.place, "anew": anew}
            last_words = end if not more else None
            after.end = story.digest(end) if last_words is not None else ""
            if points or said["head_is_new"] or after.end != told.end:
                tell = {"op": messages.TELL, "run": run_id, **said, "points": [point.to_json() for point in points]}
                answer = self._sink().ask({**tell, "end": last_words}, self.feed.timeout_s)
                self._used = time.monotonic()
                if answer["behind"] is not None:
                    if rewound:
                        raise SinkFailed("it lost again what it was just told", alive=True)
                    told, more, rewound = Told(floor=int(answer["behind"]), place=dict(answer["place"])), True, True
                    continue
                after.place = dict(answer["place"])
                self.standing.points += len(points)
            if after != told and (not self.feed.whole or last_words is not None):
                self._cursors.save(run_id, after)
            told, anew = after, False

    def _sink(self) -> SinkProcess:
        """Its process, started when there is none. Raises SinkFailed."""
        if self._child is not None and not self._child.alive:
            self._child.close()
            self._child = None
        if self._child is None:
            install = self.feed.missing()
            if install:
                raise SinkFailed(f"the package {self.feed.name} is not installed", hint=install)
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            log = self._folder / f"{self.feed.name}.log"
            self._child = SinkProcess(self.feed.argv, self.feed.settings, log)
        if self._stopping.is_set():
            raise SinkFailed("stopped")  # `kill` may have come before there was a process
        return self._child

    def _rest(self) -> None:
        """A process of a hundred MB need not wait for the next run."""
        child = self._child
        if child is not None and not child.holds and time.monotonic() - self._used > self._idle_s:
            child.close()
            self._child = None

    def _note(self, row: CommandRow, error: SinkFailed | OSError) -> None:
        if self._stopping.is_set():
            return  # ended by us, in the middle of it
        alive = isinstance(error, SinkFailed) and error.alive
        self._state.failed.setdefault(row.run_id, _PutOff()).again(self._first_pause_s)
        if not alive:
            self._state.pause.again(self._first_pause_s)
        words = error.message if isinstance(error, SinkFailed) else f"{error.filename or ''}: {error.strerror}"
        _log.warning("%s: %s: %s", self.feed.name, row.run_id, words)
        self._trouble(words, error.hint if isinstance(error, SinkFailed) else "")

    def _trouble(self, words: str, hint: str) -> None:
        if (words, hint) != (self.standing.trouble, self.standing.next):
            self.standing.trouble, self.standing.next = words, hint
            self._changed()
