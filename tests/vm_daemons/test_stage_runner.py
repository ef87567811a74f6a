"""The stage runner with real stages: each way in which one can end, be stopped, misbehave or lose its runner."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bridgehead import files, names, processes
from bridgehead.names import FailureClass, RunState
from bridgehead.records import RunRecord
from bridgehead.run import Run
from support import wait_until
from vm_daemons import failure, launch, lifetime
from vm_daemons.home import VmHome
from vm_daemons.stage_command import stage_command
from vm_daemons.stage_runner import Runner
from vm_run_support import (
    exit_of,
    is_gone,
    log_of,
    python,
    run_folder,
    run_to_the_end,
    runner,
    vm_home,
    wait_for_log,
    wait_for_stage,
)

SLEEP = "import time; print('up', flush=True); time.sleep(60)"
STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
KILLS_ITSELF = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
SAVES = """
import signal, sys, time
def save(*_):
    open('saved', 'w').close() or print('saved', flush=True)
    sys.exit(143)
signal.signal(signal.SIGTERM, save)
print('up', flush=True)
time.sleep(60)
"""


@pytest.fixture
def home(tmp_path: Path) -> VmHome:
    return vm_home(tmp_path / "vm")


# --- how it ends ---------------------------------------------------------------------------------


def test_a_stage_that_ends_well_is_done(home: VmHome) -> None:
    run_dir = run_folder(home, python("print('hello')"))
    ended = run_to_the_end(home, run_dir)
    assert (ended.state, ended.exit_code, ended.failure_class, ended.leftovers) == (RunState.DONE, 0, "", [])
    assert ended.started <= ended.ended
    vm_id = home.record()["vm_id"]
    assert log_of(run_dir) == f"--- attempt 1 on {vm_id}\nhello\n"


def test_a_stage_that_exits_3_is_a_user_error(home: VmHome) -> None:
    ended = run_to_the_end(home, run_folder(home, python("raise SystemExit(3)")))
    assert (ended.state, ended.exit_code, ended.failure_class) == (RunState.FAILED, 3, FailureClass.USER_ERROR)
    assert ended.message == "exit code 3"


def test_a_gate_that_does_not_pass_is_no_user_error(home: VmHome) -> None:
    ended = run_to_the_end(home, run_folder(home, python(f"raise SystemExit({names.GATE_FAILED_EXIT_CODE})")))
    assert (ended.state, ended.failure_class) == (RunState.FAILED, FailureClass.GATE)


def test_a_checkpoint_that_is_refused_is_explained_by_the_stages_own_last_words(home: VmHome) -> None:
    run_dir = run_folder(home, python("import bridgehead; bridgehead.current_run().latest_checkpoint()"))
    record = RunRecord.from_json(files.read_json(run_dir / names.RUN_RECORD))
    other = dataclasses.replace(record, spec=dataclasses.replace(record.spec, config={"lr": 1}))
    with Run(run_dir, other).checkpoint(3) as folder:
        (folder / "w").write_bytes(b"w")
    ended = run_to_the_end(home, run_dir)
    assert (ended.exit_code, ended.failure_class) == (names.CHECKPOINT_EXIT_CODE, FailureClass.CHECKPOINT)
    assert "lr" in ended.message and "--allow-config" in ended.message


def test_a_stage_that_dies_of_sigkill_names_the_signal_and_its_memory(home: VmHome) -> None:
    run_dir = run_folder(home, python(KILLS_ITSELF), retries=0)
    ended = run_to_the_end(home, run_dir)
    assert (ended.state, ended.exit_code, ended.signal) == (RunState.FAILED, 137, "SIGKILL")
    assert (ended.failure_class, ended.retries) == (FailureClass.KILLED, 0)
    assert "which nobody here sent" in ended.message and "its peak was" in ended.message


def test_a_death_within_the_budget_is_counted_and_is_no_end(home: VmHome) -> None:
    run_dir = run_folder(home, python(KILLS_ITSELF), retries=2)
    for count in (1, 2):
        with runner(home, run_dir) as process:
            process.wait(100)
        assert not (run_dir / names.EXIT).exists()
        assert len(failure.deaths(run_dir, 1)) == count
        assert f"retry {count} of 2" in log_of(run_dir)
    ended = run_to_the_end(home, run_dir)
    assert (ended.failure_class, ended.retries) == (FailureClass.KILLED, 2)
    assert "already been started again 2 times" in ended.message


def test_a_killed_shell_command_is_not_started_again(home: VmHome) -> None:
    run_dir = run_folder(home, "kill -KILL $$", run_id="sh-0001-abc123", stage="sh")
    assert run_to_the_end(home, run_dir).failure_class == FailureClass.KILLED


def test_a_death_that_can_not_be_counted_ends_the_run(home: VmHome) -> None:
    """An uncounted one would make the budget endless."""
    run_dir = run_folder(home, python(KILLS_ITSELF))
    (run_dir / names.DEATHS).mkdir()
    assert run_to_the_end(home, run_dir).failure_class == FailureClass.KILLED


# --- handed over ---------------------------------------------------------------------------------


def test_a_run_that_is_handed_over_saves_and_has_not_ended(home: VmHome) -> None:
    run_dir = run_folder(home, python(SAVES))
    with runner(home, run_dir) as process:
        wait_for_log(run_dir, "up")
        lifetime.begin_handover(run_dir, 1)
        _ask_to_stop(run_dir)
        process.wait(100)
    assert "saved" in log_of(run_dir)
    assert not (run_dir / names.EXIT).exists()
    assert lifetime.is_handed_over(run_dir, 1)


def test_a_run_that_ends_by_itself_while_it_is_handed_over_is_done(home: VmHome) -> None:
    code = SAVES.replace("sys.exit(143)", "sys.exit(0)")
    run_dir = run_folder(home, python(code))
    with runner(home, run_dir) as process:
        wait_for_log(run_dir, "up")
        lifetime.begin_handover(run_dir, 1)
        _ask_to_stop(run_dir)
        process.wait(100)
    assert exit_of(run_dir).state is RunState.DONE
    assert not lifetime.is_handed_over(run_dir, 1)


def test_an_adopted_run_can_be_handed_over_too(home: VmHome) -> None:
    run_dir = run_folder(home, python(SAVES))
    with runner(home, run_dir) as first:
        wait_for_log(run_dir, "up")
        first.kill()
        first.wait(100)
        with runner(home, run_dir, adopt=True) as second:
            wait_until(lambda: _runner_pid(run_dir) == second.pid, what="the adoption")
            lifetime.begin_handover(run_dir, 1)
            _ask_to_stop(run_dir)
            second.wait(100)
    assert lifetime.is_handed_over(run_dir, 1) and not (run_dir / names.EXIT).exists()


def test_a_missing_command_is_an_error_of_the_environment(home: VmHome) -> None:
    run_dir = run_folder(home, "no-such-program --epochs 3")
    ended = run_to_the_end(home, run_dir)
    assert (ended.state, ended.exit_code, ended.failure_class) == (RunState.FAILED, None, FailureClass.ENVIRONMENT)
    assert ended.message == "could not be started: command not found: no-such-program"
    assert ended.message in log_of(run_dir)


def test_a_stage_that_execs_something_missing_says_so(home: VmHome) -> None:
    ended = run_to_the_end(home, run_folder(home, "bash -c 'exec no-such-program'"))
    assert (ended.exit_code, ended.message) == (127, "exit code 127 (command not found)")


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("./script.sh", "is not executable"),
        ("python 'train.py", "can't be split into words"),
        ("  ", "the command is empty"),
        ("bridgehead:pretrian", "did you mean pretrain?"),
    ],
)
def test_a_command_that_can_not_be_started_says_why(home: VmHome, command: str, why: str) -> None:
    (home.payload / "script.sh").write_text("echo hello\n")
    ended = run_to_the_end(home, run_folder(home, command))
    assert ended.failure_class == FailureClass.ENVIRONMENT
    assert why in ended.message


# --- what it gets ----------------------------------------------------------------------------------


def test_the_environment_is_scrubbed_and_says_what_the_stage_needs(
    home: VmHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    dropped = ("MPLBACKEND", "JPY_PARENT_PID", "COLAB_GPU", names.ENV_PAIRING, "PYTHONSAFEPATH", "PYTHONSTARTUP")
    for name in dropped:
        monkeypatch.setenv(name, "inherited")
    monkeypatch.setenv(names.ENV_LOCAL_VM, "vm-under-test")
    run_dir = run_folder(home, python("import json, os; print(json.dumps([dict(os.environ), os.getcwd()]))"))
    assert run_to_the_end(home, run_dir).state is RunState.DONE
    env, cwd = json.loads(log_of(run_dir).splitlines()[-1])
    assert not set(dropped) & set(env)
    assert env[names.ENV_RUN_DIR] == str(run_dir)
    assert env[names.ENV_RUN_ID] == run_dir.name
    assert env[names.ENV_STAGE] == "train"
    assert env[names.ENV_HOME] == str(home.root)
    assert env[names.ENV_LOCAL_VM] == "vm-under-test"
    assert env["PYTHONPATH"].split(os.pathsep) == [str(home.payload), str(home.api("5" * 64))]
    assert cwd == str(home.payload)


def test_user_code_finds_its_own_modules_and_the_api_but_no_package_of_ours(home: VmHome) -> None:
    (home.payload / "stages.py").write_text("MINE = True\n")
    code = """
