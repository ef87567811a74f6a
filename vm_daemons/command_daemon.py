"""`python -m vm_daemons.command_daemon`: takes commands from the laptop's queue and sees each run through.

One main loop owns all state; the threads around it (polling, answers, slow work with the store) only hand things to it.
It may be killed at any moment: what it has promised is in the journal, what runs holds the lock of its run folder.
"""

from __future__ import annotations

import logging
import os
import queue
import sys
import threading
import time
from collections import deque
from collections.abc import Callable

from bridgehead import files, names, paths
from bridgehead.errors import BridgeheadError
from bridgehead.names import RunState
from bridgehead.queue_lines import Verb
from bridgehead.records import AckRecord, Command, ExitRecord
from vm_daemons import asked_release, beats, key_rotation, outputs, payload, run_folder
from vm_daemons.address import Patience
from vm_daemons.bridge_link import Outbox, Poller
from vm_daemons.capacity import Capacity, machine
from vm_daemons.client import BridgeClient
from vm_daemons.home import VmHome
from vm_daemons.inputs import Inputs
from vm_daemons.journal import Journal, Step
from vm_daemons.peers import Peers, signer
from vm_daemons.run_keeper import RunKeeper
from vm_daemons.scheduler import InputState, Waiting, plan
from vm_daemons.storage import store_choice
from vm_daemons.storage.store import Store
from vm_daemons.takeover import TakeOver
from vm_daemons.task import Phase, Proof, Task

_log = logging.getLogger(__name__)

SPAWNED_TICK_S = 0.03  # until the new process has said who it is
BUSY_TICK_S = 0.25
IDLE_TICK_S = 2.0


def main() -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    home = VmHome.from_environment()
    home.create()
    threading.excepthook = _die
    CommandDaemon(home, BridgeClient(home), Store(home)).run()
    return 0


def _die(args: threading.ExceptHookArgs) -> None:
    """A daemon with a thread missing would look alive; the cell's heartbeat starts a dead one again."""
    _log.critical("a thread died", exc_info=args.exc_value)
    os._exit(1)


