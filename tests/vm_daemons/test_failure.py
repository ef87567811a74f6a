"""Failure classes by evidence: exit codes, signals, and the kernel's own count of out-of-memory kills."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bridgehead import names, processes
from bridgehead.failures import page
from bridgehead.failures.classes import facts
from bridgehead.names import FailureClass, RunState
from bridgehead.records import ProcessRecord
from support import wait_until
from vm_daemons import failure, launch
from vm_daemons.failure import OomCount
from vm_run_support import exit_of, kill_tagged, log_of, python, run_folder, vm_home

NONE_COUNTED, ONE_COUNTED, UNKNOWN = OomCount(3, 3), OomCount(3, 4), OomCount(-1, -1)


@pytest.mark.parametrize(
    ("code", "oom", "wanted", "retry"),
    [
        (1, NONE_COUNTED, FailureClass.USER_ERROR, False),
        (names.GATE_FAILED_EXIT_CODE, NONE_COUNTED, FailureClass.GATE, False),
        (names.NAN_LOSS_EXIT_CODE, NONE_COUNTED, FailureClass.NAN_LOSS, False),
        (names.CHECKPOINT_EXIT_CODE, NONE_COUNTED, FailureClass.CHECKPOINT, False),
        (-signal.SIGKILL, ONE_COUNTED, FailureClass.HOST_OOM, False),
        (137, ONE_COUNTED, FailureClass.HOST_OOM, False),  # its shell tells of it
        (-signal.SIGKILL, NONE_COUNTED, FailureClass.KILLED, True),
        (-signal.SIGKILL, UNKNOWN, FailureClass.KILLED, True),
        (-signal.SIGSEGV, ONE_COUNTED, FailureClass.KILLED, True),
        (-40, NONE_COUNTED, FailureClass.KILLED, True),  # a real-time signal without a name
        (143, NONE_COUNTED, FailureClass.KILLED, True),  # somebody else's SIGTERM: it saved and left
    ],
)
def test_each_end_has_its_class(code: int, oom: OomCount, wanted: FailureClass, *, retry: bool) -> None:
    ending = failure.judge(code, stop_asked=False, oom=oom)
    assert (ending.state, ending.failure, ending.retry) == (RunState.FAILED, wanted, retry)


def test_what_was_asked_for_is_no_failure() -> None:
    assert failure.judge(143, stop_asked=True, oom=NONE_COUNTED).failure == FailureClass.STOPPED
    assert failure.judge(-signal.SIGKILL, stop_asked=True, oom=NONE_COUNTED).state is RunState.STOPPED


def test_a_stage_that_says_why_it_fails_is_believed_during_a_stop_too() -> None:
    ending = failure.judge(names.NAN_LOSS_EXIT_CODE, stop_asked=True, oom=NONE_COUNTED)
    assert ending.failure == FailureClass.NAN_LOSS


def test_the_message_says_what_is_known_of_the_memory_and_no_more() -> None:
    told = {oom: failure.judge(-signal.SIGKILL, stop_asked=False, oom=oom).message for oom in (NONE_COUNTED, UNKNOWN)}
    assert "no out-of-memory kill was counted" in told[NONE_COUNTED]
    assert "is not known" in told[UNKNOWN]


@pytest.mark.parametrize("code", [names.NAN_LOSS_EXIT_CODE, names.CHECKPOINT_EXIT_CODE])
def test_the_stages_last_words_are_in_the_message_of_an_end_that_it_explains(code: int) -> None:
    ended = {said: failure.judge(code, stop_asked=False, oom=NONE_COUNTED, said=said).message for said in ("", "lr: 1")}
    assert ended["lr: 1"].endswith(": lr: 1") and ended[""].endswith("; its log says why")


def test_the_last_words_of_an_end_that_it_does_not_explain_are_its_own_affair() -> None:
    assert failure.judge(1, stop_asked=False, oom=NONE_COUNTED, said="epoch 3").message == "exit code 1"


def test_a_worker_that_ran_out_of_memory_is_named_beside_the_stages_own_error() -> None:
    ending = failure.judge(1, stop_asked=False, oom=ONE_COUNTED)
    assert ending.failure == FailureClass.USER_ERROR and "lack of memory" in ending.message


def test_deaths_are_counted_per_attempt_and_each_start_once(tmp_path: Path) -> None:
    assert failure.note_death(tmp_path, 1, "SIGKILL", (10, 1)) == 1
    assert failure.note_death(tmp_path, 1, "SIGKILL", (10, 1)) == 1
    assert failure.note_death(tmp_path, 1, "SIGKILL", (11, 2)) == 2
    assert failure.deaths(tmp_path, 2) == []


def test_a_count_that_can_not_be_read_is_none(tmp_path: Path) -> None:
    (tmp_path / names.DEATHS).write_text('{"attempt": 1, "deaths": 7}')
    assert failure.deaths(tmp_path, 1) == []


def test_killed_with_its_runner_it_is_judged_by_the_count_at_its_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failure, "oom_kills", lambda: 5)
    ended = {count: failure.judge_unseen(ProcessRecord("boot", 1, 1, oom_kills=count)) for count in (4, 5)}
    assert ended[4].failure == FailureClass.HOST_OOM and not ended[4].retry
    assert ended[5].failure == FailureClass.KILLED and ended[5].retry


# --- the kernel's counter ----------------------------------------------------------------------------

LAYOUTS = {
    "version 2": ("0::/user/vm\n", "cg/user/vm/memory.events", "low 0\noom 3\noom_kill 7\noom_group_kill 9\n"),
    "version 2 in a container": ("0::/\n", "cg/memory.events", "oom 3\noom_kill 7\n"),
    "version 1": ("4:cpu,cpuacct:/x\n3:memory:/vm\n0::/\n", "cg/memory/vm/memory.oom_control", "oom_kill 7\n"),
    "version 1 in a container": ("3:memory:/docker/x\n", "cg/memory/memory.oom_control", "under_oom 0\noom_kill 7\n"),
    "no groups": ("", "proc/vmstat", "oom_kill 7\n"),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_kernels_counter_is_found(tmp_path: Path, layout: str) -> None:
    groups, place, text = LAYOUTS[layout]
    for path, content in {"proc/self/cgroup": groups, "proc/vmstat": "oom_kill 100\n", place: text}.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(content)
    assert failure.oom_kills(tmp_path / "proc", tmp_path / "cg") == 7


def test_a_kernel_that_does_not_tell_is_not_known(tmp_path: Path) -> None:
    assert failure.oom_kills(tmp_path, tmp_path) == -1


@contextlib.contextmanager
def memory_group(limit_bytes: int) -> Iterator[Path]:
    """A real memory group of this machine; skips where we may not make one. Yields the file that takes a pid."""
    version_1 = Path("/sys/fs/cgroup/memory")
    group = (version_1 if version_1.is_dir() else Path("/sys/fs/cgroup")) / f"bridgehead-test-{secrets.token_hex(4)}"
    try:
        group.mkdir()
        limits = ["memory.limit_in_bytes", "memory.memsw.limit_in_bytes"] if version_1.is_dir() else ["memory.max"]
        for limit in limits:
            with contextlib.suppress(FileNotFoundError):  # a kernel that does not count swap
                (group / limit).write_text(str(limit_bytes))
    except OSError as error:
        with contextlib.suppress(OSError):
            group.rmdir()
        pytest.skip(f"no memory group can be made here: {error}")
    try:
        yield group / "cgroup.procs"
    finally:
        wait_until(lambda: not (group / "cgroup.procs").read_text(), what="the group to be empty")
        group.rmdir()


def test_a_stage_that_really_runs_out_of_memory_is_named_so_and_not_started_again(tmp_path: Path) -> None:
    home = vm_home(tmp_path / "vm")
    run_dir = run_folder(home, python("hog = [bytearray(8 << 20) for _ in range(64)]; print('no limit')"))
    with memory_group(160 << 20) as procs:
        shell = f"echo $$ > {procs} && exec {sys.executable} -m vm_daemons.stage_runner {run_dir}"
        environment = {**os.environ, "PYTHONPATH": str(launch.SHIP), "PYTHONSAFEPATH": "1"}
        try:
            subprocess.run(["bash", "-c", shell], env=environment, check=False, timeout=60, stdin=subprocess.DEVNULL)
            assert "no limit" not in log_of(run_dir)
            ended = exit_of(run_dir)
        finally:
            kill_tagged(run_dir)
            wait_until(lambda: not processes.tagged(names.ENV_RUN_DIR, str(run_dir)), what="all of it gone")
    assert (ended.state, ended.signal, ended.failure_class) == (RunState.FAILED, "SIGKILL", FailureClass.HOST_OOM)


def test_a_failure_on_a_full_disk_is_that_and_may_be_tried_again() -> None:
    ending = failure.judge(1, stop_asked=False, oom=NONE_COUNTED, disk_full=True)
    assert (ending.failure, ending.retry) == (FailureClass.DISK_FULL, True)
    assert "exit code 1 while this VM's disk was full" in ending.message


def test_vm_post_mortem_and_docs_say_the_same_of_a_full_disk() -> None:
    told = facts(FailureClass.DISK_FULL).by_itself
    full = failure.judge(1, stop_asked=False, oom=NONE_COUNTED, disk_full=True)
    assert "on the same VM once there is room" in told and failure.when_again(full) == f" ({told})"
    assert page.retry_words(facts(FailureClass.DISK_FULL).retry_json()) == f"no; {told}"
    docs = Path(__file__).parents[2] / "docs/failure-classes.md"
    assert f"| no; {told} |" in docs.read_text()
    killed = failure.judge(-9, stop_asked=False, oom=NONE_COUNTED)
    assert killed.retry and failure.when_again(killed) == ""


def test_a_stage_that_says_why_it_failed_is_believed_on_a_full_disk_too() -> None:
    ending = failure.judge(names.NAN_LOSS_EXIT_CODE, stop_asked=False, oom=NONE_COUNTED, disk_full=True)
    assert (ending.failure, ending.retry) == (FailureClass.NAN_LOSS, False)