import os, stages, bridgehead
from importlib.machinery import PathFinder
assert stages.MINE
given = os.environ["PYTHONPATH"].split(os.pathsep)  # not the whole path: this interpreter may have us installed
assert PathFinder.find_spec("bridgehead", given) is not None
assert PathFinder.find_spec("vm_daemons", given) is None
print(bridgehead.current_run().run_id)
"""
    (home.payload / "train.py").write_text(code)
    run_dir = run_folder(home, "python train.py")
    assert run_to_the_end(home, run_dir).state is RunState.DONE, log_of(run_dir)
    assert run_dir.name in log_of(run_dir)


def test_a_shipped_stage_runs_as_a_module_in_its_run_folder(home: VmHome) -> None:
    run_dir = run_folder(home, f"{names.SHIPPED_COMMAND_PREFIX}{names.PRETRAIN}")
    record = RunRecord.from_json(files.read_json(run_dir / names.RUN_RECORD))
    command = stage_command(record, home, run_dir, {"PYTHONPATH": "elsewhere"})
    assert command.argv == [sys.executable, "-u", "-m", f"stages.{names.PRETRAIN}"]
    assert command.cwd == run_dir
    assert (command.env["PYTHONPATH"], command.env["PYTHONSAFEPATH"]) == (str(launch.SHIP), "1")


def test_a_shell_command_runs_in_bash_in_the_payload_folder(home: VmHome) -> None:
    run_dir = run_folder(home, "pwd | tr a-z A-Z && [[ 1 == 1 ]]", run_id="sh-0001-abc123", stage="sh")
    assert run_to_the_end(home, run_dir).state is RunState.DONE
    assert str(home.payload).upper() in log_of(run_dir)


def test_it_runs_in_a_session_of_its_own_with_no_stdin(home: VmHome) -> None:
    run_dir = run_folder(home, python("import os, sys; print(os.getsid(0) == os.getpid(), repr(sys.stdin.read()))"))
    run_to_the_end(home, run_dir)
    assert log_of(run_dir).splitlines()[-1] == "True ''"


# --- what it writes --------------------------------------------------------------------------------


def test_a_hundred_megabytes_of_log_arrive_whole(home: VmHome) -> None:
    code = "import sys\nfor _ in range(100): sys.stdout.buffer.write(b'x' * ((1 << 20) - 1) + b'\\n')"
    run_dir = run_folder(home, python(code))
    assert run_to_the_end(home, run_dir, 60).state is RunState.DONE
    head = len(log_of(run_dir).splitlines()[0]) + 1
    assert (run_dir / names.LOG).stat().st_size == head + 100 * (1 << 20)


def test_binary_output_is_kept_byte_for_byte(home: VmHome) -> None:
    run_dir = run_folder(home, python("import sys; sys.stdout.buffer.write(bytes(range(256)) * 4)"))
    assert run_to_the_end(home, run_dir).state is RunState.DONE
    assert (run_dir / names.LOG).read_bytes().endswith(bytes(range(256)) * 4)


def test_a_progress_bar_of_carriage_returns_is_kept(home: VmHome) -> None:
    run_dir = run_folder(home, python("for i in range(50000): print(f'\\r{i}', end='')"))
    assert run_to_the_end(home, run_dir, 40).state is RunState.DONE
    assert (run_dir / names.LOG).read_bytes().count(b"\r") == 50_000


# --- stop -----------------------------------------------------------------------------------------


def test_a_stop_lets_the_stage_save_and_leave(home: VmHome) -> None:
    run_dir = run_folder(home, python(SAVES))
    with runner(home, run_dir) as process:
        wait_for_log(run_dir, "up")
        _ask_to_stop(run_dir)
        process.wait(100)
    ended = exit_of(run_dir)
    assert (ended.state, ended.exit_code, ended.message) == (RunState.STOPPED, 143, "stopped")
    assert ended.failure_class == FailureClass.STOPPED
    assert (run_dir / names.STOP_REQUEST).exists()


def test_a_stage_that_does_not_listen_is_killed_after_its_grace(home: VmHome) -> None:
    run_dir = run_folder(home, python(STUBBORN), stop_grace_s=0.3)
    with runner(home, run_dir) as process:
        wait_for_log(run_dir, "up")
        _ask_to_stop(run_dir)
        process.wait(100)
    ended = exit_of(run_dir)
    assert (ended.state, ended.signal, ended.message) == (RunState.STOPPED, "SIGKILL", "stopped: ended by SIGKILL")


def test_a_second_stop_kills_at_once(home: VmHome) -> None:
    run_dir = run_folder(home, python(STUBBORN), stop_grace_s=600)
    with runner(home, run_dir) as process:
        wait_for_log(run_dir, "up")
        _ask_to_stop(run_dir)
        wait_until((run_dir / names.STOP_REQUEST).exists, what="the first stop")
        pending = Path(f"/proc/{process.pid}/status")
        wait_until(lambda: "ShdPnd:\t0000000000000000" in pending.read_text(), what="the first signal taken")
        _ask_to_stop(run_dir)
        process.wait(100)
    assert exit_of(run_dir).state is RunState.STOPPED


def test_only_the_leader_is_asked_to_stop_so_that_its_workers_live_while_it_saves(home: VmHome) -> None:
    code = """
