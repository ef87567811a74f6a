"""A notebook VM on this very machine: a real Jupyter kernel in a folder of its own, beside a folder that plays Drive.

    <root>/vms/<name>/content/     the VM's disk; goes with the VM
    <root>/vms/<name>/cell.log     what the cells printed
    <root>/vms/<name>/host.json    the process that plays the Jupyter front end
    <root>/drive/                  the durable store; outlives every VM

Every process of a VM was started with BRIDGEHEAD_LOCAL_VM=<name> in its environment, so all of them can be found and
ended. Names are random: two projects on one machine never end each other's processes.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import bridgehead
from bridgehead import files, names, processes
from bridgehead.errors import VmError
from compute_backends.base import VmHandle, VmRequest

CONTENT = "content"
VM_HOME = "bridgehead"
CELL_LOG = "cell.log"
HOST_RECORD = "host.json"
HOST_LOG = "host.log"
CELL_RUNNING = "running"
_NAME_PREFIX = "local-"
_START_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 15.0
_SWEEP_TIMEOUT_S = 15.0


@dataclass(frozen=True)
class LocalVm(VmHandle):
    """What `bridgehead vm list` shows of one."""

    folder: Path = Path()
    alive: bool = False
    cell: str = ""  # running, done, error, interrupted, kernel-dead
    released: bool = False  # it gave itself back: its kernel waits, and nothing of ours runs on it


class LocalNotebook:
    """Local notebook VMs under one folder."""

    name = "local"

    def __init__(self, vms: Path, drive: Path) -> None:
        self.vms = vms
        self.drive = drive

    def start(self, request: VmRequest) -> LocalVm:
        """A new VM; returns once its kernel executes the first cell. Raises VmError."""
        handle = VmHandle(f"{_NAME_PREFIX}{secrets.token_hex(4)}")
        folder = self.folder(handle)
        (folder / CONTENT / VM_HOME).mkdir(parents=True)
        self.drive.mkdir(parents=True, exist_ok=True)
        process = self._spawn(handle, folder, request)
        try:
            self._await_first_cell(folder, process)
        except BaseException:  # Ctrl-C included: half a VM is of no use to anybody
            self.kill(handle)
            raise
        return self.describe(handle)

    def list(self) -> list[LocalVm]:
        """All that were started and not yet forgotten, oldest first."""
        if not self.vms.is_dir():
            return []
        folders = [entry for entry in self.vms.iterdir() if entry.name.startswith(_NAME_PREFIX)]
        return [self.describe(VmHandle(entry.name)) for entry in sorted(folders, key=lambda item: item.stat().st_ctime)]

    def describe(self, handle: VmHandle) -> LocalVm:
        folder = self.folder(handle)
        cell = str(self._record(handle).get("cell", ""))
        return LocalVm(
            name=handle.name,
            vm_id=self._vm_id(folder) or handle.vm_id,
            folder=folder,
            alive=self.is_alive(handle),
            cell=cell,
            released=cell != CELL_RUNNING and _was_released(folder),
        )

    def folder(self, handle: VmHandle) -> Path:
        return self.vms / handle.name

    def is_alive(self, handle: VmHandle) -> bool:
        record = self._record(handle)
        if record.get("boot_id") != processes.boot_id():
            return False
        return processes.is_alive(int(record["pid"]), int(record["start"]))

    def interrupt(self, handle: VmHandle) -> None:
        self._signal(handle, signal.SIGUSR1)

    def run_cell(self, handle: VmHandle) -> None:
        self._signal(handle, signal.SIGUSR2)

    def kill(self, handle: VmHandle) -> None:
        """SIGKILL to every process of the VM at once, then its disk is wiped. The drive stays."""
        _sweep(handle.name)
        self._wipe(handle)

    def stop(self, handle: VmHandle) -> None:
        """Ask the front end to shut its kernel down, then end what is left."""
        record = self._record(handle)
        with contextlib.suppress(VmError):
            self._signal(handle, signal.SIGTERM)
            deadline = time.monotonic() + _STOP_TIMEOUT_S
            while processes.is_alive(record["pid"], record["start"]) and time.monotonic() < deadline:
                time.sleep(0.02)
        self.kill(handle)

    def forget(self, handle: VmHandle) -> None:
        """Remove the folder of a VM that is gone."""
        shutil.rmtree(self.folder(handle), ignore_errors=True)

    def _await_first_cell(self, folder: Path, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + _START_TIMEOUT_S
        while time.monotonic() < deadline and process.poll() is None:
            if files.read_json(folder / HOST_RECORD) is not None:
                return
            time.sleep(0.05)
        raise VmError(
            "the local notebook kernel did not start",
            hint=f"look into {folder / HOST_LOG}; it needs jupyter_client and ipykernel (bridgehead doctor)",
        )

    def _signal(self, handle: VmHandle, sig: signal.Signals) -> None:
        record = self._record(handle)
        alive = record.get("boot_id") == processes.boot_id()
        if not alive or not processes.send(int(record["pid"]), sig, started_ticks=int(record["start"])):
            raise VmError(f"{handle.name} is gone", hint="bridgehead up --runtime local starts a new one")

    def _record(self, handle: VmHandle) -> dict[str, Any]:
        record = files.read_json(self.folder(handle) / HOST_RECORD)
        return record if isinstance(record, dict) else {}

    def _vm_id(self, folder: Path) -> str:
        """What the VM called itself. Its own record goes with its disk, so it is kept beside the disk too."""
        kept = folder / names.VM_RECORD
        for path in (folder / CONTENT / VM_HOME / names.VM_STATE / names.VM_RECORD, kept):
            record = files.read_json(path)
            if isinstance(record, dict) and record.get("vm_id"):
                return str(record["vm_id"])
        return ""

    def _wipe(self, handle: VmHandle) -> None:
        folder = self.folder(handle)
        vm_id = self._vm_id(folder)
        if vm_id and folder.is_dir():
            files.write_json(folder / names.VM_RECORD, {"v": names.RECORD_VERSION, "vm_id": vm_id})
        shutil.rmtree(folder / CONTENT, ignore_errors=True)

    def _spawn(self, handle: VmHandle, folder: Path, request: VmRequest) -> subprocess.Popen[bytes]:
        environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith("BRIDGEHEAD_")},
            "PYTHONPATH": str(Path(bridgehead.__file__).parent.parent),
            "PYTHONSAFEPATH": "1",
            names.ENV_LOCAL_VM: handle.name,
            names.ENV_HOME: str(folder / CONTENT / VM_HOME),
            names.ENV_STORE: str(self.drive),
        }
        command = [sys.executable, "-m", "compute_backends.notebook_host", str(folder), str(request.notebook)]
        log = os.open(folder / HOST_LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=folder,
                env=environment,
                start_new_session=True,
            )
        finally:
            os.close(log)


def _was_released(folder: Path) -> bool:
    """Whether the cell has written down that it gave the VM back; a cell that is run again takes that back."""
    told = files.read_json(folder / CONTENT / VM_HOME / names.VM_STATE / names.VM_LIFETIME)
    return isinstance(told, dict) and bool(told.get("released"))


def _sweep(name: str) -> None:
    """SIGKILL until no process carries the name: one may be forking while the others die. Raises VmError."""
    deadline = time.monotonic() + _SWEEP_TIMEOUT_S
    while left := processes.tagged(names.ENV_LOCAL_VM, name):
        for pid in left:
            processes.send(pid, processes.KILL, started_ticks=processes.start_ticks(pid))
        if time.monotonic() > deadline:
            raise VmError(f"processes of {name} could not be ended: {left}", hint="end them by hand")
        time.sleep(0.02)
