"""One run at a time through its life on this VM: prepare, spawn, watch, pick up after a kill, stop, end.

All of it runs in the command daemon's main loop but `_fetch`, which brings things from the store in its own thread.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path

from bridgehead import names
from bridgehead.checkpoints import CheckpointRefused
from bridgehead.errors import (
    BridgeheadError,
    NotFoundError,
    StoreError,
    SupersededError,
    UsageError,
    VerificationError,
)
from bridgehead.names import FailureClass, RunState
from bridgehead.queue_lines import Verb
from bridgehead.records import Command, ExitRecord
from vm_daemons import code_trees, failure, gauges, launch, lifetime, run_folder
from vm_daemons.budget import Budgets
from vm_daemons.client import Rejected
from vm_daemons.home import VmHome
from vm_daemons.journal import Journal
from vm_daemons.lifetime import Deadline
from vm_daemons.storage.store import Store
from vm_daemons.task import Phase, Task

RETRY_S = 10.0  # between tries to bring something from the store
BAD_COPY_TRIES = 5  # a drive may show a file before all of it has arrived
START_ROOM_BYTES = 8 * 2**20  # less, and a stage would die of its first line
MAX_STARTS = 5  # of one attempt whose runner or stage ends unseen again and again


class RunKeeper:
    """Moves tasks from phase to phase; `dirty` says that a waiting one may be able to start now.

    Methods raise OSError when the disk is full or sick; the task is then as before, and they can be called again.
    """

    def __init__(
        self,
        home: VmHome,
        store: Store,
        journal: Journal,
        *,
        hand_over: Callable[[Callable[[], None]], None],  # from any thread: have the loop do this
        report: Callable[[Command], None],
        superseded: Callable[[Command], None],
        handed_over: Callable[[Command], None],  # its task is for the next VM: nothing is answered, nothing is left
        sync: Callable[[], None],  # bring the payload up to date; raises as payload.sync
    ) -> None:
        self.dirty = True
        self._home = home
        self._store = store
        self._journal = journal
        self._hand_over = hand_over
        self._report = report
        self._superseded = superseded
        self._handed_over = handed_over
        self._sync = sync
        self._deadline = Deadline(home)
        self._budgets = Budgets()
        self._dying: dict[str, Path] = {}  # by run id: lost runs whose processes are not all gone

    def is_dying(self, run_id: str) -> bool:
        """Whether processes of an attempt that this VM has lost are still there."""
        return run_id in self._dying

    def bury(self, command: Command) -> bool:
        """End what an attempt that this VM has lost left running; True when there was something."""
        run_dir = self._home.run(command.run_id)
        if not launch.is_running(run_dir) and not launch.stage_lives(run_dir):
            return False
        self._dying[command.run_id] = run_dir
        return True

    def kill_dying(self) -> bool:
        """True while some are left."""
        for run_id, run_dir in list(self._dying.items()):
            if launch.kill(run_dir):
                del self._dying[run_id]
                self.dirty = True
        return bool(self._dying)

    def begin(self, task: Task) -> None:
        """Start a task that waits, at once or after bringing what it needs from the store."""
        command = task.command
        if self.bury(command):
            return
        if command.verb == Verb.RUN and self._deadline.phase() is not lifetime.Phase.OPEN:
            return  # `watch` gives it to the next VM in time
        if not self._has_room(task) or not self._is_kept(task):
            return
        run_folder.open_attempt(self._home, command)
        task.phase = Phase.PREPARING
        if run_folder.needs_store(self._home, command) or self._wants_code(command):
            threading.Thread(target=self._fetch, args=(task,), name=command.run_id, daemon=True).start()
        else:
            self._spawn(task, run_folder.prepare(self._home, self._store, command))

    def watch(self, task: Task) -> ExitRecord | None:
        """Look after a task; how it ended, once all that it made has left this VM."""
        run_dir = self._home.run(task.command.run_id)
        if task.command.verb == Verb.RUN:
            self._mind_the_cap(task, run_dir)
            if task.phase is Phase.RUNNING and not task.stops:  # its cap would make two of a person's one
                self._budgets.mind(run_dir, task.command, lambda: lifetime.rules(self._home.record()))
        if task.phase is Phase.RUNNING:
            self._watch_running(task, run_dir)
        elif task.phase is Phase.LEAVING and run_folder.has_left(run_dir, task.command.attempt):
            return run_folder.exit_record(run_dir)
        return None

    def stop(self, task: Task, command: Command, *, replayed: bool) -> None:
        """Asked once: save and leave. Asked again: killed. The command counts as done when it is in `stops_passed`.

        Only what people ask for counts. One that saves for the next VM, or since its cap is reached, has had its
        signal: the first stop of a person joins that, and ends it here.
        """
        # Before it was killed the daemon may have passed this stop on, and a second one would kill the stage.
        run_dir = self._home.run(task.command.run_id)
        kept = task.phase is Phase.RUNNING and self._joins(task, run_dir)
        sent = (kept or replayed) and (run_dir / names.STOP_REQUEST).exists()
        if task.phase is Phase.RUNNING and not sent:
            task.stops.append(command)
            return
        if task.phase in (Phase.WAITING, Phase.PREPARING):
            self.end_unstarted(task, RunState.STOPPED, FailureClass.STOPPED, "stopped before it started")
        task.stops_passed.append(command)

    def _joins(self, task: Task, run_dir: Path) -> bool:
        handed = lifetime.cancel_handover(run_dir, task.command.attempt)
        return handed or self._budgets.join(run_dir, task.command)

    def lose(self, task: Task) -> None:
        """Another VM or attempt owns it: end its processes and write nothing."""
        if task.phase is Phase.RUNNING:
            self._dying[task.command.run_id] = self._home.run(task.command.run_id)
        task.phase, self.dirty = Phase.GONE, True

    def end_unstarted(self, task: Task, state: RunState, failure: FailureClass, message: str) -> None:
        run_folder.end_unstarted(self._home, task.command, state, failure, message)
        task.phase, self.dirty = Phase.LEAVING, True

    # --- inside ------------------------------------------------------------------------------------

    def _has_room(self, task: Task) -> bool:
        """Whether the disk can take what a stage writes at once; if not, the task waits and is looked at again."""
        _, free_bytes = gauges.disk(self._home.root)
        if free_bytes >= START_ROOM_BYTES:
            return True
        return self._hold(task, f"waits for room on this VM's disk, which has {free_bytes // 2**20} MiB free")

    def _is_kept(self, task: Task) -> bool:
        """Where idle notebooks are taken away nothing new is begun without the cell; what was under way goes on."""
        begins = task.command.verb == Verb.RUN and task.command.attempt == 1 and not self._was_started(task.command)
        if not begins or lifetime.provider() not in lifetime.USUAL_CAP_H or not lifetime.cell_is_silent(self._home):
            return True
        return self._hold(
            task, "waits for the bootstrap cell: it does not run, and this VM may be taken away; run it again"
        )

    def _hold(self, task: Task, text: str) -> bool:
        """False: it is looked at again, and its log says once what it waits for."""
        self.dirty = True
        if task.trouble != text:
            task.trouble = text
            with contextlib.suppress(OSError):
                run_folder.say(run_folder.open_attempt(self._home, task.command), f"--- {text}")
        return False

    def _fetch(self, task: Task) -> None:
        """In a thread of its own: a sick mount may hang it for as long as it likes."""
        try:
            if self._is_first_start(task.command):
                self._refresh_payload(task.command)
            inputs = run_folder.prepare(self._home, self._store, task.command)
            code = self._bring_code(task.command)
        except (OSError, BridgeheadError) as caught:
            error = caught
            self._hand_over(lambda: self._fetch_failed(task, error))
            return
        self._hand_over(lambda: self._spawn(task, inputs, code))

    def _is_first_start(self, command: Command) -> bool:
        """A run that is queued after an edit gets the edited files; one that goes on keeps what it began with."""
        return run_folder.runs_payload(command) and command.attempt == 1 and not self._was_started(command)

    def _was_started(self, command: Command) -> bool:
        """In this attempt, on this VM."""
        entry = self._journal.entry(command)
        return entry is not None and entry.starts > 0

    def _wants_code(self, command: Command) -> bool:
        """Whether the files that it runs have to be put into a folder of their own first."""
        if not run_folder.runs_payload(command):
            return False
        known = run_folder.payload_of(self._home, command)
        return self._is_first_start(command) or not code_trees.is_ready(self._home, known)

    def _bring_code(self, command: Command) -> str:
        """The user's files as the run began with them, however it was edited since; their SHA-256, "" for none."""
        if not run_folder.runs_payload(command) or run_folder.has_ended(self._home, command):
            return ""
        first, started = self._is_first_start(command), self._was_started(command)
        known = "" if first else run_folder.code_to_go_on_with(self._home, command, started=started)
        try:
            if known:
                return code_trees.bring(self._home, self._store, known)
        except (NotFoundError, VerificationError) as error:
            with contextlib.suppress(OSError):
                text = f"--- its files are not to be had as it began with them, so it runs those on the VM: {error}"
                run_folder.say(self._home.run(command.run_id), text)
        return code_trees.make(self._home)

    def _refresh_payload(self, command: Command) -> None:
        """A laptop that is away holds nothing up; one that can't make a payload of what is there now does.

        Raises UsageError then: the files that are on the VM are not what the run was queued with.
        """
        try:
            self._sync()
        except (Rejected, VerificationError) as error:
            raise UsageError(f"its files could not be brought: {error.message}", hint=error.hint) from None
        except (OSError, BridgeheadError) as error:
            with contextlib.suppress(OSError):
                run_folder.say(self._home.run(command.run_id), f"--- runs the files that are on the VM: {error}")

    def _fetch_failed(self, task: Task, error: OSError | BridgeheadError) -> None:
        if task.phase is not Phase.PREPARING:
            return
        if isinstance(error, SupersededError):
            self._superseded(task.command)
            return
        bad_copy = isinstance(error, VerificationError)
        task.bad_copies += bad_copy
        if task.bad_copies >= BAD_COPY_TRIES or isinstance(error, CheckpointRefused):
            self.end_unstarted(task, RunState.FAILED, FailureClass.CHECKPOINT, str(error))
            return
        if isinstance(error, BridgeheadError) and not isinstance(error, StoreError) and not bad_copy:
            self.end_unstarted(task, RunState.FAILED, FailureClass.ENVIRONMENT, str(error))
            return
        if task.trouble != str(error):
            task.trouble = str(error)
            whom = "its files" if isinstance(error, code_trees.Unready) else "the store"
            run_folder.say(self._home.run(task.command.run_id), f"--- waits for {whom}: {error}")
        # Never start from nothing because the store can't be read just now: it is tried until it can be.
        retry = threading.Timer(RETRY_S, self._hand_over, args=(lambda: self._try_again(task),))
        retry.daemon = True
        retry.start()

    def _try_again(self, task: Task) -> None:
        if task.phase is Phase.PREPARING:
            task.phase, self.dirty = Phase.WAITING, True

    def _spawn(self, task: Task, inputs: dict[str, Path], code: str = "") -> None:
        if task.phase is not Phase.PREPARING:
            return  # stopped or lost meanwhile
        if run_folder.has_ended(self._home, task.command):  # so it had before, on another VM
            task.phase, self.dirty = Phase.LEAVING, True
            return
        try:
            if code:
                run_folder.note_payload(self._home, task.command, code)
            self._journal.starting(task.command)
        except OSError:
            task.phase = Phase.WAITING
            raise
        run_dir = self._home.run(task.command.run_id)
        try:
            task.runner = launch.start(self._home, run_dir, inputs)
        except OSError as error:
            message = f"no process could be made: {error.strerror}"
            self.end_unstarted(task, RunState.FAILED, FailureClass.ENVIRONMENT, message)
            return
        task.phase = Phase.RUNNING

    def _watch_running(self, task: Task, run_dir: Path) -> None:
        if task.runner is not None:
            task.runner.poll()  # reaps it
        if not (run_dir / names.RUN_RECORD).exists() and (task.runner is not None or launch.members(run_dir, 0)):
            # With the folder went the lock: it must not be started beside itself.
            if launch.kill(run_dir):
                message = "its run folder was removed while it ran"
                self.end_unstarted(task, RunState.FAILED, FailureClass.USER_ERROR, message)
            return
        self._pass_stop_on(task, run_dir)
        alive = launch.is_running(run_dir)  # asked first: the runner writes its exit record and then goes
        record = run_folder.exit_record(run_dir)
        if record is not None and record.attempt == task.command.attempt:
            self._tell_started(task, record.exit_code is not None)
            task.phase, self.dirty = Phase.LEAVING, True
        elif alive:
            self._tell_started(task, launch.stage_lives(run_dir))
        else:
            self._recover(task, run_dir)

    def _recover(self, task: Task, run_dir: Path) -> None:
        """No runner and no exit record: handed over, or runner, stage or the whole daemon was killed at some moment."""
        command = task.command
        if lifetime.is_handed_over(run_dir, command.attempt):
            self._let_go(task)
        elif launch.stage_lives(run_dir):
            task.runner = launch.start(self._home, run_dir, {}, adopt=True)
        elif not launch.kill(run_dir):  # children of a stage that died together with its runner; asked again then
            return
        elif lifetime.is_handing_over(run_dir, command.attempt):
            lifetime.end_handover(run_dir, command.attempt)
            self._let_go(task)
        elif task.stops or (run_dir / names.STOP_REQUEST).exists():
            self.end_unstarted(task, RunState.STOPPED, FailureClass.STOPPED, "stopped")
        elif command.verb == Verb.SH:
            message = "its runner or the daemon was killed, so nobody knows what it did; it is not repeated by itself"
            self.end_unstarted(task, RunState.FAILED, FailureClass.UNKNOWN_OUTCOME, message)
        else:
            self._start_again(task, run_dir)

    def _start_again(self, task: Task, run_dir: Path) -> None:
        """In the same attempt, from its checkpoint, as long as its budget of retries lasts."""
        entry, spec, attempt = self._journal.entry(task.command), task.command.spec, task.command.attempt
        budget = spec.retries if spec is not None else 0
        ending = self._count_death(task, run_dir, budget)
        used = len(failure.deaths(run_dir, attempt))
        if ending is not None and (not ending.retry or used > budget):
            self._end_dead(task, failure.spent(ending, budget), min(used, budget))
        elif entry is not None and entry.starts >= budget + MAX_STARTS:
            message = f"it was started {entry.starts} times, and each time it was gone before anybody saw how it ended"
            self._end_dead(task, failure.Ending(RunState.FAILED, FailureClass.KILLED, message), used)
        else:
            task.phase, self.dirty = Phase.WAITING, True

    def _count_death(self, task: Task, run_dir: Path, budget: int) -> failure.Ending | None:
        """How it died together with its runner; None when its runner has counted it, or when it never was a process."""
        process = launch.process_record(run_dir)
        attempt = task.command.attempt
        if process is None:
            return None
        runner = (process.runner_pid, process.runner_start)
        if failure.is_noted(run_dir, attempt, runner):
            return None
        ending = failure.judge_unseen(process)
        if ending.retry:
            used = failure.note_death(run_dir, attempt, ending.message, runner)
            if used <= budget:
                run_folder.say(run_dir, f"--- {ending.message}: retry {used} of {budget}")
        return ending

    def _end_dead(self, task: Task, ending: failure.Ending, retries: int) -> None:
        run_folder.end_unstarted(
            self._home, task.command, ending.state, ending.failure, ending.message, retries=retries
        )
        task.phase, self.dirty = Phase.LEAVING, True

    # --- before the VM's end ---------------------------------------------------------------------------

    def _mind_the_cap(self, task: Task, run_dir: Path) -> None:
        """Near the end of this VM a run saves, then saves and leaves; one that has not started is given away."""
        phase, attempt = self._deadline.phase(), task.command.attempt
        if phase is lifetime.Phase.OPEN:
            return
        if task.phase in (Phase.WAITING, Phase.PREPARING) and task.is_ours:
            run_folder.open_attempt(self._home, task.command)
            lifetime.begin_handover(run_dir, attempt)
            lifetime.end_handover(run_dir, attempt)
            run_folder.say(run_dir, "--- this VM is near its end: the next one starts it")
            self._let_go(task)
        elif task.phase is Phase.RUNNING and not (run_dir / names.STOP_REQUEST).exists() and not task.stops:
            lifetime.ask_to_save(run_dir, attempt)
            if phase is lifetime.Phase.HANDING_OVER:
                lifetime.begin_handover(run_dir, attempt)
                launch.request_stop(run_dir)

    def _let_go(self, task: Task) -> None:
        self._handed_over(task.command)
        task.phase, self.dirty = Phase.GONE, True

    def _tell_started(self, task: Task, there: bool) -> None:
        if there and not task.told_started:
            task.told_started = True
            self._journal.started(task.command)
            self._report(task.command)

    def _pass_stop_on(self, task: Task, run_dir: Path) -> None:
        """One signal a turn, and only once the runner has said who it is: the second one kills."""
        if task.stops and launch.request_stop(run_dir):
            task.stops_passed.append(task.stops.pop(0))
