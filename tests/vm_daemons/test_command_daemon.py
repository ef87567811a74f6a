"""The command daemon against a laptop that tests control: what starts, waits, is answered, and what is not."""

from __future__ import annotations

import contextlib
import errno
import json
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bridgehead import checkpoints, files, names
from bridgehead.errors import NotFoundError, SupersededError, TransferError
from bridgehead.names import Ack, FailureClass, RunState
from bridgehead.queue_lines import Verb
from bridgehead.records import AckRecord, Command, ExitRecord, Needs, RunRecord, StageSpec
from support import wait_until
from vm_daemons import bridge_link, command_daemon, run_keeper
from vm_daemons.bridge_link import FALLBACK_AFTER, Poller
from vm_daemons.capacity import Capacity
from vm_daemons.command_daemon import CommandDaemon
from vm_daemons.home import VmHome
from vm_daemons.journal import Journal
from vm_daemons.store import Store
from vm_run_support import SHIP, exit_of, is_gone, kill_tagged, log_of, python, vm_home, wait_for_log, wait_for_stage

SLEEP = python("import time; print('up', flush=True); time.sleep(60)")
WAITS = python("import os, time\nprint('up', flush=True)\nwhile not os.path.exists('go'): time.sleep(0.02)")
SAVES = python(
    "import signal, sys, time\n"
    "signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))\n"
    "print('up', flush=True); time.sleep(60)"
)
DEAF = python(
    "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('up', flush=True); time.sleep(60)"
)
ENV = python("import os, json; print(json.dumps(dict(os.environ)))")


class Laptop:
    """What the daemon sees of the bridge."""

    def __init__(self) -> None:
        self.acks: list[tuple[str, AckRecord]] = []
        self.refuse: Callable[[str, AckRecord], Exception | None] = lambda _id, _record: None
        self._commands: list[Command] = []
        self._news = threading.Condition()

    def queue(self, *commands: Command) -> None:
        with self._news:
            self._commands += commands
            self._news.notify_all()

    def poll(self, after: int, wait_s: float) -> list[Command]:
        with self._news:
            self._news.wait_for(lambda: self._newer(after), min(wait_s, 0.2))
            return self._newer(after)

    def ack(self, command_id: str, record: AckRecord) -> None:
        error = self.refuse(command_id, record)
        if error is not None:
            raise error
        self.acks.append((command_id, record))

    def manifest(self) -> dict[str, object]:
        raise TransferError("this laptop serves no payload")

    def answers(self, command: Command) -> list[str]:
        return [str(record.ack) for command_id, record in self.acks if command_id == command.id]

    def finished(self, command: Command) -> AckRecord:
        def find() -> AckRecord | None:
            found = [record for command_id, record in self.acks if command_id == command.id]
            return next((record for record in found if record.ack is Ack.FINISHED), None)

        return wait_until(find, what=f"the end of {command.run_id or command.verb}")

    def _newer(self, after: int) -> list[Command]:
        return [command for command in self._commands if command.delivery > after]


