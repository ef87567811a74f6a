"""The demo's own promises: it ends in order whatever happens. The whole of it is `make demo`."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from cli_process import bridgehead, command, environment
from project_support import Seeded

from bridgehead import names, processes
from run_control.demo_shell import CommandFailed, DemoFailed, Follower, Shell
from run_control.demo_view import DemoView
from run_control.project import Project
from support import wait_until

KEYS = [
    "ok", "bundle", "run_ids", "killed_at_step", "resumed_from_step", "bitwise_equal", "weights_sha256", "gate",
    "parity_max_abs", "seconds",
]  # fmt: skip
RUN: dict[str, Any] = {
    "run_id": "pretrain-0001-abcdef", "stage": "pretrain", "state": "running", "attempt": 2, "epoch": 3,
    "total_epochs": 40, "metrics": {"loss": 0.5}, "eta_s": 30.0, "checkpoint": {"step": 5, "level": "mounted"},
}  # fmt: skip


def test_sigterm_ends_it_in_order_with_one_json_object_and_no_process(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    process = subprocess.Popen(
        command("demo", "--json", "--keep", str(folder)),
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        vms = folder / names.PRIVATE_FOLDER / "vms"
        wait_until(lambda: vms.is_dir() and any(vms.iterdir()), 40, what="the VM")
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=100)
    finally:
        process.kill()
        process.wait()
    result = json.loads(out.splitlines()[-1])
    assert process.returncode == 130 and list(result) == [*KEYS, "reason"] and result["ok"] is False
    assert "Traceback" not in err
    assert not any(str(folder) in processes.command_line(pid) for pid in processes.all_pids())


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    answer = bridgehead("demo", "--keep", str(tmp_path), "--json", cwd=tmp_path)
    assert answer.code == 2 and (tmp_path / "mine").read_text() == "mine"


def test_a_command_that_fails_names_itself_and_its_code(fresh: Project) -> None:
    with pytest.raises(CommandFailed, match="bridgehead run pretrian: exit 2: no stage 'pretrian'"):
        Shell(fresh.root)("run", "pretrian")


def test_a_run_that_fails_ends_the_waiting(seeded: Seeded) -> None:
    from bridgehead.names import RunState

    [run_id] = seeded.take("run:pretrain")
    seeded.finish(run_id, RunState.FAILED, 3)
    follower = Follower(Shell(seeded.project.root), [run_id], lambda run: None)
    try:
        with pytest.raises(DemoFailed, match=f"{run_id} is failed before the middle"):
            follower.until(run_id, lambda run: run["step"] > 5, timeout_s=30, what="the middle")
    finally:
        follower.close()


def test_without_a_terminal_each_change_is_one_line_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    view = DemoView()
    view.step("a new VM")
    view.change(RUN)
    view.change({**RUN, "epoch": 4})
    view.change({**RUN, "state": "done"})
    view.close()
    out, err = capsys.readouterr()
    assert out == "" and "\x1b" not in err
    first, second, third = err.splitlines()
    assert first.endswith("a new VM")
    assert "epoch 3/40 · loss 0.5000 · ETA 30s · checkpoint 5 mounted · attempt 2" in second
    assert "done" in third and "ETA" not in third


def test_the_table_for_a_terminal_holds_every_run() -> None:
    import io

    from rich.console import Console

    view = DemoView()
    view.change(RUN)
    console = Console(file=io.StringIO(), width=120)
    console.print(view.table())
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "pretrain" in shown and "checkpoint 5 mounted" in shown
