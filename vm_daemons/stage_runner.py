"""`python -m vm_daemons.stage_runner [--adopt] RUN_DIR`: one stage, from its start to its exit record.

The runner does nothing while the stage works: the stage writes straight into `log`, and the runner sleeps in waitid.
It survives the daemon that started it. With --adopt it takes over a stage whose runner was killed.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import errno
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from bridgehead import checkpoints, files, names, processes
from bridgehead.errors import UsageError
from bridgehead.names import FailureClass, RunState
from bridgehead.os_errors import means_full
from bridgehead.queue_lines import Verb
from bridgehead.records import ExitRecord, ProcessRecord, RunRecord
from vm_daemons import budget, failure, launch, lifetime, outputs, post_mortem, preflight, run_status
from vm_daemons.failure import Ending
from vm_daemons.home import VmHome
from vm_daemons.stage_command import StageCommand, stage_command

LEFTOVER_GRACE_S = 2.0  # for processes that outlive their stage, from SIGTERM to SIGKILL
EXIT_TRIES = 60  # once a second
_PR_SET_CHILD_SUBREAPER = 36


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m vm_daemons.stage_runner")
    parser.add_argument(launch.ADOPT, action="store_true", help="wait for a stage whose runner is gone")
    parser.add_argument("run_dir", type=Path)
    args = parser.parse_args(argv)
    record = RunRecord.from_json(files.read_json(args.run_dir / names.RUN_RECORD))
    runner = Runner(args.run_dir, record)
    if args.adopt:
        runner.adopt()
    else:
        runner.run()
    return 0


class Runner:
    """Starts the stage, passes a stop on, sees it end, clears up behind it and writes exit.json."""

    def __init__(self, run_dir: Path, record: RunRecord) -> None:
        self._dir = run_dir
        self._record = record
        self._started = time.time()
        self._stage_pid = 0
        self._stage_start = 0  # in ticks, to know the process again
        self._oom_kills = failure.oom_kills()  # before the stage, to tell afterwards whether memory ran out
        self._disk_full = False
        self._oom_rose = False
        self._stops = 0
        self._kill_at: float | None = None  # monotonic; set once a stop was asked for

    def run(self) -> None:
        """Start the stage and stay until it has ended."""
        self._listen()
        home = VmHome(self._dir.parent.parent)
        if not failure.deaths(self._dir, self._record.attempt):  # else the last line says which retry this is
            self._say(f"--- attempt {self._record.attempt} on {self._record.vm_id}")
        try:
            command = stage_command(self._record, home, self._dir, os.environ)
        except UsageError as error:
            self._could_not_start(error.message)
            return
        if self._refused_by_preflight(home):
            return
        try:
            stage = self._spawn(command)
        except OSError as error:
            self._could_not_start(_why_not_started(error, command))
            return
        self._stage_pid, self._stage_start = stage.pid, processes.start_ticks(stage.pid)
        _adopt_orphans()
        self._write_process()
        if self._stops:  # it came while there was nothing to pass it on to
            self._pass_stop_on()
        # WNOWAIT: until the leftovers are gone the stage stays a zombie, so that its session's number stays its own.
        os.waitid(os.P_PID, stage.pid, os.WEXITED | os.WNOWAIT)
        self._disk_full = files.is_full(self._dir)  # as it was when the stage ended
        leftovers = self._clear_up()
        _, status, usage = os.wait4(stage.pid, 0)
        stage.returncode = os.waitstatus_to_exitcode(status)
        self._write_exit(stage.returncode, usage.ru_maxrss * 1024, leftovers)

    def adopt(self) -> None:
        """Wait for a stage that is not our child. Nobody can tell its exit code, so only a stop or an sh ends here.

        For any other run no exit record is written: the daemon starts the attempt again, and it resumes.
        """
        self._listen()
        process = launch.process_record(self._dir)
        if process is None:
            return
        self._started, self._oom_kills = process.started, process.oom_kills
        self._stage_pid, self._stage_start = process.stage_pid, process.stage_start
        self._write_process()
        self._say("--- the stage runner was killed; a new one watches over the stage")
        _wait_for_stranger(self._stage_pid, self._stage_start)
        leftovers = self._clear_up()
        if self._stop_asked():
            if not self._handed_over():
                self._end(Ending(RunState.STOPPED, FailureClass.STOPPED, "stopped"), leftovers=leftovers)
        elif self._record.spec.name == Verb.SH:
            message = "its runner was killed, so nobody saw how it ended; it is not repeated by itself"
            self._end(Ending(RunState.FAILED, FailureClass.UNKNOWN_OUTCOME, message), leftovers=leftovers)
        elif not (ending := failure.judge_unseen(process)).retry:
            self._end(ending, leftovers=leftovers)
        else:
            # Results and a last step are no proof that it ended well: a gate writes results.json and then fails by its
            # exit code, and a script may fail in what comes after. To start it again costs little, since it resumes
            # at its newest checkpoint; to call a failed run done would let the next stage go on with what it made.
            wrote = files.plain_stat(self._dir / names.RESULTS)
            fresh = wrote is not None and wrote.st_mtime >= self._started
            seen = f"; {names.RESULTS} is there, which is no proof that it ended well" if fresh else ""
            self._say(
                "--- the stage ended while its runner was not its parent, so nobody knows its exit code"
                f"{seen}: the attempt is started again and resumes at its newest checkpoint"
            )
            with contextlib.suppress(OSError):  # it may have ended well, so the daemon counts no death
                (self._dir / names.PROCESS).unlink()

    # --- start ---------------------------------------------------------------------------------------

    def _refused_by_preflight(self, home: VmHome) -> bool:
        found = preflight.examine(self._record, home, self._dir)
        for line in preflight.log_lines(found):
            self._say(f"--- {line}")
        refused = preflight.refusal(found)
        if refused is not None:
            self._could_not_start(refused.line())
        return refused is not None

    def _spawn(self, command: StageCommand) -> subprocess.Popen[bytes]:
        log = os.open(self._dir / names.LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            return subprocess.Popen(
                command.argv,
                cwd=command.cwd,
                env=command.env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        finally:
            os.close(log)

    def _write_process(self) -> None:
        record = ProcessRecord(
            boot_id=processes.boot_id(),
            runner_pid=os.getpid(),
            runner_start=processes.start_ticks(os.getpid()),
            stage_pid=self._stage_pid,
            stage_start=self._stage_start,
            session=self._stage_pid,
            started=self._started,
            oom_kills=self._oom_kills,
        )
        try:
            files.write_json(self._dir / names.PROCESS, record.to_json())
        except OSError as error:  # a full disk: the stage goes on, and may well be what frees it
            self._say(f"--- {names.PROCESS} could not be written: {error.strerror}")

    # --- stop ----------------------------------------------------------------------------------------

    def _listen(self) -> None:
        signal.signal(signal.SIGTERM, self._on_stop)
        signal.signal(signal.SIGALRM, self._on_grace_over)

    def _on_stop(self, _signal: int, _frame: FrameType | None) -> None:
        self._stops += 1
        if self._stops == 1:
            (self._dir / names.STOP_REQUEST).touch()
        if self._stage_pid:
            self._pass_stop_on()

    def _pass_stop_on(self) -> None:
        if self._stops > 1:
            self._kill_all()
            return
        # Only to the leader: a training process whose data loader workers die under it can't save. What is left of
        # the session when the leader has gone gets its own SIGTERM and the rest of the time.
        grace_s = max(0.0, self._record.spec.stop_grace_s)
        self._kill_at = time.monotonic() + grace_s
        signal.setitimer(signal.ITIMER_REAL, max(grace_s, 0.001))
        processes.send(self._stage_pid, signal.SIGTERM, started_ticks=self._stage_start)

    def _on_grace_over(self, _signal: int, _frame: FrameType | None) -> None:
        self._kill_all()

    def _kill_all(self) -> None:
        self._kill_at = time.monotonic()
        for pid in self._left():
            _signal(pid, signal.SIGKILL)

    def _stop_asked(self) -> bool:
        return self._stops > 0 or (self._dir / names.STOP_REQUEST).exists()

    # --- end -----------------------------------------------------------------------------------------

    def _left(self) -> list[int]:
        """All of the run but this process: by tag, by session, and whoever fell to this one as the subreaper."""
        found = {*launch.members(self._dir, self._stage_pid), *processes.descendants(os.getpid())}
        return sorted(found - {os.getpid()})

    def _clear_up(self) -> list[str]:
        """End what outlived the stage: SIGTERM, then SIGKILL after 2 s, or after what a stop left of its grace."""
        left = self._left()
        named = [f"{pid} {processes.command_line(pid)}" for pid in left]
        for pid in left:
            _signal(pid, signal.SIGTERM)
        deadline = time.monotonic() + LEFTOVER_GRACE_S
        while left and time.monotonic() < (self._kill_at if self._kill_at is not None else deadline):
            time.sleep(0.02)
            left = self._left()
        deadline = time.monotonic() + LEFTOVER_GRACE_S
        while left and time.monotonic() < deadline:
            for pid in left:
                _signal(pid, signal.SIGKILL)
            time.sleep(0.02)
            left = self._left()
        signal.setitimer(signal.ITIMER_REAL, 0)
        return named + self._gpu_strangers()

    def _gpu_strangers(self) -> list[str]:
        """Who holds a GPU since this stage ran and can't be told to be its own: named, and left alone."""
        pids = [pid for pid in launch.gpu_holders() if not launch.is_of_a_run(pid)]
        fresh = [pid for pid in pids if processes.start_ticks(pid) > self._stage_start > 0]
        return [
            f"{pid} {processes.command_line(pid)} (holds a GPU and is not known as ours: left alone)" for pid in fresh
        ]

    def _write_exit(self, code: int, peak_bytes: int, leftovers: list[str]) -> None:
        """`code` is as subprocess has it: negative for a signal."""
        oom = failure.OomCount(self._oom_kills, failure.oom_kills())
        self._oom_rose = oom.rose
        said = run_status.last_words(self._dir, self._record.attempt)
        stop, full = self._stop_asked(), self._disk_full
        ending = failure.judge(code, stop_asked=stop, oom=oom, peak_bytes=peak_bytes, said=said, disk_full=full)
        if ending.state is RunState.STOPPED and self._handed_over():
            return
        if code == names.CHECKPOINT_EXIT_CODE and not self._stop_asked() and self._only_the_store_helps():
            return
        used, budget = len(failure.deaths(self._dir, self._record.attempt)), self._budget()
        if ending.retry and used < budget and self._noted(ending):
            for line in leftovers:
                self._say(f"--- outlived it and was ended: {line}")
            self._say(f"--- {ending.message}: retry {used + 1} of {budget}{failure.when_again(ending)}")
            return
        self._end(failure.spent(ending, used), code, leftovers)

    def _only_the_store_helps(self) -> bool:
        """True when no checkpoint on this disk verifies: no end, for the daemon brings the store's and starts again."""
        if not checkpoints.all_damaged(self._dir / names.CHECKPOINTS):
            return False
        self._say("--- no checkpoint on this VM's disk verifies: the newest in the store is brought, if there is one")
        with contextlib.suppress(OSError):  # no death of the stage's own, so none is counted
            (self._dir / names.PROCESS).unlink()
        return True

    def _budget(self) -> int:
        """How often it may be started again; a shell command never is, since nobody knows what it did."""
        return 0 if self._record.spec.name == Verb.SH else self._record.spec.retries

    def _noted(self, ending: failure.Ending) -> bool:
        runner = (os.getpid(), processes.start_ticks(os.getpid()))
        # A death that can't be counted would make the budget endless, so then it is the end.
        return _persist(
            lambda: failure.note_death(self._dir, self._record.attempt, ending.message, runner),
            give_up=lambda error: not means_full(error),
        )

    def _handed_over(self) -> bool:
        """True when it stopped because this VM is near its end: then it has not ended, and gets no exit record."""
        attempt = self._record.attempt
        if not lifetime.is_handing_over(self._dir, attempt):
            return False
        self._say("--- it has stopped here and goes on on the next VM")
        _persist(lambda: lifetime.end_handover(self._dir, attempt))
        return True

    def _could_not_start(self, message: str) -> None:
        self._say(f"--- could not be started: {message}")
        self._end(Ending(RunState.FAILED, FailureClass.ENVIRONMENT, f"could not be started: {message}"))

    def _end(self, ending: Ending, code: int | None = None, leftovers: list[str] | None = None) -> None:
        why = budget.reason(self._dir) if ending.state is RunState.STOPPED else ""
        if why:  # nobody asked: its cap of hours or money did
            ending = Ending(ending.state, FailureClass.TIME_LIMIT, ending.message)
        _, left = outputs.find(self._dir)
        for output, cause in left.items():
            self._say(f"--- stays on the VM: {output!r}: {cause}")
        record = ExitRecord(
            run_id=self._record.run_id,
            attempt=self._record.attempt,
            state=ending.state,
            exit_code=code if code is None or code >= 0 else 128 - code,
            signal=failure.signal_name(code or 0),
            failure_class=str(ending.failure),
            message="; ".join(filter(None, (ending.message, why, outputs.told(left)))),
            started=self._started,
            ended=time.time(),
            leftovers=leftovers or [],
            retries=len(failure.deaths(self._dir, self._record.attempt)),
        )
        post_mortem.announce(self._dir, oom_killed=self._oom_rose, disk_full=self._disk_full)
        _persist(lambda: files.write_json(self._dir / names.EXIT, record.to_json()))
        post_mortem.start(self._dir)

    def _say(self, line: str) -> None:
        with contextlib.suppress(OSError):
            files.append_line(self._dir / names.LOG, line, durable=False)