class Rig:
    """A VM home, a laptop, and one daemon at a time between them."""

    def __init__(self, root: Path, drive: Path | None = None) -> None:
        self.home = vm_home(root, store=drive)
        self.laptop = Laptop()
        self._deliveries = 0

    @contextlib.contextmanager
    def daemon(self, capacity: Capacity | None = None) -> Iterator[CommandDaemon]:
        store = Store(self.home)
        machine = capacity or Capacity(8.0, 64.0, 0.0)
        daemon = CommandDaemon(self.home, self.laptop, store, capacity=machine)  # type: ignore[arg-type]
        thread = threading.Thread(target=daemon.run, name="daemon under test")
        thread.start()
        try:
            yield daemon
        finally:
            daemon.stop()
            thread.join(10)

    def run(self, command: str, *, stage: str = "train", attempt: int = 1, **given: object) -> Command:
        needs = given.pop("needs", Needs())
        spec = StageSpec(stage, command, needs=needs, stop_grace_s=30.0)  # type: ignore[arg-type]
        return self.command(Verb.RUN, stage, spec=spec, attempt=attempt, **given)

    def shell(self, text: str) -> Command:
        return self.command(Verb.SH, text, spec=StageSpec("sh", text))

    def command(self, verb: str, argument: str, **given: object) -> Command:
        self._deliveries += 1
        identity = str(given.pop("id", uuid.uuid4().hex))
        stage = argument if verb == Verb.RUN else verb
        run_id = given.pop("run_id", f"{stage}-{self._deliveries:04d}-{identity[:6]}")
        return Command(
            id=identity,
            seq=self._deliveries,
            delivery=self._deliveries,
            vm_id=str(self.home.record()["vm_id"]),
            verb=verb,
            argument=argument,
            created=0.0,
            run_id=str(run_id) if verb in (Verb.RUN, Verb.SH) else "",
            **given,  # type: ignore[arg-type]
        )

    def dir(self, command: Command) -> Path:
        return self.home.run(command.run_id)

    def mirror(self, command: Command) -> None:
        files.write_json(self.dir(command) / names.MIRRORED, {"v": 1, "attempt": command.attempt})

    def wait_for_exit(self, command: Command) -> ExitRecord:
        wait_until((self.dir(command) / names.EXIT).exists, what=f"the end of {command.run_id}")
        return exit_of(self.dir(command))

    def again(self, command: Command, *, attempt: int | None = None) -> Command:
        """The same command in a new delivery."""
        self._deliveries += 1
        record = {**command.to_json(), "delivery": self._deliveries, "attempt": attempt or command.attempt}
        return Command.from_json(record)

    def clean(self) -> None:
        for run_dir in self.home.runs.iterdir():
            kill_tagged(run_dir)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path / "vm")
    yield rig
    rig.clean()


@pytest.fixture
def drive(tmp_path: Path) -> Path:
    folder = tmp_path / "drive"
    folder.mkdir()
    return folder


# --- from a command to its answers ------------------------------------------------------------------------


def test_a_run_is_accepted_started_and_finished_once_all_has_left_the_vm(rig: Rig) -> None:
    train = rig.run(python("print('hello')"))
    with rig.daemon():
        rig.laptop.queue(train)
        assert rig.wait_for_exit(train).state is RunState.DONE
        wait_until(lambda: rig.laptop.answers(train) == ["accepted", "started"], what="both answers")
        rig.mirror(train)
        last = rig.laptop.finished(train)
    assert (last.state, last.exit_code, last.attempt) == (RunState.DONE, 0, 1)
    assert rig.laptop.answers(train) == ["accepted", "started", "finished"]


def test_run_json_says_what_the_run_is(rig: Rig) -> None:
    train = rig.run(python("pass"))
    with rig.daemon():
        rig.laptop.queue(train)
        rig.wait_for_exit(train)
    record = RunRecord.from_json(files.read_json(rig.dir(train) / names.RUN_RECORD))
    assert (record.run_id, record.stage, record.command_id, record.attempt) == (train.run_id, "train", train.id, 1)
    assert (record.project, record.ship_sha256, record.vm_id) == ("demo", SHIP, rig.home.record()["vm_id"])


def test_a_failed_run_is_answered_with_its_code_and_class(rig: Rig) -> None:
    train = rig.run(python("raise SystemExit(3)"))
    with rig.daemon():
        rig.laptop.queue(train)
        rig.wait_for_exit(train)
        rig.mirror(train)
        last = rig.laptop.finished(train)
    assert (last.state, last.exit_code, last.failure_class) == (RunState.FAILED, 3, FailureClass.USER_ERROR)


def test_a_shell_command_runs(rig: Rig) -> None:
    shell = rig.shell("echo one && echo two >&2")
    with rig.daemon():
        rig.laptop.queue(shell)
        assert rig.wait_for_exit(shell).state is RunState.DONE
    assert log_of(rig.dir(shell)).endswith("one\ntwo\n")


def test_a_command_that_can_not_be_read_is_rejected(rig: Rig) -> None:
    odd = rig.command("dance", "tango")
    with rig.daemon():
        rig.laptop.queue(odd)
        wait_until(lambda: rig.laptop.answers(odd) == ["rejected"], what="the rejection")
    assert "dance" in rig.laptop.acks[0][1].reason