import subprocess, signal, sys, time
worker = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])
def save(*_):
    time.sleep(0.2)
    print('worker', worker.poll(), flush=True)
    worker.kill()
    sys.exit(143)
signal.signal(signal.SIGTERM, save)
print('up', flush=True)
time.sleep(60)
"""
    run_dir = run_folder(home, python(code))
    with runner(home, run_dir) as process:
        wait_for_log(run_dir, "up")
        _ask_to_stop(run_dir)
        process.wait(100)
    assert "worker None" in log_of(run_dir)


def test_what_a_shell_leaves_behind_at_a_stop_gets_its_time_to_save(home: VmHome) -> None:
    (home.payload / "train.py").write_text(SAVES.replace("open(", "time.sleep(0.3) or open("))
    run_dir = run_folder(home, "python3 train.py; true", run_id="sh-0001-abc123", stage="sh")
    with runner(home, run_dir) as process:
        wait_for_log(run_dir, "up")
        _ask_to_stop(run_dir)
        process.wait(100)
    assert exit_of(run_dir).state is RunState.STOPPED
    assert "saved" in log_of(run_dir)


# --- what outlives it ----------------------------------------------------------------------------------


def test_a_child_that_outlives_its_stage_is_ended_and_named(home: VmHome) -> None:
    code = """
