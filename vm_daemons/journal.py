"""What the command daemon has promised: one JSON line for each step of each command, fsynced before it acts on it.

    {"v": 1, "step": "accepted", "id": "…", "attempt": 1, "at": …, "command": {…}}
    {"v": 1, "step": "starting", "id": "…", "attempt": 1, "at": …}

A command is known by its id and attempt. One that is in the journal is never acted on twice; the same id with a higher
attempt (this VM lost the run and got it back, or took it over from another) is a new entry.

A copy of the journal lies in the store, where another VM reads it when this one has died. So each command in it is
signed with the pairing's key: whoever can write to the store can't have a VM run what the laptop never queued.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from bridgehead import files, names
from bridgehead.errors import PairingError, UsageError
from bridgehead.records import AckRecord, Command

_log = logging.getLogger(__name__)


class Step(StrEnum):
    """accepted → starting → started → finished; abandoned at any time; acked beside them."""

    ACCEPTED = "accepted"  # written before the bridge is told so
    STARTING = "starting"  # written before the process is made; more than one when a run was started again
    STARTED = "started"
    FINISHED = "finished"  # nothing is left to do but to tell the bridge; holds the answer
    ABANDONED = "abandoned"  # another VM or attempt owns it now
    HANDED_OVER = "handed_over"  # this VM is near its end: the run is for the next one, and nothing is answered here
    ACKED = "acked"  # the bridge has this answer


_LAST = frozenset({Step.FINISHED, Step.ABANDONED, Step.HANDED_OVER})


@dataclass
class Entry:
    """Where one attempt of a command stands."""

    command: Command
    step: Step = Step.ACCEPTED
    starts: int = 0
    started: bool = False
    answer: AckRecord | None = None
    acked: set[str] = field(default_factory=set)

    @property
    def is_over(self) -> bool:
        return self.step in _LAST


class Journal:
    """Append-only, replayed when opened, safe from several threads. Writing raises OSError and then changes nothing.

    `sign` makes the signature of a command's JSON for those who read a copy; "" when it can't.
    """

    def __init__(self, path: Path, *, sign: Callable[[dict[str, Any]], str] | None = None) -> None:
        self._path = path
        self._sign = sign
        self._lock = threading.Lock()
        self._state = _State()
        path.parent.mkdir(parents=True, exist_ok=True)
        self._replay()

    @property
    def highest_delivery(self) -> int:
        """What to ask the bridge to continue after."""
        return self._state.highest_delivery

    def entries(self) -> list[Entry]:
        """All entries in the order in which they were accepted."""
        with self._lock:
            return list(self._state.entries.values())

    def entry(self, command: Command) -> Entry | None:
        """The entry of this attempt of a command, None when it was never accepted."""
        with self._lock:
            return self._state.entries.get((command.id, command.attempt))

    def seen(self, command_id: str, attempt: int = 1) -> bool:
        """Whether this attempt, or a later one of the same command, has been accepted."""
        with self._lock:
            return self._state.attempts.get(command_id, 0) >= attempt

    def newest(self, command_id: str) -> Entry | None:
        """The entry of the highest attempt of a command that was accepted here."""
        with self._lock:
            return self._state.entries.get((command_id, self._state.attempts.get(command_id, 0)))

    def accept(self, commands: Iterable[Command]) -> list[Command]:
        """Write down the new ones among `commands` with one fsync and return them; the others are noted only."""
        fresh: dict[str, Command] = {}
        lines = []
        for command in sorted(commands, key=lambda item: item.delivery):
            new = not self.seen(command.id, command.attempt) and command.id not in fresh
            if new:
                fresh[command.id] = command
            extra = self._whole(command) if new else {"delivery": command.delivery}
            lines.append(_line(Step.ACCEPTED, command, extra))
        self._append(lines, commands=fresh)
        return list(fresh.values())

    def starting(self, command: Command) -> None:
        self._append([_line(Step.STARTING, command)])

    def started(self, command: Command) -> None:
        self._append([_line(Step.STARTED, command)])

    def finished(self, command: Command, answer: AckRecord) -> None:
        self._append([_line(Step.FINISHED, command, {"answer": answer.to_json()})])

    def abandoned(self, command: Command) -> None:
        self._append([_line(Step.ABANDONED, command)])

    def handed_over(self, command: Command) -> None:
        self._append([_line(Step.HANDED_OVER, command)])

    def acked(self, command: Command, ack: names.Ack) -> None:
        """Not fsynced: sending an answer twice does no harm."""
        self._append([_line(Step.ACKED, command, {"ack": str(ack)})], durable=False)

    # --- inside ------------------------------------------------------------------------------------

    def _whole(self, command: Command) -> dict[str, Any]:
        told = command.to_json()
        signature = self._sign(told) if self._sign is not None else ""
        return {"command": told, "sig": signature} if signature else {"command": told}

    def _append(
        self, lines: list[dict[str, Any]], *, durable: bool = True, commands: Mapping[str, Command] | None = None
    ) -> None:
        if not lines:
            return
        with self._lock:
            size_bytes = self._path.stat().st_size
            try:
                files.append_line(self._path, "\n".join(json.dumps(line) for line in lines), durable=durable)
            except OSError:
                with contextlib.suppress(OSError):  # a full disk: leave no torn line for the next append to join
                    os.truncate(self._path, size_bytes)
                raise
            for line in lines:
                self._state.apply(line, (commands or {}).get(line["id"]))

    def _replay(self) -> None:
        self._path.touch(mode=0o600)
        data = self._path.read_bytes()
        whole = data.rfind(b"\n") + 1
        if whole < len(data):  # torn by a kill: it was never acted on, since the fsync comes first
            os.truncate(self._path, whole)
        self._state.read(data[:whole], lambda line: None)


def read_copy(data: bytes, verify: Callable[[dict[str, Any]], None]) -> list[Entry]:
    """The entries of another VM's journal; `verify` raises PairingError for an "accepted" line of a forged command."""
    state = _State()
    state.read(data[: data.rfind(b"\n") + 1], verify)
    return list(state.entries.values())


