"""`up` and `down` with the real bridge: idempotent, one at a time, nothing left behind, no secret on show."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_process import bridgehead, command, environment, in_process

from bridgehead import files, names, processes
from run_control import bridge_control, init
from run_control.project import Project
from support import wait_until


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """A project whose bridge is up."""
    project, _ = init.init(tmp_path_factory.mktemp("up") / "watch")
    try:
        bridge_control.start(project, port=0, tunnel="none")
        yield project
    finally:
        bridge_control.stop(project)


def _live(project: Project) -> bridge_control.LiveBridge:
    live = bridge_control.find(project)
    assert live is not None
    return live


def test_it_serves_and_says_where(up: Project) -> None:
    live = _live(up)
    with urllib.request.urlopen(f"{live.url}{names.HEALTH_PATH}", timeout=10) as answer:
        assert answer.read() == b"ok"
    assert live.url == f"http://127.0.0.1:{live.port}"


def test_a_second_up_changes_nothing_and_succeeds(up: Project, capsys: pytest.CaptureFixture[str]) -> None:
    before = _live(up)
    answer = in_process(capsys, "-C", str(up.root), "up")
    assert answer.code == 0 and "already up" in answer.out
    assert _live(up) == before


def test_a_second_bridge_process_refuses(up: Project) -> None:
    result = subprocess.run(
        [command()[0], "-m", "run_control.bridge_process", str(up.root), "--port", "0"],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert result.returncode == 11 and "another bridge serves this project" in result.stderr
    assert _live(up)


def test_another_project_on_the_same_port_is_told_who_has_it(up: Project, fresh: Project) -> None:
    live = _live(up)
    answer = bridgehead("up", "--port", str(live.port), cwd=fresh.root)
    assert answer.code == 11 and f"port {live.port} is taken by process {live.pid}" in answer.err


def test_the_notebook_is_ready_and_its_owners_alone(up: Project) -> None:
    assert stat.S_IMODE(up.notebook.stat().st_mode) == 0o600
    assert bridge_control.pairing(up, _live(up)).encode() in up.notebook.read_text()


def test_the_pairing_code_shows_up_nowhere_unasked(up: Project, capsys: pytest.CaptureFixture[str]) -> None:
    code = bridge_control.pairing(up, _live(up)).encode()
    for words in ("up --json", "status --json", "notebook"):
        answer = in_process(capsys, "-C", str(up.root), *words.split())
        assert code not in answer.out + answer.err
    pid = _live(up).pid
    assert code.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes() + Path(f"/proc/{pid}/environ").read_bytes()
    assert code not in up.bridge_log.read_text() and code not in up.bridge_record.read_text()


def test_the_pairing_code_is_printed_on_request(up: Project, capsys: pytest.CaptureFixture[str]) -> None:
    code = bridge_control.pairing(up, _live(up)).encode()
    assert in_process(capsys, "-C", str(up.root), "notebook", "--show-code").out.strip() == code


def test_a_line_is_taken_and_its_run_id_printed(up: Project, capsys: pytest.CaptureFixture[str]) -> None:
    data = in_process(capsys, "-C", str(up.root), "run", "pretrain", "epochs=2", "--json").data
    assert data["taken"] and data["run_id"].startswith("pretrain-")


def test_a_line_that_the_bridge_rejects_exits_2_with_its_reason(up: Project) -> None:
    answer = bridgehead("run", "gate", cwd=up.root)
    assert answer.code == 2 and "finetune" in answer.err


def test_stopping_a_run_that_no_vm_has_stops_it_at_once(up: Project, capsys: pytest.CaptureFixture[str]) -> None:
    run_id = in_process(capsys, "-C", str(up.root), "run", "pretrain", "epochs=3", "--json").data["run_id"]
    assert in_process(capsys, "-C", str(up.root), "stop", run_id).code == 0
    run = in_process(capsys, "-C", str(up.root), "status", run_id, "--json").data["run"]
    assert run["state"] == "stopped"


def test_a_record_left_by_a_dead_bridge_is_not_believed(fresh: Project) -> None:
    live = bridge_control.start(fresh, port=0, tunnel="none")
    os.kill(live.pid, signal.SIGKILL)
    wait_until(lambda: not processes.is_alive(live.pid, live.start), what="its death")
    assert fresh.bridge_record.exists() and bridge_control.find(fresh) is None
    again = bridge_control.start(fresh, port=0, tunnel="none")
    assert again.pid != live.pid
    assert bridge_control.stop(fresh)


def test_a_record_of_another_process_with_that_pid_kills_nobody(fresh: Project) -> None:
    record = {"pid": os.getpid(), "start": 1, "boot_id": processes.boot_id(), "state": "ready"}
    files.write_json(fresh.bridge_record, record)
    assert bridge_control.find(fresh) is None
    assert bridge_control.stop(fresh) is False


def test_down_leaves_no_process_and_no_record(fresh: Project) -> None:
    live = bridge_control.start(fresh, port=0, tunnel="none")
    answer = bridgehead("down", "--json", cwd=fresh.root)
    assert answer.data == {"stopped_bridge": True, "stopped_vms": []}
    assert not processes.is_alive(live.pid, live.start) and not fresh.bridge_record.exists()


def test_an_unknown_tunnel_is_told_with_the_nearest_name(fresh: Project) -> None:
    answer = bridgehead("up", "--port", "0", "--tunnel", "cloudflare", cwd=fresh.root)
    assert answer.code == 2 and "did you mean cloudflared?" in answer.err
    assert bridge_control.find(fresh) is None


def test_cloudflared_that_is_not_there_is_told_and_nothing_is_left(fresh: Project, tmp_path: Path) -> None:
    answer = bridgehead("up", "--port", "0", "--tunnel", "cloudflared", cwd=fresh.root, PATH=str(tmp_path))
    assert answer.code == 11 and "cloudflared" in answer.err
    assert not any(str(fresh.root) in processes.command_line(pid) for pid in processes.all_pids())


def test_one_up_at_a_time(fresh: Project) -> None:
    import fcntl

    with (fresh.private / "up.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        answer = bridgehead("up", "--port", "0", "--json", cwd=fresh.root)
    assert answer.code == 11 and answer.json["error"]["retry"] is True


def test_status_json_names_the_bridge(up: Project, capsys: pytest.CaptureFixture[str]) -> None:
    data = in_process(capsys, "-C", str(up.root), "status", "--json").data
    assert data["bridge"]["port"] == _live(up).port
    json.dumps(data)