import subprocess, sys
child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(61)'], start_new_session=True)
print('child', child.pid, flush=True)
"""
    run_dir = run_folder(home, python(code))
    ended = run_to_the_end(home, run_dir)
    child = int(log_of(run_dir).split("child ")[1].split()[0])
    assert ended.state is RunState.DONE
    assert len(ended.leftovers) == 1
    assert ended.leftovers[0].startswith(f"{child} ")
    assert is_gone(child)


def test_a_child_that_hides_from_tag_and_session_is_ended_too(home: VmHome) -> None:
    code = """
import subprocess, sys
hidden = "import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(61)'], "
hidden += "env={}, start_new_session=True); print('child', p.pid, flush=True)"
subprocess.run([sys.executable, '-c', hidden], env={}, start_new_session=True)
"""
    run_dir = run_folder(home, python(code))
    ended = run_to_the_end(home, run_dir)
    child = int(log_of(run_dir).split("child ")[1].split()[0])
    assert any(named.startswith(f"{child} ") for named in ended.leftovers)
    assert is_gone(child)


def test_outputs_whose_names_cannot_travel_are_named_where_the_owner_looks(home: VmHome) -> None:
    code = """
import bridgehead, os
run = bridgehead.current_run()
run.artifact("good.txt").write_text("x")
(run.folder / "artifacts" / "confusion matrix.png").write_text("x")
os.symlink("good.txt", run.folder / "artifacts" / "link.txt")
"""
    run_dir = run_folder(home, python(code))
    ended = run_to_the_end(home, run_dir)
    assert ended.state is RunState.DONE
    assert "2 outputs stay on the VM" in ended.message and "'artifacts/confusion matrix.png'" in ended.message
    assert "'artifacts/link.txt': no plain file" in log_of(run_dir)


def test_a_child_that_ignores_sigterm_does_not_keep_the_run_from_ending(home: VmHome) -> None:
    child = STUBBORN
    code = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, '-c', {child!r}], stdout=subprocess.PIPE)
child.stdout.readline()
print('child', child.pid, flush=True)
"""
    run_dir = run_folder(home, python(code))
    ended = run_to_the_end(home, run_dir)
    assert ended.state is RunState.DONE
    assert is_gone(int(ended.leftovers[0].split()[0]))


