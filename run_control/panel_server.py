"""JupyterLab, or Voilà in a Jupyter server, on loopback with the panel's notebook: started, found, and ended.

It runs in a session of its own, so that Ctrl-C reaches us and not it, and has nothing to do with the bridge: that is
another process, and whatever happens here stops neither it nor a run.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from bridgehead import files
from bridgehead.errors import BridgeheadError, UsageError
from run_control.bridge_control import detached_environment
from run_control.project import Project

NOTEBOOK = "control_panel.ipynb"
LOG = "panel.log"
READY_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 15.0
_FOLDER = "jupyter"  # in the private folder: the kernel to use, the token, who runs
_NEEDED = ("anywidget", "ipywidgets", "ipykernel")
_QUIET = {"@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": False}}


@dataclass(frozen=True)
class PanelServer:
    """A server that answers. `url` bears its token: for its owner's screen, and for no log."""

    process: subprocess.Popen[bytes]
    url: str
    port: int

    def stop(self) -> None:
        """End it and its kernels."""
        _end(self.process)


def refuse_missing(*, voila: bool) -> None:
    """Raises UsageError that names what is not installed and the command that installs it."""
    wanted = (*_NEEDED, "jupyter_server", "voila") if voila else (*_NEEDED, "jupyterlab")
    missing = [name for name in wanted if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(
            f"the panel needs {' and '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not installed",
            hint=f"{Path(sys.executable).name} -m pip install 'bridgehead[panel]'",
        )


def notebook(project: Project) -> Path:
    """<project>/control_panel.ipynb; the shipped one when there is none yet, else whatever its owner made of it."""
    path = project.root / NOTEBOOK
    if not path.exists():
        found = importlib.util.find_spec("notebooks")
        assert found is not None and found.origin is not None
        files.write_atomic(path, (Path(found.origin).parent / NOTEBOOK).read_bytes())
    return path


def start(project: Project, *, voila: bool, port: int, browser: bool) -> PanelServer:
    """Start it and wait until it answers. `port` 0: 8888, or the next free one. Raises BridgeheadError, UsageError."""
    refuse_missing(voila=voila)
    path = notebook(project)
    project.make_private()
    runtime = _prepare(project.private / _FOLDER)
    where = f"voila/render/{quote(path.name)}" if voila else f"lab/tree/{quote(path.name)}"
    log = project.private / LOG
    stream = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        process = subprocess.Popen(
            _command(project, where, voila=voila, port=port, browser=browser),
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            cwd=project.root,
            env=_environment(project.private / _FOLDER),
            start_new_session=True,
        )
    finally:
        os.close(stream)
    try:
        return _await_ready(process, runtime / f"jpserver-{process.pid}.json", where, log)
    except BaseException:
        _end(process)
        raise


def _prepare(folder: Path) -> Path:
    """Our kernel, a fresh token, and no questions about news; the folder in which the server says where it is."""
    folder.mkdir(mode=0o700, exist_ok=True)
    argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    path = detached_environment()["PYTHONPATH"]
    spec = {"argv": argv, "display_name": "Python 3 (Bridgehead)", "language": "python", "env": {"PYTHONPATH": path}}
    for place, record in (
        ("data/kernels/python3/kernel.json", spec),
        ("config/labconfig/default_setting_overrides.json", _QUIET),
    ):
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        files.write_json(folder / place, record)
    files.write_atomic(folder / "token", secrets.token_urlsafe(32).encode(), mode=0o600)
    runtime = folder / "runtime"
    runtime.mkdir(mode=0o700, exist_ok=True)
    return runtime


def _environment(folder: Path) -> dict[str, str]:
    """`python3` of the notebook is this very Python, whatever kernels the laptop has besides."""
    known = os.environ
    environment = {name: value for name, value in known.items() if name not in ("JUPYTER_TOKEN", "JPY_PARENT_PID")}
    for name, place in (("JUPYTER_PATH", "data"), ("JUPYTER_CONFIG_PATH", "config")):
        environment[name] = os.pathsep.join(filter(None, (str(folder / place), known.get(name, ""))))
    return {
        **environment,
        "JUPYTER_RUNTIME_DIR": str(folder / "runtime"),
        "JUPYTER_TOKEN_FILE": str(folder / "token"),
    }


def _command(project: Project, where: str, *, voila: bool, port: int, browser: bool) -> list[str]:
    module = (
        ["jupyter_server", "--ServerApp.jpserver_extensions=voila.server_extension=True"] if voila else ["jupyterlab"]
    )
    words = [sys.executable, "-m", *module]
    words += [
        "--ServerApp.ip=127.0.0.1",
        f"--ServerApp.root_dir={project.root}",
        f"--ServerApp.open_browser={browser}",
        f"--ServerApp.default_url=/{where}" if voila else f"--LabApp.default_url=/{where}",
        "--ServerApp.log_level=WARN",
    ]
    words += [f"--ServerApp.port={port}", "--ServerApp.port_retries=0"] if port else []
    return [*words, "--allow-root"] if hasattr(os, "geteuid") and os.geteuid() == 0 else words


def _await_ready(process: subprocess.Popen[bytes], record: Path, where: str, log: Path) -> PanelServer:
    deadline = time.monotonic() + READY_TIMEOUT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise BridgeheadError(f"Jupyter ended while starting: {_last_line(log)}", hint=f"look into {log}")
        told = _told(record)
        if told and _listens(int(told["port"])):
            url = f"http://127.0.0.1:{told['port']}/{where}?token={told['token']}"
            return PanelServer(process, url, int(told["port"]))
        time.sleep(0.05)
    raise BridgeheadError(f"Jupyter did not start within {READY_TIMEOUT_S:g} s", hint=f"look into {log}")


def _told(record: Path) -> dict[str, Any]:
    """What the server writes down once it listens; empty before that."""
    try:
        told = json.loads(record.read_text())
    except (OSError, ValueError):
        return {}
    return told if isinstance(told, dict) and "port" in told and "token" in told else {}


def _listens(port: int) -> bool:
    """The record is there a moment before that."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
    except OSError:
        return False


def _last_line(log: Path) -> str:
    with contextlib.suppress(OSError, IndexError):
        return log.read_text(errors="replace").strip().splitlines()[-1][:200]
    return "no reason given"


def _end(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM lets it end its kernels; a second one, should it hang, ends all of its session."""
    if process.poll() is not None:
        return
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(STOP_TIMEOUT_S)
        return
    if hasattr(os, "killpg"):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.wait()