def test_a_command_that_is_delivered_again_does_not_run_again(rig: Rig) -> None:
    shell, after = rig.shell("echo ran"), rig.shell("true")
    with rig.daemon():
        rig.laptop.queue(shell)
        rig.wait_for_exit(shell)
        rig.laptop.queue(rig.again(shell), after)
        rig.wait_for_exit(after)
        wait_until(lambda: rig.laptop.answers(shell).count("accepted") == 2, what="the answers sent again")
    assert log_of(rig.dir(shell)).count("ran") == 1


def test_answers_wait_for_a_laptop_that_is_away_and_keep_their_order(rig: Rig) -> None:
    away = threading.Event()
    away.set()
    rig.laptop.refuse = lambda _id, _record: TransferError("away") if away.is_set() else None
    train = rig.run(python("pass"))
    with rig.daemon():
        rig.laptop.queue(train)
        rig.wait_for_exit(train)
        rig.mirror(train)
        away.clear()
        rig.laptop.finished(train)
    assert rig.laptop.answers(train) == ["accepted", "started", "finished"]


def test_answers_that_could_not_be_sent_are_sent_by_the_next_daemon(rig: Rig) -> None:
    rig.laptop.refuse = lambda _id, _record: TransferError("away")
    train = rig.run(python("pass"))
    with rig.daemon():
        rig.laptop.queue(train)
        rig.wait_for_exit(train)
        rig.mirror(train)
        wait_until(lambda: _journal_has(rig.home, "finished"), what="the end in the journal")
    rig.laptop.refuse = lambda _id, _record: None
    with rig.daemon():
        rig.laptop.finished(train)
    assert rig.laptop.answers(train) == ["accepted", "started", "finished"]


def test_an_answer_that_the_laptop_refuses_holds_up_no_other(rig: Rig) -> None:
    first, second = rig.shell("true"), rig.shell("true")
    rig.laptop.refuse = lambda identity, _record: NotFoundError("no such command") if identity == first.id else None
    with rig.daemon():
        rig.laptop.queue(first, second)
        wait_until(lambda: "started" in rig.laptop.answers(second), what="the second one's answers")


# --- inputs and room ----------------------------------------------------------------------------------------


def test_a_run_starts_when_what_it_comes_after_is_done_and_gets_its_folder(rig: Rig) -> None:
    first = rig.run(python("print('up', flush=True)"))
    second = rig.run(ENV, stage="tune", inputs={"train": first.run_id})
    with rig.daemon():
        rig.laptop.queue(first, second)
        assert rig.wait_for_exit(second).state is RunState.DONE
    env = json.loads(log_of(rig.dir(second)).splitlines()[-1])
    assert json.loads(env[names.ENV_INPUTS]) == {"train": str(rig.dir(first))}
    assert exit_of(rig.dir(first)).ended <= exit_of(rig.dir(second)).started


def test_all_that_come_after_a_failed_run_fail_and_name_it(rig: Rig) -> None:
    first = rig.run(python("raise SystemExit(1)"))
    second = rig.run(ENV, stage="tune", inputs={"train": first.run_id})
    third = rig.run(ENV, stage="ship", inputs={"tune": second.run_id})
    with rig.daemon():
        rig.laptop.queue(first, second, third)
        ended = rig.wait_for_exit(third)
    assert exit_of(rig.dir(second)).failure_class == FailureClass.UPSTREAM
    assert first.run_id in exit_of(rig.dir(second)).message
    assert (ended.state, ended.exit_code, ended.failure_class) == (RunState.FAILED, None, FailureClass.UPSTREAM)
    assert second.run_id in ended.message


def test_an_input_that_nobody_can_bring_fails_the_run(rig: Rig) -> None:
    lonely = rig.run(ENV, inputs={"train": "train-0099-ffffff"})
    with rig.daemon():
        rig.laptop.queue(lonely)
        ended = rig.wait_for_exit(lonely)
    assert ended.failure_class == FailureClass.ENVIRONMENT
    assert "train-0099-ffffff" in ended.message