class _State:
    """What the lines of a journal add up to."""

    def __init__(self) -> None:
        self.entries: dict[tuple[str, int], Entry] = {}
        self.attempts: dict[str, int] = {}  # command id -> its highest accepted attempt
        self.highest_delivery = 0

    def read(self, data: bytes, verify: Callable[[dict[str, Any]], None]) -> None:
        """Lines that can't be read, or that `verify` refuses, are passed over."""
        passed = 0
        for raw in data.splitlines():
            try:
                line = json.loads(raw)
                if "command" in line:
                    verify(line)
                self.apply(line)
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError, UsageError, PairingError):
                passed += 1
        if passed:
            _log.warning("passed over %d lines of a journal that can't be read or were not signed by us", passed)

    def apply(self, line: dict[str, Any], command: Command | None = None) -> None:
        """`command` saves reading back what was written this moment."""
        step, key = Step(line["step"]), (str(line["id"]), int(line["attempt"]))
        if step is Step.ACCEPTED:
            self._accepted(line, key, command)
            return
        entry = self.entries[key]
        if step is Step.ACKED:
            entry.acked.add(line["ack"])
            return
        if step is Step.STARTING:
            entry.starts += 1
        entry.started = entry.started or step is Step.STARTED
        if step is Step.FINISHED:
            entry.answer = AckRecord.from_json(line["answer"])
        entry.step = step

    def _accepted(self, line: dict[str, Any], key: tuple[str, int], command: Command | None) -> None:
        if "command" not in line:  # delivered again: the bridge may have lost our answers, so they go out again
            self.highest_delivery = max(self.highest_delivery, int(line["delivery"]))
            if key in self.entries:
                self.entries[key].acked.clear()
            return
        command = command or Command.from_json(line["command"])
        if (command.id, command.attempt) != key:
            raise UsageError("a line whose command is another one")
        self.highest_delivery = max(self.highest_delivery, command.delivery)
        self.entries[key] = Entry(command)
        self.attempts[command.id] = max(self.attempts.get(command.id, 0), command.attempt)


def _line(step: Step, command: Command, extra: dict[str, Any] | None = None) -> dict[str, Any]:
    at = round(time.time(), 3)
    head = {"v": names.RECORD_VERSION, "step": str(step), "id": command.id, "attempt": command.attempt, "at": at}
    return {**head, **(extra or {})}
