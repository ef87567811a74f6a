"""The command daemon against a laptop that tests control: what starts, waits, is answered, and what is not."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from bridgehead import files, names
from bridgehead.errors import NotFoundError, TransferError
from bridgehead.names import FailureClass, RunState
from bridgehead.queue_lines import Verb
from bridgehead.records import AckRecord, Command, Needs, RunRecord
from command_rig import DEAF, ENV, SAVES, SLEEP, Rig
from support import wait_until
from vm_daemons import bridge_link, command_daemon
from vm_daemons.bridge_link import FALLBACK_AFTER, Poller
from vm_daemons.capacity import Capacity
from vm_daemons.home import VmHome
from vm_run_support import SHIP, exit_of, log_of, python, wait_for_log, wait_for_stage

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
        wait_until(lambda: rig.journal_has("finished"), what="the end in the journal")
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
        assert arrived.wait(100)
        (home.payload / "train.py").write_text("print('new payload')")

    monkeypatch.setattr(command_daemon.payload, "sync", sync)
    sync_command, train = rig.command(Verb.SYNC, ""), rig.run("python train.py")
    with rig.daemon():
        rig.laptop.queue(sync_command, train)
        assert asked.wait(100)
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
