"""A bridge whose record is lost, one that was killed, a full disk, and commands that come at the same moment."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from cli_process import in_process

from bridgehead import files, processes
from bridgehead.errors import BridgeDownError
from cloudflare_edge import edge as edge
from cloudflare_edge import stub as stub
from run_control import bridge_control, init, locks, queue_writer, queueing
from run_control.project import Project
from support import wait_until


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    project, _ = init.init(tmp_path_factory.mktemp("up") / "watch")
    try:
        bridge_control.start(project, port=0, tunnel="none")
        yield project
    finally:
        bridge_control.stop(project)


def test_equal_lines_at_once_each_get_their_own_run(up: Project) -> None:
    with ThreadPoolExecutor(max_workers=6) as pool:
        queued = list(pool.map(lambda _: queueing.submit(up, "run:pretrain epochs=1"), range(6)))
    assert all(item.taken for item in queued)
    assert len({item.run_id for item in queued}) == 6 == len({item.seq for item in queued})


def test_a_line_goes_in_even_when_another_command_waits_for_ever(up: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queueing, "TAKEN_TIMEOUT_S", 0.05)
    fd = locks.take(up.queue_lock)
    assert fd is not None
    try:
        assert not queueing.submit(up, "run:pretrain epochs=9").taken
    finally:
        os.close(fd)
    assert "run:pretrain epochs=9\n" in up.queue.read_text()


@pytest.mark.parametrize("words", ["run pretrain", "sh ls"])
def test_a_live_bridge_that_has_not_taken_a_line_is_not_to_be_started(
    up: Project, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    monkeypatch.setattr(queueing, "TAKEN_TIMEOUT_S", 0.0)
    monkeypatch.setattr(queue_writer, "append", lambda *_: None)
    answer = in_process(capsys, "-C", str(up.root), *words.split())
    assert answer.code == 0 and "next: bridgehead queue" in answer.err and "bridgehead up" not in answer.err
    answer = in_process(capsys, "-C", str(up.root), *words.split(), "--wait")
    assert answer.code == 8 and "next: bridgehead queue" in answer.err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--tunnel cloudflared", "already up with tunnel none"),
        ("--port 1", "bridgehead down, then bridgehead up --port 1"),
    ],
)
def test_an_up_that_asks_for_another_bridge_is_refused(
    up: Project, capsys: pytest.CaptureFixture[str], words: str, told: str
) -> None:
    answer = in_process(capsys, "-C", str(up.root), "up", *words.split())
    assert answer.code == 11 and told in answer.err and "next: bridgehead down" in answer.err


def test_an_up_that_asks_for_the_same_or_for_no_tunnel_there_is(
    up: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    live = bridge_control.need(up)
    same = ("--tunnel", "none", "--port", str(live.port))
    assert in_process(capsys, "-C", str(up.root), "up", *same).code == 0
    assert in_process(capsys, "-C", str(up.root), "up", "--tunnel", "ngrok").code == 2


@pytest.mark.parametrize("text", [None, "{", "[]", '{"state": "ready"}', '{"pid": "x"}'])
def test_a_bridge_whose_record_is_lost_is_still_found(
    up: Project, capsys: pytest.CaptureFixture[str], text: str | None
) -> None:
    whole, pid = up.bridge_record.read_bytes(), bridge_control.need(up).pid
    try:
        if text is None:
            up.bridge_record.unlink()
        else:
            up.bridge_record.write_text(text)
        live = bridge_control.find(up)
        assert live is not None and live.pid == pid
        for command, code in {"status": 0, "up": 11, "notebook": 11}.items():
            answer = in_process(capsys, "-C", str(up.root), command)
            assert answer.code == code and f"process {pid}" in answer.err
            assert "next: bridgehead down, then bridgehead up" in answer.err
    finally:
        up.bridge_record.write_bytes(whole)


def test_a_record_with_fields_that_make_no_sense_is_as_good_as_none(up: Project) -> None:
    whole = files.read_json(up.bridge_record)
    assert isinstance(whole, dict)
    try:
        for key in ("port", "url", "boot_sha256", "tunnel", "pid", "start"):
            files.write_json(up.bridge_record, {**whole, key: None})
            live = bridge_control.find(up)
            assert live is not None and live.pid == whole["pid"] and live.url == ""
    finally:
        files.write_json(up.bridge_record, whole)


def test_down_ends_a_bridge_whose_record_is_lost(fresh: Project) -> None:
    live = bridge_control.start(fresh, port=0, tunnel="none")
    fresh.bridge_record.unlink()
    assert bridge_control.stop(fresh)
    assert not processes.is_alive(live.pid, live.start) and bridge_control.find(fresh) is None


def _killed_with_its_tunnel(project: Project) -> tuple[int, int]:
    """Start a bridge with the stub tunnel, kill the bridge, and return the tunnel's pid and start."""
    live = bridge_control.start(project, port=0, tunnel="cloudflared")
    record = files.read_json(project.bridge_record)
    assert isinstance(record, dict)
    os.kill(live.pid, signal.SIGKILL)
    wait_until(lambda: not processes.is_alive(live.pid, live.start), what="its death")
    tunnel = record["tunnel_pid"], record["tunnel_start"]
    assert processes.is_alive(*tunnel)
    return tunnel


@pytest.mark.usefixtures("edge")
def test_down_ends_the_tunnel_of_a_killed_bridge(fresh: Project) -> None:
    tunnel = _killed_with_its_tunnel(fresh)
    assert bridge_control.stop(fresh) is False
    assert not processes.is_alive(*tunnel)


@pytest.mark.usefixtures("edge")
def test_up_ends_the_tunnel_of_a_killed_bridge(fresh: Project) -> None:
    tunnel = _killed_with_its_tunnel(fresh)
    try:
        bridge_control.start(fresh, port=0, tunnel="none")
        assert not processes.is_alive(*tunnel)
    finally:
        bridge_control.stop(fresh)


def test_a_lock_that_nobody_admits_to_is_told(fresh: Project) -> None:
    code = "import sys, pathlib; from run_control import locks; fd = locks.take(pathlib.Path(sys.argv[1])); "
    holder = subprocess.Popen(
        [sys.executable, "-c", code + "print(fd, flush=True); sys.stdin.read()", str(fresh.bridge_lock)],
        env=bridge_control.detached_environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert holder.stdout is not None and holder.stdout.readline()
        with pytest.raises(BridgeDownError, match="another bridge holds") as caught:
            bridge_control.start(fresh, port=0, tunnel="none")
        assert "bridgehead up" in caught.value.hint
    finally:
        holder.communicate(timeout=100)


def test_a_full_disk_is_named(
    fresh: Project, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1 << 20))
    answer = in_process(capsys, "-C", str(fresh.root), "up", "--port", "0")
    assert answer.code == 11 and f"the disk that holds {fresh.root} is full" in answer.err and "next: " in answer.err
    assert bridge_control.find(fresh) is None