def _persist(write: Callable[[], object], give_up: Callable[[OSError], bool] = lambda _error: False) -> bool:
    """On a full disk it is tried for a minute: somebody may make room. False when that did not help."""
    for _ in range(EXIT_TRIES):
        try:
            write()
            return True
        except OSError as error:
            if give_up(error):
                return False
        time.sleep(1.0)
    return False


def _adopt_orphans() -> None:
    """Become the parent of whatever the stage orphans, however it hides: own session, emptied environment.

    prctl(PR_SET_CHILD_SUBREAPER); where that can't be had, tag and session still find most.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _wait_for_stranger(pid: int, started_ticks: int) -> None:
    """Return when a process that is not our child has ended."""
    try:
        fd = os.pidfd_open(pid)
    except OSError as error:
        if error.errno == errno.ESRCH:
            return
        while processes.is_alive(pid, started_ticks):  # a kernel without pidfd
            time.sleep(0.5)
        return
    try:
        while processes.is_alive(pid, started_ticks):  # asked after the fd was opened, so the pid can't be another's
            select.select([fd], [], [], 60.0)
    finally:
        os.close(fd)


def _signal(pid: int, sig: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, sig)


def _why_not_started(error: OSError, command: StageCommand) -> str:
    if not command.cwd.is_dir():
        return f"the folder {command.cwd} is not there"
    word = command.argv[0]
    if error.errno == errno.ENOENT:
        return f"command not found: {word}"
    if error.errno == errno.EACCES:
        return f"{word} is not executable"
    return f"{word}: {error.strerror}"


if __name__ == "__main__":
    sys.exit(main())
