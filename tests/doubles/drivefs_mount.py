"""Start, disturb, kill and unmount the double of a mounted Drive (doubles.drivefs) from a test."""

from __future__ import annotations

import contextlib
import ctypes.util
import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from doubles.google_cloud import Cloud
from support import wait_until

_TESTS = Path(__file__).parents[1]


def why_not() -> str:
    """Why no such mount can be made here; empty when it can."""
    if not sys.platform.startswith("linux") or not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "no access to /dev/fuse"
    if shutil.which("fusermount3") is None or ctypes.util.find_library("fuse3") is None:
        return "no libfuse3 (apt install fuse3)"
    return "" if importlib.util.find_spec("mfusepy") else "no mfusepy"


def unmount(mountpoint: Path) -> None:
    """Whatever state it is in; nothing when nothing is mounted there. Never touches what is mounted: that may hang."""
    while is_mounted(mountpoint):
        for command in (["fusermount3", "-uzq"], ["umount", "-l"]):
            if subprocess.run([*command, str(mountpoint)], capture_output=True, timeout=20).returncode == 0:
                break
        else:
            raise AssertionError(f"cannot unmount {mountpoint}")


def is_mounted(mountpoint: Path) -> bool:
    lines = Path("/proc/self/mounts").read_text().splitlines()
    return str(mountpoint) in [line.split(" ")[1].encode().decode("unicode_escape") for line in lines]


class DriveFsMount:
    """`with DriveFsMount(cloud, mountpoint, delay_s=(0.1, 0.5), drop=0.1) as mount:`; the keywords are those of Faults.

    A mount begins with an empty cache: it sees what the account holds and nothing else.
    """

    def __init__(self, cloud: Cloud, mountpoint: Path, *, seed: int = 0, **faults: Any) -> None:
        self.cloud = cloud
        self.mountpoint = Path(mountpoint)
        self.root = self.mountpoint / "MyDrive"
        self._seed = seed
        self._faults = faults
        self._process: subprocess.Popen[bytes] | None = None
        self._work: Path | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Mount; also again after `kill`, `die` or `unmount`."""
        self.close()
        self.mountpoint.mkdir(parents=True, exist_ok=True)
        self._work = Path(tempfile.mkdtemp(prefix="drivefs-"))  # short: a socket's path may have 107 bytes
        command = [
            sys.executable, "-m", "doubles.drivefs", str(self.cloud.folder), str(self.mountpoint), "--with-parent",
            "--cache", str(self._work / "cache"), "--control", str(self._work / "control"),
            "--seed", str(self._seed), "--faults", json.dumps(self._faults),
        ]  # fmt: skip
        with (self._work / "log").open("wb") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True,
                env={**os.environ, "PYTHONPATH": f"{_TESTS}{os.pathsep}{_TESTS.parent}"},
            )  # fmt: skip
        wait_until(self._up, 30, what="the mount")

    def _up(self) -> bool:
        assert self._process is not None and self._work is not None
        if self._process.poll() is not None:
            raise AssertionError((self._work / "log").read_text())
        return is_mounted(self.mountpoint)

    def faults(self, **faults: Any) -> None:
        """Change some; they stay until they are changed again."""
        self._ask({"faults": faults})

    def state(self) -> dict[str, Any]:
        """`pending` paths, `counts` of what was done, `calls` of the kernel, `written_bytes`, `faults`."""
        return self._ask({"state": True})

    def drain(self, timeout_s: float = 20.0) -> None:
        """Wait until everything that was closed is where the faults let it go."""
        wait_until(lambda: not self.state()["pending"], timeout_s, what="the uploads")

    def die(self) -> None:
        """The process ends by itself: all calls answer ENOTCONN until somebody mounts again."""
        with contextlib.suppress(OSError, ValueError):
            self._ask({"die": True})
        self._wait()

    def kill(self) -> None:
        """SIGKILL, and the machine's disk with it: what was not uploaded never will be. The dead mount stays."""
        self._signal(signal.SIGKILL)
        self._wait()

    def freeze(self) -> None:
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def remount(self, **faults: Any) -> None:
        """What running the cell again does."""
        self._faults |= faults
        self.start()

    def close(self) -> None:
        """Unmount without waiting for uploads; `drain` first to have them."""
        if self._process is not None:
            self._signal(signal.SIGKILL)
        self._wait()
        unmount(self.mountpoint)

    def _signal(self, number: int) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    def _wait(self) -> None:
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.wait(100)
            self._process.stdin.close()
            self._process = None
        if self._work is not None:
            shutil.rmtree(self._work, ignore_errors=True)
            self._work = None

    def _ask(self, asked: dict[str, Any]) -> dict[str, Any]:
        assert self._work is not None, "not mounted"
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(20)
            connection.connect(str(self._work / "control"))
            with connection.makefile("rwb") as stream:
                stream.write(json.dumps(asked).encode() + b"\n")
                stream.flush()
                answer: dict[str, Any] = json.loads(stream.readline())
                return answer