class CommandDaemon:
    """`run` works until `stop`; `step` is one turn of the loop and returns how long it may sleep."""

    def __init__(self, home: VmHome, client: BridgeClient, store: Store, *, capacity: Capacity | None = None) -> None:
        self._home = home
        self._client = client
        self._store = store
        self._capacity = capacity
        self._journal = Journal(home.journal, sign=signer(home))
        self._vm_id = str(home.record()["vm_id"])
        self._tasks: dict[str, Task] = {}  # by command id; runs and shell commands that are not over
        self._syncs: dict[str, Command] = {}  # under way
        self._events: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()  # what threads ask the loop to do
        self._undigested: list[Command] = []  # delivered, and not yet in the journal
        self._fresh: deque[Command] = deque()  # in the journal, and not yet looked at
        self._revoked_stamp = 0
        self._wake = threading.Event()
        self._stopping = False
        self._keeper = RunKeeper(
            home,
            store,
            self._journal,
            hand_over=self._hand_over,
            report=self._report,
            superseded=self._contest,
            handed_over=self._let_go,
            sync=lambda: _sync(client, home),
        )
        self._inputs = Inputs(home, store, self._when_inputs_found)
        self._outbox = Outbox(
            client,
            self._vm_id,
            self._journal,
            disputed=self._when_disputed,
            settled=self._when_settled,
            wait=Patience(home).wait,
        )
        self._poller = Poller(client, self._journal.highest_delivery, self._when_delivered, Patience(home).wait)
        self._take_over = TakeOver(
            home,
            self._journal,
            Peers(home, lambda: store_choice.choose(home)),
            self._tasks,
            has_store=lambda: store.available,
            silent_since=lambda: self._poller.silent_since,
            hand_over=self._hand_over,
            begin=self._take,
            report=self._report,
            abandon=self._abandon,
            changed=self._look_again,
        )
        self._replay()

    def run(self) -> None:
        self._outbox.start()
        self._poller.start()
        self._take_over.start()
        while not self._stopping:
            beats.beat(self._home, names.COMMAND_DAEMON)
            try:
                pause_s = self.step()
            except OSError as error:  # a full or sick disk; what could not be written down is tried again
                _log.error("disk trouble: %s", error)
                self._keeper.dirty, pause_s = True, IDLE_TICK_S
            self._wake.wait(pause_s)
            self._wake.clear()

    def stop(self) -> None:
        """Leave the loop. Stages go on."""
        self._stopping = True
        self._take_over.stop()
        self._poller.stop()
        self._outbox.stop()
        self._wake.set()

    def step(self) -> float:
        while not self._events.empty():
            action = self._events.get()
            try:
                action()
            except OSError:
                self._events.put(action)
                raise
        self._accept()
        self._read_revoked()
        self._take_over.step()
        dying = self._keeper.kill_dying()
        for task in list(self._tasks.values()):
            record = self._keeper.watch(task)
            self._answer_stops(task)
            if record is not None:
                self._finish(task, record)
        self._start_what_may()
        return BUSY_TICK_S if dying else self._pause_s()

    # --- what comes in -------------------------------------------------------------------------------

    def _when_delivered(self, commands: list[Command]) -> None:
        self._hand_over(lambda: self._undigested.extend(commands))

    def _when_disputed(self, command: Command) -> None:
        self._hand_over(lambda: self._dispute(command, disputed=True))

    def _when_settled(self, command: Command) -> None:
        task = self._tasks.get(command.id)
        if task is not None and (task.disputed or task.proof is Proof.TOLD):
            self._hand_over(lambda: self._settle(command))

    def _when_inputs_found(self, states: dict[str, RunState]) -> None:
        self._hand_over(lambda: self._learn(states))

    def _learn(self, states: dict[str, RunState]) -> None:
        self._inputs.learn(states)
        self._keeper.dirty = self._keeper.dirty or bool(states)

    def _dispute(self, command: Command, *, disputed: bool) -> None:
        task = self._tasks.get(command.id)
        if task is not None and task.command.attempt == command.attempt:
            task.disputed, self._keeper.dirty = disputed, True

    def _settle(self, command: Command) -> None:
        self._dispute(command, disputed=False)
        self._take_over.settled(command)

    def _look_again(self) -> None:
        self._keeper.dirty = True

    def _contest(self, command: Command) -> None:
        self._take_over.contest(command)

    def _hand_over(self, action: Callable[[], None]) -> None:
        self._events.put(action)
        self._wake.set()

    def _accept(self) -> None:
        if self._undigested:
            again = [item for item in self._undigested if self._journal.seen(item.id, item.attempt)]
            self._fresh.extend(self._journal.accept(self._undigested))
            self._undigested = []
            for command in again:  # delivered again: perhaps our answers were lost
                self._take_over.told(command)
                self._report(command)
        while self._fresh:
            self._take(self._fresh[0])
            self._fresh.popleft()

    def _take(self, command: Command, *, replayed: bool = False) -> None:
        """Act on a command that is in the journal and not over."""
        if command.verb == Verb.STOP:
            self._stop_run(command, replayed=replayed)
        elif command.verb == Verb.SYNC:
            self._report(command)
            self._sync(command)
        elif command.verb == Verb.RELEASE:
            self._ask_for_release(command)
        elif command.verb == Verb.SH and command.former_vm:  # begun elsewhere: it is never started a second time
            reason = f"{command.former_vm} is dead, and nobody knows what it did"
            self._answer(command, names.Ack.UNKNOWN, reason=reason)
        elif command.verb == Verb.SH and (reason := self._refuses_shell(command)):
            self._answer(command, names.Ack.REJECTED, reason=reason)
        elif command.verb in (Verb.RUN, Verb.SH) and command.spec is not None and paths.is_run_id(command.run_id):
            former = self._tasks.get(command.id)
            if former is not None:  # this VM lost the run and got it back; its old attempt may not go on
                self._abandon(former.command)
            task = self._tasks[command.id] = Task(command)
            entry = self._journal.entry(command)
            self._take_over.admit(task, accepted=entry is not None and bool(entry.acked or entry.starts))
            self._keeper.dirty = True
            self._report(command)
        else:
            self._answer(command, names.Ack.REJECTED, reason=f"this VM can't read the command {command.verb!r}")

    def _ask_for_release(self, command: Command) -> None:
        """From here on runs save and leave for the next VM, and the cell gives this one back once all is safe."""
        entry = self._journal.entry(command)
        if not asked_release.ask(self._home, command):
            self._answer(command, names.Ack.FINISHED, state=RunState.DONE, reason="the VM was given back")
            return
        if entry is not None and not entry.started:
            self._journal.started(command)
        self._keeper.dirty = True
        self._report(command)

    def _refuses_shell(self, command: Command) -> str:
        """Why not, "" when it may run. One that was begun before it was switched off goes on."""
        entry = self._journal.entry(command)
        return "" if entry is not None and entry.starts else key_rotation.refuses_shell(self._home)

    def _read_revoked(self) -> None:
        path = self._home.state / names.VM_REVOKED
        try:
            stamp = path.stat().st_mtime_ns
        except FileNotFoundError:
            return
        if stamp == self._revoked_stamp:
            return
        self._revoked_stamp = stamp
        listed = files.read_json(path)
        for item in listed if isinstance(listed, list) else []:
            for task in list(self._tasks.values()):
                if task.command.run_id == item.get("run_id") and task.command.attempt <= int(item.get("attempt", 0)):
                    self._abandon(task.command)

    def _replay(self) -> None:
        """Take up what an earlier daemon left. What was being started or running is looked at like any running one."""
        for entry in self._journal.entries():
            if self._journal.seen(entry.command.id, entry.command.attempt + 1):
                continue
            if entry.step is Step.ABANDONED:
                self._keeper.bury(entry.command)
                continue
            if entry.is_over:
                self._outbox.put(entry)
                continue
            self._take(entry.command, replayed=True)
            task = self._tasks.get(entry.command.id)
            if task is not None and entry.step is not Step.ACCEPTED:
                task.phase, task.told_started = Phase.RUNNING, entry.started

    # --- start ---------------------------------------------------------------------------------------

    def _start_what_may(self) -> None:
        waiting = [task for task in self._tasks.values() if task.phase is Phase.WAITING and not self._held_back(task)]
        if waiting:
            self._inputs.look()
        if not waiting or not self._keeper.dirty:
            return
        self._keeper.dirty = False
        running = [task.needs for task in self._tasks.values() if task.phase in (Phase.PREPARING, Phase.RUNNING)]
        items = [
            Waiting(task.command.id, task.command.run_id, task.needs, task.command.inputs)
            for task in sorted(waiting, key=lambda item: item.command.seq)
        ]
        unfinished = {task.command.run_id for task in self._tasks.values() if task.phase is not Phase.LEAVING}
        if self._capacity is None:
            self._capacity = machine()
        decided = plan(
            items,
            running,
            self._capacity,
            lambda run_id: InputState.PENDING if run_id in unfinished else self._inputs.state(run_id),
        )
        for refusal in decided.refuse:
            task = self._tasks[refusal.key]
            self._keeper.end_unstarted(task, RunState.FAILED, refusal.failure_class, refusal.message)
        for key in decided.start:
            self._keeper.begin(self._tasks[key])

    def _held_back(self, task: Task) -> bool:
        """A run after a sync in the queue gets the new payload; one whose old attempt is still dying waits for that."""
        after_sync = any(sync.seq < task.command.seq for sync in self._syncs.values())
        unproven = task.proof is not Proof.GIVEN or bool(task.contested_at)
        return after_sync or unproven or task.disputed or self._keeper.is_dying(task.command.run_id)

    # --- end -----------------------------------------------------------------------------------------

    def _stop_run(self, command: Command, *, replayed: bool) -> None:
        task = next((task for task in self._tasks.values() if task.command.run_id == command.argument), None)
        if task is None:
            reason = f"{command.argument} is not running or waiting on this VM"
            self._answer(command, names.Ack.FINISHED, state=RunState.FAILED, reason=reason)
            return
        self._report(command)
        self._keeper.stop(task, command, replayed=replayed)

    def _answer_stops(self, task: Task) -> None:
        if task.phase is not Phase.RUNNING:  # it ended before they could be passed on
            task.stops_passed += task.stops
            task.stops = []
        while task.stops_passed:
            self._answer(task.stops_passed[0], names.Ack.FINISHED, state=RunState.DONE)
            task.stops_passed.pop(0)

    def _finish(self, task: Task, record: ExitRecord) -> None:
        run_dir = self._home.run(task.command.run_id)
        stays = outputs.told_refused(run_dir, run_folder.refused(run_dir, record.attempt))
        self._answer(
            task.command,
            names.Ack.FINISHED,
            state=record.state,
            reason="; ".join(filter(None, (record.message, stays))),
            exit_code=record.exit_code,
            failure_class=record.failure_class,
        )
        del self._tasks[task.command.id]
        task.phase, self._keeper.dirty = Phase.GONE, True

    def _answer(
        self,
        command: Command,
        ack: names.Ack,
        *,
        state: str = "",
        reason: str = "",
        exit_code: int | None = None,
        failure_class: str = "",
    ) -> None:
        record = AckRecord(
            self._vm_id, ack, command.attempt, reason, exit_code, str(state), failure_class, round(time.time(), 3)
        )
        self._journal.finished(command, record)
        self._report(command)

    def _abandon(self, command: Command) -> None:
        """Another VM or attempt owns it: end its processes, write nothing, answer nothing."""
        task = self._tasks.get(command.id)
        if task is None or task.command.attempt != command.attempt:
            return
        self._journal.abandoned(command)
        del self._tasks[command.id]
        self._keeper.lose(task)
        self._answer_stops(task)
        _log.warning("%s, attempt %d, belongs to another VM now", command.run_id, command.attempt)

    def _let_go(self, command: Command) -> None:
        """This VM is near its end and the run is for the next one: nothing is answered, and it is not over."""
        self._journal.handed_over(command)
        self._tasks.pop(command.id, None)

    # --- inside ------------------------------------------------------------------------------------

    def _sync(self, command: Command) -> None:
        self._syncs[command.id] = command
        threading.Thread(target=self._sync_payload, args=(command,), name="sync", daemon=True).start()

    def _sync_payload(self, command: Command) -> None:
        try:
            told = payload.sync(self._client, self._home)
        except (OSError, BridgeheadError) as error:
            text = str(error)
            self._hand_over(lambda: self._synced(command, RunState.FAILED, text))
            return
        stays = str((told or {}).get("stays", ""))
        self._hand_over(lambda: self._synced(command, RunState.DONE, stays))

    def _synced(self, command: Command, state: RunState, reason: str) -> None:
        self._answer(command, names.Ack.FINISHED, state=state, reason=reason)
        self._syncs.pop(command.id, None)
        self._keeper.dirty = True

    def _report(self, command: Command) -> None:
        """Let the laptop know how the command stands."""
        entry, task = self._journal.entry(command), self._tasks.get(command.id)
        if task is not None and task.proof is Proof.NEEDED and task.command.attempt == command.attempt:
            return  # to accept it is to say that its former VM is dead
        if entry is not None:
            self._outbox.put(entry)

    def _pause_s(self) -> float:
        if self._undigested:
            return BUSY_TICK_S
        if any(task.phase is Phase.RUNNING and not task.told_started for task in self._tasks.values()):
            return SPAWNED_TICK_S
        return BUSY_TICK_S if self._tasks else IDLE_TICK_S


def _sync(client: BridgeClient, home: VmHome) -> None:
    payload.sync(client, home)


if __name__ == "__main__":
    sys.exit(main())