def test_runs_share_the_machine_while_their_needs_fit(rig: Rig) -> None:
    one, two, three = (rig.run(SLEEP, stage=stage, needs=Needs(cpus=1.0)) for stage in ("a", "b", "c"))
    with rig.daemon(Capacity(2.0, 8.0, 0.0)):
        rig.laptop.queue(one, two, three)
        wait_for_stage(rig.dir(one))
        wait_for_stage(rig.dir(two))
        wait_until(lambda: rig.laptop.answers(three) == ["accepted"], what="the third one accepted")
        assert not rig.dir(three).exists()
        rig.laptop.queue(rig.command(Verb.STOP, one.run_id))
        wait_for_stage(rig.dir(three))


def test_more_gpu_memory_than_there_is_fails_with_words(rig: Rig) -> None:
    big = rig.run(SLEEP, needs=Needs(gpu_memory_gb=16.0))
    with rig.daemon():
        rig.laptop.queue(big)
        ended = rig.wait_for_exit(big)
        rig.mirror(big)
        assert rig.laptop.finished(big).failure_class == FailureClass.ENVIRONMENT
    assert "this VM has no GPU" in ended.message


# --- stop -----------------------------------------------------------------------------------------------


def test_a_running_stage_is_asked_to_stop(rig: Rig) -> None:
    train = rig.run(SAVES)
    with rig.daemon():
        rig.laptop.queue(train)
        wait_for_log(rig.dir(train), "up")
        stop = rig.command(Verb.STOP, train.run_id)
        rig.laptop.queue(stop)
        ended = rig.wait_for_exit(train)
        assert rig.laptop.finished(stop).state == RunState.DONE
    assert (ended.state, ended.exit_code) == (RunState.STOPPED, 143)


def test_a_second_stop_kills(rig: Rig) -> None:
    train = rig.run(DEAF)
    with rig.daemon():
        rig.laptop.queue(train)
        wait_for_log(rig.dir(train), "up")
        rig.laptop.queue(rig.command(Verb.STOP, train.run_id))
        wait_until((rig.dir(train) / names.STOP_REQUEST).exists, what="the first stop")
        rig.laptop.queue(rig.command(Verb.STOP, train.run_id))
        ended = rig.wait_for_exit(train)
    assert (ended.state, ended.signal) == (RunState.STOPPED, "SIGKILL")


def test_a_run_that_waits_is_stopped_at_once(rig: Rig) -> None:
    first = rig.run(SLEEP)
    second = rig.run(SLEEP, stage="tune", inputs={"train": first.run_id})
    with rig.daemon():
        rig.laptop.queue(first, second)
        wait_for_stage(rig.dir(first))
        rig.laptop.queue(rig.command(Verb.STOP, second.run_id))
        ended = rig.wait_for_exit(second)
    assert (ended.state, ended.message) == (RunState.STOPPED, "stopped before it started")


def test_a_stop_for_a_run_that_is_not_here_says_so(rig: Rig) -> None:
    stop = rig.command(Verb.STOP, "train-0042-abcdef")
    with rig.daemon():
        rig.laptop.queue(stop)
        last = rig.laptop.finished(stop)
    assert last.state == RunState.FAILED
    assert "train-0042-abcdef" in last.reason


# --- sync -------------------------------------------------------------------------------------------------