# --- the runner's own death ------------------------------------------------------------------------------


def test_the_lock_is_held_from_the_spawn_until_the_runner_is_gone(home: VmHome) -> None:
    run_dir = run_folder(home, python(SLEEP))
    with runner(home, run_dir) as process:
        assert launch.is_running(run_dir)
        stage = wait_for_stage(run_dir)
        process.kill()
        process.wait(100)
        assert not launch.is_running(run_dir), "the stage must not have inherited the lock"
        assert not is_gone(stage)


def test_a_run_that_runs_is_not_started_a_second_time(home: VmHome, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "_LOCK_WAIT_S", 0.1)
    run_dir = run_folder(home, python(SLEEP))
    with runner(home, run_dir):
        assert launch.start(home, run_dir, {}) is None


def test_a_stage_whose_runner_was_killed_can_be_adopted_and_stopped(home: VmHome) -> None:
    run_dir = run_folder(home, python(SAVES))
    with runner(home, run_dir) as first:
        wait_for_log(run_dir, "up")
        first.kill()
        first.wait(100)
        with runner(home, run_dir, adopt=True) as second:
            wait_until(lambda: _runner_pid(run_dir) == second.pid, what="the adoption")
            _ask_to_stop(run_dir)
            second.wait(100)
    assert exit_of(run_dir).state is RunState.STOPPED


def test_an_adopted_run_that_ends_unseen_gets_no_exit_record(home: VmHome) -> None:
    run_dir = run_folder(home, python(SLEEP))
    with runner(home, run_dir) as first:
        stage = wait_for_stage(run_dir)
        first.kill()
        first.wait(100)
        with runner(home, run_dir, adopt=True) as second:
            wait_until(lambda: _runner_pid(run_dir) == second.pid, what="the adoption")
            os.kill(stage, signal.SIGKILL)
            second.wait(100)
    assert not (run_dir / names.EXIT).exists()
    assert launch.process_record(run_dir) is None, "the daemon would count it as a death"


