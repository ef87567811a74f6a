"""A paired VM home, run folders as a command daemon would make them, and a bridge that misbehaves on purpose."""

from __future__ import annotations

import contextlib
import http.server
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from bridge_client import STAGE, LiveBridge
from bridgehead import files, names, processes
from bridgehead.pairing import Pairing
from bridgehead.records import ExitRecord, ProcessRecord, RunRecord, StageSpec
from vm_daemons.home import VmHome

KEY = bytes(range(32))
Handler = Callable[[http.server.BaseHTTPRequestHandler], None]


def paired_home(root: Path, live: LiveBridge | None = None, *, url: str = "http://127.0.0.1:9") -> VmHome:
    """A VM home with folders and pairing; without a bridge the address leads nowhere."""
    home = VmHome(root)
    home.create()
    if live is not None:
        home.save_pairing(live.bridge.pairing(f"http://127.0.0.1:{live.bridge.port}"))
    else:
        home.save_pairing(Pairing(url, "test-key", KEY, "0" * 64))
    home.update_record(project="demo")
    return home


def make_run(home: VmHome, run_id: str, *, attempt: int = 1) -> Path:
    """A run folder with run.json and a process.json that names a live process: this one."""
    run_dir = home.run(run_id)
    run_dir.mkdir(parents=True, exist_ok=True)
    spec = StageSpec(STAGE, "python train.py")
    vm_id = home.record()["vm_id"]
    record = RunRecord(run_id, STAGE, "demo", "c" * 32, attempt, vm_id, time.time(), spec)
    files.write_json(run_dir / names.RUN_RECORD, record.to_json())
    pid = os.getpid()
    ticks = processes.start_ticks(pid)
    process = ProcessRecord(processes.boot_id(), pid, ticks, pid, ticks, pid, time.time())
    files.write_json(run_dir / names.PROCESS, process.to_json())
    return run_dir


def end_run(run_dir: Path, state: names.RunState = names.RunState.DONE, *, attempt: int = 1, message: str = "") -> None:
    record = ExitRecord(run_dir.name, attempt, state, 0, message=message, started=1.0, ended=2.0)
    files.write_json(run_dir / names.EXIT, record.to_json())


@contextlib.contextmanager
def scripted_server(answer: Handler) -> Iterator[str]:
    """An HTTP server whose every request is handled by `answer`; yields its URL."""

    class Scripted(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            answer(self)

        do_POST = do_PUT = do_HEAD = do_PATCH = do_DELETE = do_GET

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Scripted)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(100)


def reply(handler: http.server.BaseHTTPRequestHandler, status: int, body: bytes, **headers: str) -> None:
    handler.rfile.read(int(handler.headers.get("Content-Length", "0")))
    handler.send_response(status)
    for name, value in {"Content_Length": str(len(body)), **headers}.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()
    handler.wfile.write(body)