def test_a_run_after_a_sync_waits_for_the_new_payload(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    arrived = threading.Event()
    asked = threading.Event()

    def sync(_client: object, home: VmHome) -> None:
        asked.set()
        assert arrived.wait(10)
        (home.payload / "train.py").write_text("print('new payload')")

    monkeypatch.setattr(command_daemon.payload, "sync", sync)
    sync_command, train = rig.command(Verb.SYNC, ""), rig.run("python train.py")
    with rig.daemon():
        rig.laptop.queue(sync_command, train)
        assert asked.wait(10)
        wait_until(lambda: rig.laptop.answers(train) == ["accepted"], what="the run accepted")
        arrived.set()
        assert rig.wait_for_exit(train).state is RunState.DONE
        assert rig.laptop.finished(sync_command).state == RunState.DONE
    assert "new payload" in log_of(rig.dir(train))


def test_a_run_gets_the_files_as_they_are_when_it_starts(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    def sync(_client: object, home: VmHome) -> None:
        (home.payload / "train.py").write_text("print('edited')")

    (rig.home.payload / "train.py").write_text("print('old')")
    monkeypatch.setattr(command_daemon.payload, "sync", sync)
    train = rig.run("python train.py")
    with rig.daemon():
        rig.laptop.queue(train)
        assert rig.wait_for_exit(train).state is RunState.DONE
    assert "edited" in log_of(rig.dir(train))


def test_a_run_that_goes_on_after_a_kill_keeps_the_files_it_began_with(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    syncs: list[VmHome] = []
    monkeypatch.setattr(command_daemon.payload, "sync", lambda _client, home: syncs.append(home))
    train = rig.run(
        python(
            "import os, signal\n"
            "if os.path.exists('again'): raise SystemExit\n"
            "open('again', 'w').close()\n"
            "for pid in (os.getppid(), os.getpid()): os.kill(pid, signal.SIGKILL)"
        )
    )
    with rig.daemon():
        rig.laptop.queue(train)
        assert rig.wait_for_exit(train).state is RunState.DONE
    assert (rig.home.payload / "again").exists() and len(syncs) == 1


def test_a_laptop_that_is_away_does_not_keep_a_run_from_starting(rig: Rig) -> None:
    (rig.home.payload / "train.py").write_text("print('what was here')")
    train = rig.run("python train.py")
    with rig.daemon():
        rig.laptop.queue(train)
        assert rig.wait_for_exit(train).state is RunState.DONE
    assert "what was here" in log_of(rig.dir(train)) and "serves no payload" in log_of(rig.dir(train))


def test_a_stage_that_removes_its_run_folder_runs_once_and_ends(rig: Rig, tmp_path: Path) -> None:
    code = (
        "import os, shutil, time\n"
        f"open({str(tmp_path / 'starts')!r}, 'a').write('x')\n"
        "shutil.rmtree(os.environ['BRIDGEHEAD_RUN_DIR']); time.sleep(60)"
    )
    train = rig.run(python(code))
    with rig.daemon():
        rig.laptop.queue(train)
        ended = rig.wait_for_exit(train)
    assert ended.state is RunState.FAILED and "removed" in ended.message
    assert (tmp_path / "starts").read_text() == "x"


def test_a_sync_that_fails_says_why(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    def sync(_client: object, _home: VmHome) -> None:
        raise TransferError("the laptop is away")

    monkeypatch.setattr(command_daemon.payload, "sync", sync)
    sync_command = rig.command(Verb.SYNC, "")
    with rig.daemon():
        rig.laptop.queue(sync_command)
        last = rig.laptop.finished(sync_command)
    assert (last.state, last.reason) == (RunState.FAILED, "the laptop is away")


# --- lost to another VM ---------------------------------------------------------------------------------------


def test_a_revoked_run_is_killed_and_not_spoken_of_again(rig: Rig) -> None:
    train = rig.run(SLEEP)
    with rig.daemon():
        rig.laptop.queue(train)
        stage = wait_for_stage(rig.dir(train))
        wait_until(lambda: "started" in rig.laptop.answers(train), what="the start")
        files.write_json(rig.home.state / names.VM_REVOKED, [{"run_id": train.run_id, "attempt": 1}])
        wait_until(lambda: is_gone(stage), what="the stage's end")
        wait_until(lambda: _journal_has(rig.home, "abandoned"), what="the entry in the journal")
    assert not (rig.dir(train) / names.EXIT).exists()
    assert rig.laptop.answers(train) == ["accepted", "started"]


def test_an_unsigned_superseded_ends_nothing_that_runs(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever holds the tunnel could forge it; only the signed hints take a run away."""
    monkeypatch.setattr(bridge_link, "DISPUTE_PAUSE_S", 0.05)
    disputed = threading.Event()
    disputed.set()
    refused: list[str] = []

    def refuse(_id: str, record: AckRecord) -> Exception | None:
        if record.ack is not Ack.STARTED or not disputed.is_set():
            return None
        refused.append(str(record.ack))
        return SupersededError("another VM has it")

    rig.laptop.refuse = refuse
    train = rig.run(WAITS)
    with rig.daemon():
        rig.laptop.queue(train)
        wait_for_log(rig.dir(train), "up")
        wait_until(lambda: len(refused) >= 3, what="the answer sent again")
        disputed.clear()
        (rig.home.payload / "go").touch()
        assert rig.wait_for_exit(train).state is RunState.DONE
        rig.mirror(train)
        rig.laptop.finished(train)


def test_a_waiting_run_in_dispute_does_not_start_until_the_bridge_agrees(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bridge_link, "DISPUTE_PAUSE_S", 0.05)
    first = rig.run(WAITS)
    second = rig.run(ENV, stage="tune", inputs={"train": first.run_id})
    disputed = threading.Event()
    disputed.set()
    refused: list[str] = []

    def refuse(identity: str, _record: AckRecord) -> Exception | None:
        if identity != second.id or not disputed.is_set():
            return None
        refused.append(identity)
        return SupersededError("another VM has it")

    rig.laptop.refuse = refuse
    with rig.daemon():
        rig.laptop.queue(first, second)
        wait_for_log(rig.dir(first), "up")
        wait_until(lambda: refused, what="the dispute")
        (rig.home.payload / "go").touch()
        rig.wait_for_exit(first)
        before = len(refused)
        wait_until(lambda: len(refused) > before + 2, what="more answers sent again")
        assert not rig.dir(second).exists()
        disputed.clear()
        assert rig.wait_for_exit(second).state is RunState.DONE


def test_a_new_attempt_on_the_same_vm_replaces_the_old_one(rig: Rig) -> None:
    train = rig.run(SLEEP)
    with rig.daemon():
        rig.laptop.queue(train)
        old = wait_for_stage(rig.dir(train))
        rig.laptop.queue(rig.again(train, attempt=2))
        wait_for_log(rig.dir(train), "--- attempt 2")
        assert is_gone(old)
        assert wait_for_stage(rig.dir(train)) != old
    assert RunRecord.from_json(files.read_json(rig.dir(train) / names.RUN_RECORD)).attempt == 2


def test_what_an_abandoned_run_left_running_is_ended_by_the_next_daemon(rig: Rig) -> None:
    train = rig.run(SLEEP)
    with rig.daemon():
        rig.laptop.queue(train)
        stage = wait_for_stage(rig.dir(train))
    Journal(rig.home.journal).abandoned(train)
    with rig.daemon():
        wait_until(lambda: is_gone(stage), what="the stage's end")


# --- the store --------------------------------------------------------------------------------------------


RESUMES = python(
    "import bridgehead\n"
    "run = bridgehead.current_run()\n"
    "found = run.latest_checkpoint()\n"
    "print('from', found.step if found else None, flush=True)"
)


def _mirrored_checkpoint(root: Path, drive: Path, command: Command, step: int) -> None:
    """What another VM left in the store."""
    home = vm_home(root, store=drive)
    run_dir = home.run(command.run_id)
    run_dir.mkdir()
    record = RunRecord(command.run_id, "train", "demo", command.id, 1, "vm-dead", 0.0, StageSpec("train", "x"))
    files.write_json(run_dir / names.RUN_RECORD, record.to_json())
    with checkpoints.staging(run_dir / names.CHECKPOINTS) as staged:
        (staged / "state.pt").write_bytes(b"state")
        checkpoints.commit(staged, run_dir / names.CHECKPOINTS, step, {})
    Store(home).mirror(run_dir)


def test_a_later_attempt_resumes_from_the_store(tmp_path: Path, drive: Path) -> None:
    rig = Rig(tmp_path / "vm", drive)
    train = rig.run(RESUMES, attempt=2)
    _mirrored_checkpoint(tmp_path / "dead", drive, train, 40)
    with rig.daemon():
        rig.laptop.queue(train)
        assert rig.wait_for_exit(train).state is RunState.DONE, log_of(rig.dir(train))
    assert "from 40" in log_of(rig.dir(train))
    assert "checkpoint 40 restored from the store and checked" in log_of(rig.dir(train))


def test_a_later_attempt_without_any_checkpoint_says_that_it_starts_anew(tmp_path: Path, drive: Path) -> None:
    rig = Rig(tmp_path / "vm", drive)
    train = rig.run(RESUMES, attempt=2)
    with rig.daemon():
        rig.laptop.queue(train)
        rig.wait_for_exit(train)
    assert "the store holds no checkpoint: attempt 2 starts from the beginning" in log_of(rig.dir(train))


def test_a_store_that_can_not_be_read_is_waited_for(
    tmp_path: Path, drive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_keeper, "RETRY_S", 0.05)
    rig = Rig(tmp_path / "vm", drive)
    train = rig.run(RESUMES, attempt=2)
    _mirrored_checkpoint(tmp_path / "dead", drive, train, 40)
    real, sick = Store.restore, threading.Event()
    sick.set()

    def restore(self: Store, run_id: str, run_dir: Path) -> object:
        if sick.is_set():
            raise OSError(errno.ENOTCONN, "Transport endpoint is not connected")
        return real(self, run_id, run_dir)

    monkeypatch.setattr(Store, "restore", restore)
    with rig.daemon():
        rig.laptop.queue(train)
        wait_for_log(rig.dir(train), "--- waits for the store")
        sick.clear()
        assert rig.wait_for_exit(train).state is RunState.DONE
    assert "from 40" in log_of(rig.dir(train))


def test_when_no_checkpoint_in_the_store_verifies_the_run_fails_and_does_not_start_anew(
    tmp_path: Path, drive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_keeper, "RETRY_S", 0.01)
    rig = Rig(tmp_path / "vm", drive)
    train = rig.run(RESUMES, attempt=2)
    _mirrored_checkpoint(tmp_path / "dead", drive, train, 40)
    next(drive.rglob("*state.pt")).write_bytes(b"stale")
    with rig.daemon():
        rig.laptop.queue(train)
        ended = rig.wait_for_exit(train)
    assert ended.failure_class == FailureClass.ENVIRONMENT
    assert "none of 1 checkpoints in the store verifies" in ended.message
    assert "from None" not in log_of(rig.dir(train))


def test_the_output_of_a_run_that_ended_on_another_vm_comes_from_the_store(tmp_path: Path, drive: Path) -> None:
    rig = Rig(tmp_path / "vm", drive)
    first = rig.run("x")
    other = vm_home(tmp_path / "dead", store=drive)
    run_dir = other.run(first.run_id)
    (run_dir / names.ARTIFACTS).mkdir(parents=True)
    (run_dir / names.ARTIFACTS / "encoder.bin").write_bytes(b"encoder")
    record = RunRecord(first.run_id, "train", "demo", first.id, 1, "vm-dead", 0.0, StageSpec("train", "x"))
    files.write_json(run_dir / names.RUN_RECORD, record.to_json())
    files.write_json(run_dir / names.EXIT, ExitRecord(first.run_id, 1, RunState.DONE, 0).to_json())
    Store(other).mirror(run_dir)
    code = "import bridgehead; print((bridgehead.current_run().input('train') / 'artifacts/encoder.bin').read_text())"
    second = rig.run(python(code), stage="tune", inputs={"train": first.run_id})
    with rig.daemon():
        rig.laptop.queue(second)
        assert rig.wait_for_exit(second).state is RunState.DONE, log_of(rig.dir(second))
    assert log_of(rig.dir(second)).endswith("encoder\n")
    assert not rig.home.run(first.run_id).exists(), "it would be taken for a run of this VM"


# --- polling -------------------------------------------------------------------------------------------------


def test_polling_falls_back_to_short_polls_and_comes_back() -> None:
    waits: list[float] = []
    fails = True

    class Flaky:
        def poll(self, after: int, wait_s: float) -> list[Command]:
            waits.append(wait_s)
            if fails:
                raise TransferError("away")
            return []

        def ack(self, command_id: str, record: AckRecord) -> None:
            raise AssertionError

    poller = Poller(Flaky(), 0, lambda commands: None)
    pauses = [poller._poll_once() for _ in range(FALLBACK_AFTER + 1)]
    assert pauses[0] < 1 < pauses[FALLBACK_AFTER - 2] <= bridge_link.MOST_PAUSE_S
    assert pauses[-1] == names.FALLBACK_POLL_S
    assert waits[-1] == 0
    fails = False
    assert [poller._poll_once() for _ in range(3)] == [0, 0, 0]
    assert waits[-3:] == [0, names.LONG_POLL_S, names.LONG_POLL_S]


def _journal_has(home: VmHome, step: str) -> bool:
    return any(json.loads(line)["step"] == step for line in home.journal.read_text().splitlines())