def test_an_adopted_run_that_ends_with_results_is_not_called_done_and_the_log_says_why(home: VmHome) -> None:
    """A gate that does not pass writes results too: only its exit code tells."""
    waits = "import bridgehead, time; run = bridgehead.current_run(); print('up', flush=True)\n"
    waits += "while not (run.folder / 'go-on').exists(): time.sleep(0.02)\n"
    ends = f"run.results({{'verdict': 'fail'}}); raise SystemExit({names.GATE_FAILED_EXIT_CODE})"
    run_dir = run_folder(home, python(waits + ends))
    with runner(home, run_dir) as first:
        wait_for_log(run_dir, "up")
        first.kill()
        first.wait(100)
        with runner(home, run_dir, adopt=True) as second:
            wait_until(lambda: _runner_pid(run_dir) == second.pid, what="the adoption")
            (run_dir / "go-on").touch()
            second.wait(100)
    assert not (run_dir / names.EXIT).exists()
    assert "nobody knows its exit code; results.json is there, which is no proof" in log_of(run_dir)


def test_an_adopted_shell_command_has_an_unknown_outcome(home: VmHome) -> None:
    run_dir = run_folder(home, "echo up; sleep 60", run_id="sh-0001-abc123", stage="sh")
    with runner(home, run_dir) as first:
        stage = wait_for_stage(run_dir)
        first.kill()
        first.wait(100)
        with runner(home, run_dir, adopt=True) as second:
            wait_until(lambda: _runner_pid(run_dir) == second.pid, what="the adoption")
            os.kill(stage, signal.SIGKILL)
            second.wait(100)
    ended = exit_of(run_dir)
    assert (ended.state, ended.failure_class) == (RunState.FAILED, FailureClass.UNKNOWN_OUTCOME)


def test_whoever_has_a_gpu_open_is_found_and_whose_it_is(home: VmHome, tmp_path: Path) -> None:
    gpu = tmp_path / "nvidia0"
    gpu.touch()
    run_dir = run_folder(home, python(f"import time; f = open({str(gpu)!r}); print('up', flush=True); time.sleep(60)"))
    with runner(home, run_dir):
        wait_for_log(run_dir, "up")
        stage = wait_for_stage(run_dir)
        assert launch.gpu_holders(str(tmp_path / "nvidia")) == [stage]
        assert launch.is_of_a_run(stage) and not launch.is_of_a_run(os.getpid())


def test_a_stranger_that_took_a_gpu_meanwhile_is_named_and_left_alone(
    home: VmHome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = tmp_path / "nvidia0"
    gpu.touch()
    monkeypatch.setattr(launch, "GPU_FILES", str(tmp_path / "nvidia"))
    run_dir = run_folder(home, python("print()"))
    watcher = Runner(run_dir, RunRecord.from_json(files.read_json(run_dir / names.RUN_RECORD)))
    watcher._stage_start = processes.start_ticks(os.getpid())
    with gpu.open() as held, subprocess.Popen(["sleep", "60"], stdin=held) as stranger:
        named = watcher._gpu_strangers()
        assert stranger.poll() is None
        stranger.kill()
    assert [line.split()[0] for line in named] == [str(stranger.pid)] and "left alone" in named[0]


def test_kill_leaves_nothing_and_no_exit_record(home: VmHome) -> None:
    run_dir = run_folder(home, "bash -c 'sleep 60 & sleep 60; true'")
    with runner(home, run_dir) as process:
        wait_for_stage(run_dir)
        wait_until(lambda: len(launch.members(run_dir, 0)) >= 3, what="its children")
        launch.kill(run_dir)
        process.wait(100)
        wait_until(lambda: launch.kill(run_dir), what="all of it gone")
    assert not (run_dir / names.EXIT).exists()


def _ask_to_stop(run_dir: Path) -> None:
    """A stage may be up before its runner has said who it is."""
    wait_until(lambda: launch.request_stop(run_dir), what="a runner that can be asked")


def _runner_pid(run_dir: Path) -> int:
    record = launch.process_record(run_dir)
    return record.runner_pid if record is not None and processes.is_alive(record.runner_pid, record.runner_start) else 0
