"""Every command that can fail, run as a real process: its exit code, its one line with a next step, no traceback."""

from __future__ import annotations

import signal
import socket
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cli_process import Answer, bridgehead, command, environment
from project_support import Seeded

from bridgehead import names
from bridgehead.errors import INTERRUPTED_EXIT_CODE
from bridgehead.names import Ack, RunState
from run_control import init
from run_control.project import Project
from support import wait_until

OUTSIDE = ["down", "ps", "queue", "vm list"]  # those that fail nowhere else; the others are below
IN_A_NEW_PROJECT = {
    "": 2,
    "nonsense": 2,
    "up --port x": 2,
    "up --runtime lokal": 2,
    "init .": 2,
    "run pretrian": 2,
    "run pretrain epochs": 2,
    "run pretrain --allow-code": 2,
    "run pretrain allow=code --dry-run": 2,
    "run pretrain --wait": 11,
    "sh": 2,
    "stop pretrain": 6,
    "wait": 6,
    "wait pretrain --timeout soon": 2,
    "logs pretrain": 6,
    "status pretrain": 6,
    "status --exit-status": 2,
    "notebook": 11,
    "completion tcsh": 2,
    "vm": 2,
    "vm start": 11,
    "vm interrupt": 5,
    "vm run-cell": 5,
    "vm kill": 5,
    "vm kill local-none": 6,
    "demo --keep .": 2,
    "-C nowhere status": 2,
}

WITH_JSON = [f"{words} --json" for words in ("run pretrian", "nonsense", "up --port x", "logs pretrain")]


def _one_line_with_a_next_step(answer: Answer) -> None:
    assert "Traceback" not in answer.err and "Traceback" not in answer.out
    assert answer.err.startswith("error: ") and "next: " in answer.err


@pytest.fixture(scope="module")
def outside(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Answer]:
    return _all_at_once(OUTSIDE, tmp_path_factory.mktemp("outside"))


@pytest.fixture(scope="module")
def in_a_new_project(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Answer]:
    project, _ = init.init(tmp_path_factory.mktemp("inside"))
    return _all_at_once([*IN_A_NEW_PROJECT, *WITH_JSON], project.root)


def _all_at_once(commands: Sequence[str], cwd: Path) -> dict[str, Answer]:
    """Processes side by side: starting Python so often one after the other takes most of a minute."""
    with ThreadPoolExecutor(max_workers=4) as pool:
        answers = pool.map(lambda words: bridgehead(*words.split(), cwd=cwd), commands)
        return dict(zip(commands, answers, strict=True))


@pytest.mark.parametrize("words", OUTSIDE)
def test_outside_a_project_each_command_exits_2(outside: dict[str, Answer], words: str) -> None:
    answer = outside[words]
    assert answer.code == 2 and answer.out == ""
    _one_line_with_a_next_step(answer)
    assert "bridgehead init" in answer.err


@pytest.mark.parametrize("words", IN_A_NEW_PROJECT)
def test_in_a_new_project_each_failure_has_its_code(in_a_new_project: dict[str, Answer], words: str) -> None:
    answer = in_a_new_project[words]
    assert answer.code == IN_A_NEW_PROJECT[words], answer.err
    if words not in ("", "vm"):
        _one_line_with_a_next_step(answer)


def test_without_arguments_help_goes_to_stdout(in_a_new_project: dict[str, Answer]) -> None:
    answer = in_a_new_project[""]
    assert "Commands:" in answer.out and answer.err == ""


@pytest.mark.parametrize("words", WITH_JSON)
def test_with_json_a_failure_is_one_json_object_and_keeps_its_code(
    in_a_new_project: dict[str, Answer], words: str
) -> None:
    answer = in_a_new_project[words]
    assert answer.code == IN_A_NEW_PROJECT[words.removesuffix(" --json")] == answer.json["error"]["exit_code"]
    assert answer.json["v"] == 1 and answer.json["ok"] is False
    assert {"code", "message", "hint", "retry"} <= set(answer.json["error"])


def test_a_mistake_in_the_project_file_exits_2_with_file_line_and_key(fresh: Project) -> None:
    fresh.file.write_text(fresh.file.read_text().replace("cpus = 1", "cpuss = 1", 1))
    answer = bridgehead("up", cwd=fresh.root)
    assert answer.code == 2 and f"{names.PROJECT_FILE}:" in answer.err and "did you mean cpus?" in answer.err


