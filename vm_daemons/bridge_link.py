"""The two threads of the command daemon that talk to the laptop: one asks for commands, one brings answers."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from bridgehead import names
from bridgehead.errors import BridgeheadError, NotFoundError, SupersededError, UsageError
from bridgehead.records import AckRecord, Command
from vm_daemons.journal import Entry, Journal, Step

_log = logging.getLogger(__name__)

FIRST_PAUSE_S = 0.2
MOST_PAUSE_S = 15.0
DISPUTE_PAUSE_S = 15.0  # until a superseded answer is sent again
FALLBACK_AFTER = 8  # failures in a row, about 40 s; then a short poll every 30 s until one works


class Client(Protocol):
    """What is needed of BridgeClient."""

    def poll(self, after: int, wait_s: float) -> list[Command]: ...

    def ack(self, command_id: str, record: AckRecord) -> None: ...


Wait = Callable[[threading.Event, float], object]  # a pause until the event is set, or until something else calls


class Poller:
    """Long polls for ever and hands what came to `deliver`; each command is asked for again until it is journalled."""

    def __init__(
        self,
        client: Client,
        after: int,
        deliver: Callable[[list[Command]], None],
        wait: Wait = threading.Event.wait,
    ) -> None:
        self._client = client
        self._wait = wait
        self._after = after
        self._deliver = deliver
        self._failures = 0
        self.silent_since: float | None = time.monotonic()  # the bridge has not answered since; None: it does
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="poll", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Returns at once; the poll that is under way ends by itself, and what it brings is not taken."""
        self._stop.set()

    def _run(self) -> None:
        while not self._stop.is_set():
            pause_s = self._poll_once()
            if pause_s:
                self._wait(self._stop, pause_s)

    def _poll_once(self) -> float:
        """Seconds to wait before the next poll."""
        short = self._failures >= FALLBACK_AFTER
        try:
            # Not a long one while the bridge is silent: only an answer tells that it is there again.
            at_once = short or self.silent_since is not None
            commands = self._client.poll(self._after, 0.0 if at_once else names.LONG_POLL_S)
        except BridgeheadError as error:
            self._failures += 1
            self.silent_since = self.silent_since or time.monotonic()
            if self._failures in (1, FALLBACK_AFTER):
                _log.warning("polling failed %d times: %s", self._failures, error.message)
            return names.FALLBACK_POLL_S if self._failures >= FALLBACK_AFTER else pause_after(self._failures)
        self.silent_since = None
        if self._failures:
            _log.info("polling works again")
        # Where only short polls get through, the next long one that fails leads straight back to them.
        self._failures = FALLBACK_AFTER - 1 if short else 0
        if commands and not self._stop.is_set():
            self._after = max(self._after, *(command.delivery for command in commands))
            self._deliver(commands)
        return 0.0


class Outbox:
    """Brings each answer to the laptop, in order for each command, as often as it takes. The journal is its memory.

    "Superseded" is an unsigned answer, so it ends nothing: it is asked again later, and `disputed` and `settled` hear
    of it. That another VM owns a run is known when the signed hints say so.
    """

    def __init__(
        self,
        client: Client,
        vm_id: str,
        journal: Journal,
        *,
        disputed: Callable[[Command], None],
        settled: Callable[[Command], None],
        wait: Wait = threading.Event.wait,
    ) -> None:
        self._client = client
        self._wait = wait
        self._vm_id = vm_id
        self._journal = journal
        self._disputed = disputed
        self._settled = settled
        self._unknown: set[str] = set()  # commands that this laptop never queued
        self._due: deque[Entry] = deque()
        self._later: deque[tuple[float, Entry]] = deque()  # those in dispute, and when to ask again
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="acks", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._wake.set()

    def put(self, entry: Entry) -> None:
        """Send what this entry owes the bridge."""
        self._due.append(entry)
        self._wake.set()

    def _run(self) -> None:
        failures = 0
        while not self._stop.is_set():
            self._wake.wait(max(0.0, self._later[0][0] - time.monotonic()) if self._later else None)
            self._wake.clear()
            while self._later and self._later[0][0] <= time.monotonic():
                self._due.append(self._later.popleft()[1])
            while self._due and not self._stop.is_set():
                if self._send(self._due[0]):
                    failures = 0
                    self._due.popleft()
                    continue
                failures += 1
                self._wait(self._stop, pause_after(failures))

    def _send(self, entry: Entry) -> bool:
        """False when it has to be tried again at once."""
        command = entry.command
        for record in owed(entry, self._vm_id):
            try:
                self._client.ack(command.id, record)
            except SupersededError:
                self._disputed(command)
                self._later.append((time.monotonic() + DISPUTE_PAUSE_S, entry))
                return True
            except (NotFoundError, UsageError) as error:  # the bridge knows no such command, or refuses this answer
                if command.id not in self._unknown:
                    _log.warning("the answer %s to %s is refused: %s", record.ack, command.id, error.message)
                self._unknown.add(command.id)
            except BridgeheadError as error:
                _log.info("an answer is kept for later: %s", error.message)
                return False
            self._journal.acked(command, record.ack)
        self._settled(command)
        return True


def owed(entry: Entry, vm_id: str) -> list[AckRecord]:
    """The answers that the bridge has not confirmed, in order."""
    if entry.step in (Step.ABANDONED, Step.HANDED_OVER):
        return []
    command = entry.command
    records = [AckRecord(vm_id, names.Ack.ACCEPTED, command.attempt, at=time.time())]
    if entry.started:
        records.append(AckRecord(vm_id, names.Ack.STARTED, command.attempt, at=time.time()))
    if entry.answer is not None:
        alone = entry.answer.ack in (names.Ack.REJECTED, names.Ack.UNKNOWN)  # it never was this VM's
        records = [entry.answer] if alone else [*records, entry.answer]
    return [record for record in records if str(record.ack) not in entry.acked]


def pause_after(failures: int) -> float:
    """Grows from 0.2 s to 15 s, with jitter so that many clients don't knock in step."""
    return min(MOST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** (failures - 1)) * random.uniform(0.7, 1.0)
