"""A script of the user's own that an error of ours ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from bridgehead import checkpoints, files, names
from bridgehead.errors import BridgeheadError, UsageError
from bridgehead.records import RunRecord, StageSpec
from bridgehead.run import Run

ROOT = Path(__file__).parents[2]
DEADLINE_S = 20.0
HEAD = "import bridgehead, time\nrun = bridgehead.current_run()\n"


def _record(**config: object) -> RunRecord:
    spec = StageSpec("train", "python train.py", config=config, checkpoint_every_epochs=0)
    return RunRecord("train-0001-abcdef", "train", "p", "c", 1, "vm-1", time.time(), spec)


def _script(folder: Path, body: str, *, stage: bool = True) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    env.pop(names.ENV_RUN_DIR, None)
    if stage:
        env[names.ENV_RUN_DIR] = str(folder)
    command = [sys.executable, "-c", HEAD + body]
    return subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, timeout=DEADLINE_S)


def _stage(folder: Path, body: str) -> subprocess.CompletedProcess[str]:
    files.write_json(folder / names.RUN_RECORD, _record().to_json())
    return _script(folder, body)


def _last_event(folder: Path) -> dict[str, object]:
    event: dict[str, object] = json.loads((folder / names.PROGRESS).read_text().splitlines()[-1])
    return event


def test_a_refused_checkpoint_is_one_line_that_names_what_to_allow_and_has_its_own_exit_code(tmp_path: Path) -> None:
    with Run(tmp_path, _record(lr=0.1)).checkpoint(3) as folder:
        (folder / "w").write_bytes(b"w")
    files.write_json(tmp_path / names.RUN_RECORD, _record(lr=0.2).to_json())
    ended = _script(tmp_path, "run.latest_checkpoint()\n")
    assert (ended.returncode, ended.stderr) == (names.CHECKPOINT_EXIT_CODE, "")
    assert "lr 0.1" in ended.stdout and "--allow-config" in ended.stdout and len(ended.stdout.splitlines()) == 1
    assert _last_event(tmp_path)["text"] == ended.stdout.strip()


def test_any_other_exception_has_its_traceback_and_the_hook_that_was_there_before(tmp_path: Path) -> None:
    ended = _stage(tmp_path, "raise ValueError('a bug of the script')\n")
    assert ended.returncode == 1 and "Traceback" in ended.stderr and "a bug of the script" in ended.stderr
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.excepthook = lambda *_: print('heard before')\n")
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}", names.ENV_RUN_DIR: str(tmp_path)}
    command = [sys.executable, "-c", HEAD + "raise ValueError('x')\n"]
    heard = subprocess.run(command, env=env, capture_output=True, text=True, timeout=DEADLINE_S)
    assert (heard.returncode, heard.stdout) == (1, "heard before\n")


def test_the_checkpoint_in_flight_is_finished_first(tmp_path: Path) -> None:
    body = (
        "def write(folder):\n    time.sleep(0.3)\n    (folder / 'f').write_text('x')\n"
        "run.checkpoint_async(5, lambda: write)\n"
        "run.input('no-such-stage')\n"
    )
    ended = _stage(tmp_path, body)
    assert ended.returncode == 6 and "no-such-stage" in ended.stdout
    assert checkpoints.newest(tmp_path / names.CHECKPOINTS)[0] is not None


def test_what_was_printed_before_is_not_lost(tmp_path: Path) -> None:
    ended = _stage(tmp_path, "print('half a line', end='')\nrun.results({'loss': float('nan')})\n")
    assert ended.returncode == 2 and ended.stdout.startswith("half a line")


def test_a_thread_of_the_scripts_own_does_not_keep_the_stage(tmp_path: Path) -> None:
    body = "import threading\nthreading.Thread(target=threading.Event().wait).start()\nrun.input('no-such-stage')\n"
    assert _stage(tmp_path, body).returncode == 6


def test_outside_of_bridgehead_it_is_the_one_line_and_the_exit_code_stays(tmp_path: Path) -> None:
    ended = _script(tmp_path, "import atexit\natexit.register(print, 'bye')\nrun.input('x')\n", stage=False)
    assert (ended.returncode, ended.stderr) == (1, "")
    assert "was not given the output of 'x'" in ended.stdout and ended.stdout.endswith("bye\n")


def test_an_error_in_one_line_is_bounded_and_keeps_its_hint() -> None:
    error = UsageError("what differs: " + "x" * 900, hint="say\nwhat is to be allowed")
    line = error.in_one_line()
    assert len(line) <= 500 and line.endswith("… → say what is to be allowed")
    assert BridgeheadError("short").in_one_line() == "short"
    assert len(UsageError("m" * 900, hint="h" * 900).in_one_line(100)) == 100
