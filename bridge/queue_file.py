"""Watches queue.txt and gives each new line to the ledger, once.

A person edits the file, with any editor and at any moment. What is only added is taken at once. When lines that were
taken have changed or are missing, the file must hold still for a second first: an editor that empties and rewrites it
would otherwise look like somebody who removes every line and then adds them all again.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from watchdog.events import (
    FileCreatedEvent,
    FileDeletedEvent,
    FileModifiedEvent,
    FileMovedEvent,
    FileSystemEvent,
    FileSystemEventHandler,
)
from watchdog.observers import Observer
from watchdog.observers.api import BaseObserver

from bridge.ledger import Ledger
from bridge.ledger_rows import TakenLine
from bridge.project import LoadProject, ProjectView
from bridge.queue_diff import Changes, RemovedLines, compare
from bridgehead.errors import UsageError
from bridgehead.queue_lines import LINE_MAX, QueueLine, Verb, parse_line

FILE_MAX_BYTES = 16 * 2**20
SETTLE_S = 1.0
_POLL_S = 0.5  # also when the file system tells of changes: network and synced folders do not always
_POLL_ALONE_S = 0.1
_NOTES_MAX = 20  # for one change of the file
_EVENTS: list[type[FileSystemEvent]] = [FileCreatedEvent, FileModifiedEvent, FileMovedEvent, FileDeletedEvent]
_log = logging.getLogger(__name__)


class QueueWatcher:
    """A thread of its own between `start` and `stop`."""

    def __init__(
        self, queue_path: Path, ledger: Ledger, load_project: LoadProject, *, settle_s: float = SETTLE_S
    ) -> None:
        self._path = queue_path
        self._reader = QueueReader(ledger, load_project, queue_path.name)
        self._settle_s = settle_s
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._observer: BaseObserver | None = None
        self._thread = threading.Thread(target=self._loop, name="queue-watcher", daemon=True)
        self._seen: bytes | None | str = ""  # content, None: missing, a text: can't be read
        self._stamp: tuple[int, int, int] | None = (0, 0, 0)
        self._still_since = time.monotonic()
        self._pending = True  # something in the content still waits: for time to pass, or for another file

    def start(self) -> None:
        self._observer = self._observe()
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join(timeout=10)
        if self._observer is not None:
            self._observer.stop()
            self._observer.join(timeout=10)

    def _observe(self) -> BaseObserver | None:
        """Ask the file system to wake us; without that (too many watches, no such service) we only poll."""
        observer = Observer()
        try:
            observer.schedule(_Waker(self._path, self._wake), str(self._path.parent), event_filter=_EVENTS)
            observer.start()
        except OSError as error:
            _log.warning("no notice of changes in %s, polling instead: %s", self._path.parent, error)
            return None
        return observer

    def _loop(self) -> None:
        poll_s = _POLL_S if self._observer is not None else _POLL_ALONE_S
        woken = True
        while not self._stop.is_set():
            pause_s = poll_s
            try:
                pause_s = self._look(woken=woken, poll_s=poll_s)
            except Exception:  # noqa: BLE001 - the thread's edge: whatever is wrong now, later lines must still be seen
                _log.exception("could not take the lines of %s", self._path.name)
                self._pending = True
            woken = self._wake.wait(pause_s)
            self._wake.clear()

    def _look(self, *, woken: bool, poll_s: float) -> float:
        """Read the file when it may have changed; return how long to wait at most before the next look."""
        stamp = _stamp(self._path)
        if woken or stamp != self._stamp:
            self._stamp = stamp
            content = _read(self._path)
            if content != self._seen:
                self._seen = content
                self._still_since = time.monotonic()
                self._pending = True
        if not self._pending:
            return poll_s
        to_settle_s = self._settle_s - (time.monotonic() - self._still_since)
        self._pending = self._reader.process(self._seen, settled=to_settle_s <= 0)
        return min(poll_s, to_settle_s) if to_settle_s > 0 else poll_s


class _Waker(FileSystemEventHandler):
    def __init__(self, path: Path, wake: threading.Event) -> None:
        self._name = path.name
        self._wake = wake

    def on_any_event(self, event: FileSystemEvent) -> None:
        if self._name in (os.path.basename(os.fsdecode(path)) for path in (event.src_path, event.dest_path)):
            self._wake.set()


@dataclass(frozen=True)
class _Line:
    number: int  # in the file, from 1
    text: str
    finished: bool  # ends in a newline


class QueueReader:
    """Turns the content of the file into calls of `ledger.take`; knows nothing of files and threads."""

    def __init__(self, ledger: Ledger, load_project: LoadProject, file_name: str) -> None:
        self._ledger = ledger
        self._load_project = load_project
        self._file_name = file_name
        self._taken = ledger.taken_lines()
        self._was_missing = False
        self._removed = RemovedLines()
        self._complaint = ""  # the last note about the file or project as a whole; the same is not said twice

    def process(self, content: bytes | None | str, *, settled: bool) -> bool:
        """Take what can be taken now; True when some of it must wait. `settled`: it has not changed for a while."""
        if not isinstance(content, bytes):
            self._was_missing = self._was_missing or content is None
            self._complain(content or f"{self._file_name} is missing; what was taken from it goes on")
            return False
        lines = _command_lines(content)
        changes = compare([line.text for line in self._taken], [line.text for line in lines])
        if self._was_missing:  # the file is another one: what is new in it is no edit
            changes.as_another_file()
        if not changes.only_added and not settled:
            return True
        unfinished = [place for place in changes.new if not lines[place].finished and not settled]
        waiting, project = self._wait_for_project([place for place in changes.new if place not in unfinished], lines)
        left_out = {*unfinished, *waiting}
        self._take(lines, changes, left_out, project)
        self._was_missing = self._was_missing and bool(left_out)
        return bool(left_out)

    def _wait_for_project(self, places: list[int], lines: list[_Line]) -> tuple[list[int], ProjectView]:
        """(places of the lines that must wait, project): a mistake in the project file is no fault of the line."""
        needing = [place for place in places if _needs_project(lines[place].text)]
        if needing:
            try:
                project = self._load_project()
            except UsageError as error:
                first = lines[needing[0]].number
                self._complain(f"run: and sh: lines wait until the project file is mended: {error.message}", first)
                return needing, ProjectView("")
        else:
            project = ProjectView("")
        self._complaint = ""
        return [], project

    def _take(self, lines: list[_Line], changes: Changes, left_out: set[int], project: ProjectView) -> None:
        fresh = [place for place in changes.new if place not in left_out]
        back = self._removed.back({place: lines[place].text for place in fresh})
        fresh = [place for place in fresh if place not in back]
        if not fresh and not back and not changes.edited and not changes.removed and changes.only_added:
            return
        seen = []
        for place, line in enumerate(lines):
            if place not in left_out:
                mate = changes.same.get(place, changes.edited.get(place))
                known = back.get(place, 0) if mate is None else self._taken[mate].seq
                seen.append(TakenLine(known, line.text))
        start = _common(self._taken, seen)
        rows = self._ledger.take(
            [(lines[place].number, lines[place].text) for place in fresh], project, seen=(start, seen[start:])
        )
        self._note(lines, changes)
        self._note_back(lines, back)
        self._removed.add([self._taken[mate] for mate in changes.removed])
        seqs = iter(row.seq for row in rows)
        self._taken = [line if line.seq else TakenLine(next(seqs), line.text) for line in seen]

    def _note(self, lines: list[_Line], changes: Changes) -> None:
        """Say of edited and removed lines that this changes nothing."""
        notes = [
            (
                lines[place].number,
                f"line {lines[place].number} was taken as #{self._taken[mate].seq} before it was edited; that changes"
                " nothing. Add a new line to run something.",
            )
            for place, mate in sorted(changes.edited.items())
        ]
        notes += [
            (0, f"the line taken as #{self._taken[mate].seq} was removed; that changes nothing")
            for mate in changes.removed
        ]
        for number, text in notes[:_NOTES_MAX]:
            self._ledger.add_note(number, text)
        if len(notes) > _NOTES_MAX:
            self._ledger.add_note(0, f"{len(notes) - _NOTES_MAX} more taken lines were edited or removed")

    def _note_back(self, lines: list[_Line], back: dict[int, int]) -> None:
        if back:
            first, last = min(back), max(back)
            self._ledger.add_note(
                lines[first].number,
                f"lines {lines[first].number} to {lines[last].number} were taken before, as #{back[first]} to"
                f" #{back[last]}, and have come back; that runs nothing. Add them once more to run them again.",
            )

    def _complain(self, text: str, line_number: int = 0) -> None:
        if text != self._complaint:
            self._complaint = text
            self._ledger.add_note(line_number, text)


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        info = path.stat()
    except OSError:
        return None
    return info.st_mtime_ns, info.st_size, info.st_ino


def _read(path: Path) -> bytes | None | str:
    """The content, None when there is no such file, or a text that says why it can't be read."""
    try:
        with path.open("rb") as handle:
            data = handle.read(FILE_MAX_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        return f"{path.name} can't be read: {error.strerror}"
    if len(data) > FILE_MAX_BYTES:
        return f"{path.name} has more than {FILE_MAX_BYTES // 2**20} MiB and is not read; make it smaller"
    return data


def _command_lines(data: bytes) -> list[_Line]:
    """The lines that hold a command, without the space around it, so that CRLF and indentation are no edits."""
    lines = []
    pieces = data.decode("utf-8-sig", errors="replace").split("\n")
    for number, piece in enumerate(pieces, start=1):
        text = piece.strip().lstrip("\ufeff").strip()[: LINE_MAX + 1]
        if text and not text.startswith("#"):
            lines.append(_Line(number, text, finished=number < len(pieces)))
    return lines


def _needs_project(text: str) -> bool:
    try:
        line: QueueLine | None = parse_line(text)
    except UsageError:
        return False
    return line is not None and line.verb in (Verb.RUN, Verb.SH)


def _common(one: list[TakenLine], other: list[TakenLine]) -> int:
    count = 0
    while count < min(len(one), len(other)) and one[count] == other[count]:
        count += 1
    return count