def test_a_taken_port_exits_11_and_says_which_and_whose(fresh: Project) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        answer = bridgehead("up", "--port", str(port), cwd=fresh.root)
    assert answer.code == 11
    assert f"port {port} is taken by process" in answer.err and f"--port {port + 1}" in answer.err


def test_a_broken_bundle_exits_9(fresh: Project) -> None:
    (fresh.root / "bundle").mkdir()
    assert bridgehead("bundle", "verify", "bundle", cwd=fresh.root).code == 9


def test_no_bundle_at_all_has_a_code_of_its_own(fresh: Project) -> None:
    answer = bridgehead("bundle", "verify", "nowhere", cwd=fresh.root)
    assert answer.code in (6, 9)
    _one_line_with_a_next_step(answer)


def test_doctor_exits_9_and_still_shows_every_check(fresh: Project) -> None:
    fresh.private.chmod(0o755)
    answer = bridgehead("doctor", "--json", cwd=fresh.root)
    assert answer.code == 9 and answer.json["ok"] is False
    assert len(answer.json["data"]["checks"]) > 5


def test_a_failed_run_exits_3(seeded: Seeded) -> None:
    [run_id] = seeded.take("run:pretrain")
    seeded.finish(run_id, RunState.FAILED, 3)
    assert bridgehead("wait", "pretrain", cwd=seeded.project.root).code == 3
    assert bridgehead("status", "pretrain", "--exit-status", cwd=seeded.project.root).code == 3
    assert bridgehead("logs", "-f", "pretrain", "--exit-status", cwd=seeded.project.root).code == 3
    assert bridgehead("logs", "-f", "pretrain", cwd=seeded.project.root).code == 0


def test_a_run_that_goes_on_exits_7_or_8(seeded: Seeded) -> None:
    seeded.take("run:pretrain")
    assert bridgehead("wait", "--timeout", "0.1s", cwd=seeded.project.root).code == 7
    assert bridgehead("wait", "--timeout", "0", cwd=seeded.project.root).code == 8
    assert bridgehead("status", "pretrain", "--exit-status", cwd=seeded.project.root).code == 8


@pytest.mark.parametrize("words", ["logs -f pretrain", "wait pretrain"])
def test_ctrl_c_detaches_says_how_to_come_back_and_stops_nothing(seeded: Seeded, words: str) -> None:
    [run_id] = seeded.take("run:pretrain")
    seeded.ack(run_id, Ack.STARTED)
    seeded.status(run_id)
    (seeded.project.run(run_id) / names.LOG).write_text("epoch 1\n")
    process = subprocess.Popen(
        command(*words.split()),
        cwd=seeded.project.root,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # As from a terminal: a test runner in the background may have SIGINT ignored, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    try:
        stream = process.stdout if words.startswith("logs") else process.stderr
        assert stream is not None
        assert wait_until(stream.readline, what="the first line")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=100)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == INTERRUPTED_EXIT_CODE
    assert f"detached; {run_id} goes on" in err and f"bridgehead stop {run_id}" in err
    assert not seeded.ledger.find_run(run_id).ended


def test_a_reader_that_leaves_is_no_error(seeded: Seeded) -> None:
    [run_id] = seeded.take("run:pretrain")
    seeded.finish(run_id, RunState.DONE)
    seeded.project.run(run_id).mkdir(parents=True)
    (seeded.project.run(run_id) / names.LOG).write_text("line\n" * 100_000)
    shell = f"{' '.join(command('logs', '-n', '100000', 'pretrain'))} | head -n 1; exit ${{PIPESTATUS[0]}}"
    result = subprocess.run(
        ["bash", "-c", shell],
        cwd=seeded.project.root,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "line\n", "")


def test_help_loads_nothing_heavy(tmp_path: Path) -> None:
    heavy = ("pydantic", "aiohttp", "rich", "sqlite3", "requests", "jupyter_client")
    code = "import sys; from run_control import cli; cli.main(['--help']); "
    code += f"print([name for name in {heavy} if name in sys.modules])"
    result = subprocess.run(
        [*command()[:1], "-c", code], env=environment(), cwd=tmp_path, capture_output=True, text=True, timeout=30
    )
    assert result.stdout.splitlines()[-1] == "[]"
