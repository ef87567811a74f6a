"""`up` through a tunnel, end to end: a double of Cloudflare's edge, the stub of cloudflared, and the real bridge."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import requests
from cli_process import Answer, in_process

from bridge_client import Client
from bridgehead import files, names, pairing, processes
from bridgehead.pairing import Pairing
from cloudflare_edge import NAMED_HOST, TOKEN, Edge, error_1033, response
from cloudflare_edge import edge as edge
from cloudflare_edge import stub as stub
from cloudflare_edge import token_file as token_file
from run_control import bridge_control
from run_control.project import Project
from support import wait_until

QUICK_1, QUICK_2 = (f"https://alpha-beta-gamma-{life}.trycloudflare.com" for life in (1, 2))
Cli = Callable[..., Answer]
_CODE = re.compile(r"bh1\.[A-Za-z0-9_-]+")


@pytest.fixture
def project(fresh: Project) -> Iterator[Project]:
    yield fresh
    bridge_control.stop(fresh)


@pytest.fixture
def cli(project: Project, capsys: pytest.CaptureFixture[str]) -> Cli:
    """`bridgehead WORDS` in the project."""
    return lambda *words: in_process(capsys, "-C", str(project.root), *words)


@pytest.fixture
def up(cli: Cli) -> Cli:
    return lambda *words: cli("up", "--port", "0", *words)


def state(project: Project) -> str:
    live = bridge_control.find(project)
    return live.tunnel_state if live is not None else ""


def code_in_notebook(project: Project) -> Pairing:
    return pairing.decode(_CODE.findall(project.notebook.read_text())[0])


def as_a_vm(told: Pairing, edge: Edge, path: str) -> requests.Response:
    """What a VM would ask with that pairing code, through the public internet."""
    proxies = {"https": f"http://127.0.0.1:{edge.port}"}
    headers = Client(0, told.key_id, told.key).signed("GET", path)
    return requests.get(told.url + path, headers=headers, proxies=proxies, verify=str(edge.ca), timeout=20)


def named(project: Project, stub: Path, token_file: Path, port: int, service: str = "") -> None:
    """A project whose [tunnel] is a named one, and a dashboard that leads to the bridge, or to `service`."""
    table = f'\n[tunnel]\nkind = "cloudflared"\nhostname = "{NAMED_HOST}"\ntoken_file = "{token_file}"\n'
    project.file.write_text(project.file.read_text() + table)
    rules = [{"hostname": NAMED_HOST, "service": service or f"http://localhost:{port}"}, {"service": "http_status:404"}]
    (stub / "dashboard.json").write_text(json.dumps(rules))


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def left_running(project: Project, stub: Path) -> list[str]:
    """Command lines of bridges of this project and of stubs."""
    lines = {pid: processes.command_line(pid) for pid in processes.all_pids()}
    return [line for line in lines.values() if str(project.root) in line or str(stub.parent / "bin") in line]


def test_a_vm_reaches_the_bridge_through_the_quick_tunnel(project: Project, cli: Cli, up: Cli, edge: Edge) -> None:
    answer = up("--tunnel", "cloudflared", "--json")
    assert answer.data["url"] == QUICK_1 and answer.data["tunnel"] == "cloudflared"
    told = as_a_vm(code_in_notebook(project), edge, names.SERVE_PREFIX + names.PAYLOAD_MANIFEST)
    assert told.status_code == 200 and told.json()["kind"] == "manifest"
    assert cli("status", "--json").data["bridge"]["tunnel_state"] == "connected"
    assert f"at {QUICK_1}: connected for" in cli("status").err


def test_there_is_no_pairing_code_before_the_address_is_known_everywhere(project: Project, up: Cli, edge: Edge) -> None:
    edge.pages = [error_1033(), response("502 Bad Gateway", b""), error_1033()]
    seen: list[tuple[bool, str]] = []

    def look() -> None:
        record = files.read_json(project.bridge_record)
        seen.append((project.notebook.exists(), record["state"] if isinstance(record, dict) else ""))

    edge.on_request = look
    assert up("--tunnel", "cloudflared").code == 0
    assert seen[:4] == [(False, "starting")] * 4 and edge.pages == []
    assert project.notebook.exists() and "code 1033" in project.bridge_log.read_text()


def test_a_foreign_server_at_the_address_is_told_and_nothing_is_left(
    project: Project, up: Cli, edge: Edge, stub: Path
) -> None:
    edge.foreign = response("200 OK", b"<h1>Welcome</h1>", server="nginx/1.22.1")
    answer = up("--tunnel", "cloudflared")
    assert answer.code == 11 and "another server answers at alpha-beta-gamma-1.trycloudflare.com (nginx" in answer.err
    assert not project.notebook.exists() and left_running(project, stub) == []


def test_a_tunnel_that_dies_comes_back_and_its_new_name_is_in_notebook_and_record(
    project: Project, up: Cli, edge: Edge, stub: Path
) -> None:
    assert up("--tunnel", "cloudflared").code == 0
    before = code_in_notebook(project)
    os.kill(json.loads((stub / "start-1").read_text())["pid"], signal.SIGKILL)
    wait_until(lambda: (live := bridge_control.find(project)) and live.url == QUICK_2, 60, what="the new address")
    after = code_in_notebook(project)
    assert (before.url, after.url) == (QUICK_1, QUICK_2)
    assert (after.key_id, after.key, after.boot_sha256) == (before.key_id, before.key, before.boot_sha256)
    wait_until(lambda: state(project) == "connected", 30)
    assert as_a_vm(after, edge, names.QUEUE_TEXT_PATH).status_code == 200


@pytest.mark.usefixtures("edge")
def test_a_bridge_that_cant_write_its_record_serves_on_and_writes_it_later(
    project: Project, up: Cli, stub: Path
) -> None:
    assert up("--tunnel", "cloudflared").code == 0
    whole = project.bridge_record.read_bytes()
    project.bridge_record.unlink()
    project.bridge_record.mkdir()
    os.kill(json.loads((stub / "start-1").read_text())["pid"], signal.SIGKILL)
    try:
        wait_until(lambda: "bridge.json can't be written" in project.bridge_log.read_text(), 60)
        wait_until(lambda: code_in_notebook(project).url == QUICK_2, 60, what="the new address in the notebook")
        project.bridge_record.rmdir()
        wait_until(lambda: (live := bridge_control.find(project)) and live.url == QUICK_2, 30, what="the record")
    finally:
        if not project.bridge_record.is_file():
            project.bridge_record.write_bytes(whole)


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        ("rate-limited", "too many were asked for"),
        ("hijacked", "not to the bridge at"),
        ("unknown-flag", "does not know the option"),
    ],
)
@pytest.mark.usefixtures("edge")
def test_a_tunnel_that_cant_be_used_is_told_by_up(project: Project, up: Cli, stub: Path, mode: str, words: str) -> None:
    (stub / "mode").write_text(mode)
    answer = up("--tunnel", "cloudflared")
    assert answer.code == 11 and words in answer.err and "next: " in answer.err
    assert not project.notebook.exists() and left_running(project, stub) == []


def test_the_named_tunnel_of_the_project_file_is_taken_and_its_token_shows_up_nowhere(
    project: Project, up: Cli, edge: Edge, stub: Path, token_file: Path
) -> None:
    port = free_port()
    named(project, stub, token_file, port)
    (stub / "mode").write_text("careless")
    assert up("--port", str(port)).code == 0
    live = bridge_control.need(project)
    assert live.url == f"https://{NAMED_HOST}" and live.tunnel == "cloudflared"
    assert as_a_vm(code_in_notebook(project), edge, names.QUEUE_TEXT_PATH).status_code == 200
    record = files.read_json(project.bridge_record)
    assert isinstance(record, dict)
    for pid in (live.pid, record["tunnel_pid"]):
        assert TOKEN not in Path(f"/proc/{pid}/cmdline").read_bytes() + Path(f"/proc/{pid}/environ").read_bytes()
    for path in project.private.rglob("*"):
        assert path.is_dir() or TOKEN not in path.read_bytes(), path
    assert stat.S_IMODE(token_file.stat().st_mode) == 0o600


@pytest.mark.usefixtures("edge")
def test_a_dashboard_that_leads_elsewhere_is_told_by_up(
    project: Project, up: Cli, stub: Path, token_file: Path
) -> None:
    named(project, stub, token_file, 0, "http://localhost:3000")
    answer = up()
    assert answer.code == 11 and f"sends {NAMED_HOST} to http://localhost:3000" in answer.err
    assert TOKEN.decode() not in answer.err + project.bridge_log.read_text()


def test_a_token_that_cant_be_read_is_told_before_anything_starts(
    project: Project, up: Cli, stub: Path, tmp_path: Path
) -> None:
    named(project, stub, tmp_path / "gone", 0)
    answer = up()
    assert answer.code == 2 and "can't be read" in answer.err and not project.bridge_log.exists()


def test_another_kind_for_once_leaves_the_table_as_it_is(
    project: Project, up: Cli, stub: Path, token_file: Path
) -> None:
    named(project, stub, token_file, 0)
    assert up("--tunnel", "none", "--json").data["tunnel"] == "none"
    assert bridge_control.need(project).url.startswith("http://127.0.0.1:")
    assert up().code == 0  # without a kind the live one is as good as any


def test_an_address_of_the_users_own_is_proven_too(project: Project, up: Cli) -> None:
    port = free_port()
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        threading.Thread(target=_forward, args=(proxy, port), daemon=True).start()
        url = f"http://localhost:{proxy.getsockname()[1]}"
        project.file.write_text(project.file.read_text() + f'\n[tunnel]\nurl = "{url}"\n')
        assert up("--port", str(port), "--json").data["url"] == url
        assert code_in_notebook(project).url == url
        bridge_control.stop(project)
        proxy.shutdown(socket.SHUT_RDWR)
    answer = up("--port", str(port))  # now nobody forwards
    assert answer.code == 11 and "can't be reached" in answer.err


def test_a_bridge_that_is_told_to_stop_while_it_proves_its_address_stops(
    project: Project, edge: Edge, stub: Path
) -> None:
    edge.pages = [error_1033()] * 1000
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "run_control.bridge_process",
            str(project.root),
            "--port",
            "0",
            "--tunnel",
            "cloudflared",
        ],
        env=bridge_control.detached_environment(),
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until(lambda: "1033" in str(files.read_json(project.bridge_record)), 30)
        process.terminate()
        assert process.wait(100) == 0
    finally:
        process.kill()
        process.wait()
    assert not project.bridge_record.exists() and left_running(project, stub) == []


def _forward(proxy: socket.socket, port: int) -> None:
    """A reverse proxy for one request at a time: they are small, and each closes its connection."""
    while True:
        try:
            client, _ = proxy.accept()
        except OSError:
            return
        with client, socket.create_connection(("127.0.0.1", port)) as bridge:
            bridge.sendall(client.recv(1 << 16))
            while data := bridge.recv(1 << 16):
                client.sendall(data)
