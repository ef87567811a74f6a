"""How the runs stand that others come after: on this VM's disk, else in the store, asked in a thread of its own."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from bridgehead.errors import BridgeheadError
from bridgehead.names import RunState
from vm_daemons.home import VmHome
from vm_daemons.run_folder import exit_record, fetched_input
from vm_daemons.scheduler import InputState
from vm_daemons.storage.store import Store

_log = logging.getLogger(__name__)

LOOK_EVERY_S = 5.0


class Inputs:
    """`state` answers at once from what is known; `look` asks the store when it is time. For the loop's thread."""

    def __init__(self, home: VmHome, store: Store, found: Callable[[dict[str, RunState]], None]) -> None:
        self._home = home
        self._store = store
        self._found = found  # called from the thread that asks; hands the answers to the loop, which calls `learn`
        self._states: dict[str, RunState] = {}
        self._wanted: set[str] = set()
        self._asking = False  # one thread at most: a sick mount may hang it
        self._next_look = 0.0

    def state(self, run_id: str) -> InputState:
        for folder in (self._home.run(run_id), fetched_input(self._home, run_id)):
            record = exit_record(folder)
            if record is not None:
                return _judge(record.state)
        if run_id in self._states:
            return _judge(self._states[run_id])
        if not self._store.available:
            return InputState.MISSING
        self._wanted.add(run_id)
        return InputState.PENDING

    def look(self) -> None:
        if not self._wanted or self._asking or time.monotonic() < self._next_look:
            return
        self._asking = True
        threading.Thread(target=self._ask, args=(sorted(self._wanted),), name="inputs", daemon=True).start()

    def learn(self, states: dict[str, RunState]) -> None:
        self._states.update(states)
        self._wanted -= set(states)
        self._asking = False
        self._next_look = time.monotonic() + LOOK_EVERY_S

    def _ask(self, run_ids: list[str]) -> None:
        states = {}
        try:
            for run_id in run_ids:
                record = self._store.exit_record(run_id)
                if record is not None:
                    states[run_id] = record.state
        except (OSError, BridgeheadError) as error:
            _log.warning("the store can't be read: %s", error)
        self._found(states)


def _judge(state: RunState) -> InputState:
    return InputState.READY if state is RunState.DONE else InputState.BROKEN
