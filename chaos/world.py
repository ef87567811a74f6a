"""One round's machines: a laptop folder with its bridge, local notebook VMs, a store, and the tunnel between them.

<round>/laptop/        the project folder (a small disk of its own where we may mount one)
<round>/vm-disk/       the disk of the VMs
<round>/cloud/         what the store really holds
<round>/relay/         the sshd between laptop and VMs, with --tunnel ssh
<round>/mount/         the store as the VM sees it: mounted from the cloud
<round>/truth/         what was executed, and what VMs that died had written
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bridgehead import files, names, processes
from chaos import mounts, stores, workload
from chaos.log_check import Life, attempts_in, taken
from chaos.proxy import AWAY, Proxy
from chaos.relay import Relay, free_port
from chaos.store_check import StoredRun
from compute_backends.local_notebook import CONTENT, VM_HOME, LocalNotebook, LocalVm
from run_control import views
from run_control.project import Project

SSH = "ssh"
TAG = "CHAOS_ROUND"  # in the environment of every process of a round
_COMMAND_S = 120.0
_START_VM = """\
import pathlib, sys
from compute_backends.base import VmRequest
from compute_backends.local_notebook import LocalNotebook
vms, drive, notebook = map(pathlib.Path, sys.argv[1:])
print(LocalNotebook(vms, drive).start(VmRequest(notebook)).name)
"""
_KILLS = 100
_LAPTOP_DISK_MB = 160
_VM_DISK_MB = 200
_STORE_MB = 120


class CommandRefused(Exception):
    """A public command answered with an error."""


@dataclass(frozen=True)
class Pid:
    """A very process: pids get reused."""

    pid: int
    start: int

    @property
    def alive(self) -> bool:
        return processes.is_alive(self.pid, self.start)

    def send(self, sig: signal.Signals) -> bool:
        return processes.send(self.pid, sig, started_ticks=self.start)


@dataclass(frozen=True)
class VmLife:
    """One attempt of a run on one VM: its growing files as they lay there last."""

    vm: str
    attempt: int
    files: dict[str, bytes]
    taken: int = 0  # the highest attempt of the run that this VM's journal has; 0 when that is not known


@dataclass
class World:
    """Everything a fault can get at, and everything the verdict is made from."""

    folder: Path
    tag: str
    code: Path  # the copy of the packages that is under attack
    pool: Path  # a made clips pool, shared by all VMs
    tunnel: str = "none"  # or ssh: through a relay of the campaign's, with the proxy before its ports
    drive_seed: int | None = None  # the store is the double of a mounted Drive, with this seed; None: a plain folder
    clock: dict[str, Path] = field(default_factory=dict)  # laptop, vm -> the file that says how wrong its clock is
    lives: dict[str, list[VmLife]] = field(default_factory=dict)  # by run
    frozen: set[str] = field(default_factory=set)  # VMs by name
    wiped: set[str] = field(default_factory=set)
    laptop_is_off: bool = False  # nobody starts the bridge again until it is false
    store_is_well: bool = True
    damaged: set[tuple[str, int]] = field(default_factory=set)  # (run, step) whose stored bytes the campaign changed

    def __post_init__(self) -> None:
        self.project = Project(self.folder / "laptop")
        self.truth = self.folder / "truth"
        self.cloud = self.folder / "cloud"
        self.bridge_port = free_port()
        self.proxy = Proxy()
        self.relay = Relay(self.folder / "relay", self.proxy.stand_before) if self.tunnel == SSH else None
        self._disks: list[mounts.Disk] = []

    # --- up and down ------------------------------------------------------------------------------

    def build(self) -> None:
        """Folders, disks, project and tunnel. The bridge is started by `up`."""
        for folder in (self.project.root, self.truth, self.cloud):
            folder.mkdir(parents=True)
        self.laptop_disk = self._disk(self.project.root, _LAPTOP_DISK_MB)
        self.proxy.start()
        if self.relay is not None:
            self.relay.start()
        else:
            self.proxy.stand_before(self.bridge_port)
        workload.write_project(self.project.root, self._tunnel_table())
        (self.project.root / names.QUEUE_FILE).touch()
        self.project.make_private()
        self.project.vms.mkdir()
        self.vm_disk = self._disk(self.project.vms, _VM_DISK_MB)
        self.store_disk = self._disk(self.cloud, _STORE_MB)
        mountpoint = self.folder / "mount"
        if self.drive_seed is None:
            self.store: stores.Store = stores.FolderStore(self.cloud, mountpoint, self.store_disk)
        else:
            self.store = stores.DriveStore(self.cloud, mountpoint, self.drive_seed)
        self.store.mount()
        self.project.drive.symlink_to(self.store.path)
        for name in ("laptop", "vm"):
            self.clock[name] = self.folder / f"clock-{name}"
            mounts.set_clock(self.clock[name], 0.0)

    def up(self) -> None:
        """`bridgehead up`; the address that it gets leads through our proxy. Raises CommandRefused."""
        self.command("up", "--tunnel", self.tunnel, "--port", str(self.bridge_port))

    def move_bridge(self) -> None:
        """Whoever starts the bridge next does so at another port."""
        self.bridge_port = free_port()
        if self.relay is None:
            self.proxy.stand_before(self.bridge_port)

    def down(self) -> None:
        with contextlib.suppress(CommandRefused, subprocess.TimeoutExpired):
            self.command("down")

    def clean_up(self, *, keep: bool) -> list[str]:
        """End whatever is left and take the disks away. Returns the command lines of what was left running.

        With `keep` what lay on the disks is copied to <round>/evidence first.
        """
        left = self.tagged()
        shown = [processes.command_line(pid) for pid in left]
        for _ in range(_KILLS):  # one may have been forking
            for pid in left:
                processes.send(pid, processes.KILL, started_ticks=processes.start_ticks(pid))
            if not left:
                break
            time.sleep(0.05)
            left = self.tagged()
        if self.relay is not None:
            self.relay.stop()
        self.proxy.stop()
        if keep:
            self._keep_evidence()
        if hasattr(self, "store"):
            self.store.close()
        for disk in reversed(self._disks):
            disk.unmount()
        return shown

    def command(self, *words: str, machine: str = "laptop") -> dict[str, Any]:
        """A public command's data. Raises CommandRefused."""
        argv = [sys.executable, "-m", "run_control.cli", "--project", str(self.project.root), *words, "--json"]
        process = subprocess.run(
            argv,
            env=self.environment(machine),
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_COMMAND_S,
            start_new_session=True,  # Ctrl-C is for the campaign, which then ends everything in order
        )
        lines = process.stdout.strip().splitlines()
        answer = json.loads(lines[-1]) if lines else {}
        if process.returncode != 0 or not answer.get("ok"):
            why = answer.get("error", {}).get("message") or process.stderr[-300:]
            raise CommandRefused(f"bridgehead {' '.join(words)}: exit {process.returncode}: {why}")
        data: dict[str, Any] = answer["data"]
        return data

    def environment(self, machine: str) -> dict[str, str]:
        return {
            **os.environ,
            "PYTHONPATH": str(self.code),
            "PYTHONSAFEPATH": "1",
            "OMP_NUM_THREADS": "1",
            TAG: self.tag,
            workload.TRUTH_ENV: str(self.truth),
            **mounts.clock_environment(self.code.parent / mounts.CLOCK_LIBRARY, self.clock[machine]),
        }

    # --- VMs --------------------------------------------------------------------------------------

    @property
    def backend(self) -> LocalNotebook:
        return LocalNotebook(self.project.vms, self.project.drive)

    def vms(self) -> list[LocalVm]:
        """All that were started, dead ones too."""
        return self.backend.list()

    def living(self) -> list[LocalVm]:
        return [vm for vm in self.vms() if vm.alive and vm.name not in self.wiped]

    def start_vm(self, *, tell_the_ledger: bool) -> None:
        """A new VM. With `tell_the_ledger` as `up --runtime local` does it, which clears dead ones away first."""
        if tell_the_ledger:
            for vm in self.vms():  # `up` clears them away: their last words are noted first
                if not vm.alive and vm.name not in self.wiped:
                    self.kill_vm(vm.name)
            words = ("up", "--runtime", "local")
            name = str(self.command(*words, machine="vm")["vm"])
        else:
            name = str(self.command("vm", "start", machine="vm")["vm"]["name"])
        self.share_pool(name)

    def start_vm_without_laptop(self) -> None:
        """A new VM from the notebook as it is: somebody opens its tab elsewhere. Raises SubprocessError."""
        words = (str(self.project.vms), str(self.project.drive), str(self.project.notebook))
        result = subprocess.run(
            [sys.executable, "-c", _START_VM, *words],
            env=self.environment("vm"),
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_COMMAND_S,
            check=True,
            start_new_session=True,
        )
        self.share_pool(result.stdout.strip())

    def share_pool(self, name: str) -> None:
        data = self.home(name) / "data"
        with contextlib.suppress(OSError):
            if self.home(name).is_dir() and not data.exists():
                data.symlink_to(self.pool)

    def home(self, name: str) -> Path:
        return self.project.vms / name / CONTENT / VM_HOME

    def pids_of(self, name: str) -> list[Pid]:
        return [Pid(pid, processes.start_ticks(pid)) for pid in processes.tagged(names.ENV_LOCAL_VM, name)]

    def freeze(self, name: str) -> None:
        for _ in range(2):  # one may have been forking
            for process in self.pids_of(name):
                process.send(signal.SIGSTOP)
        self.frozen.add(name)

    def thaw(self, name: str) -> None:
        for process in self.pids_of(name):
            process.send(signal.SIGCONT)
        self.frozen.discard(name)

    def kill_vm(self, name: str) -> None:
        """The provider takes it, disk and all. What it had written is noted first, for the verdict on the logs."""
        self.freeze(name)
        self.note_lives(name)
        _copy(self.home(name) / names.VM_STATE, self.folder / "evidence" / "vms" / name / names.VM_STATE)
        self.wiped.add(name)
        self.backend.kill(LocalVm(name))
        self.frozen.discard(name)
        if not self.living():
            self.store.lose()

    def note_lives(self, name: str) -> None:
        """Remember the growing files of a VM's runs as they are now: its last words."""
        attempts_of = taken(_bytes(self.home(name) / names.VM_STATE / names.VM_JOURNAL))
        for run_dir in sorted(self.home(name).glob(f"{names.VM_RUNS}/*")):
            data = {item: _bytes(run_dir / item) for item in names.GROWING_FILES}
            known = [life for life in self.lives.get(run_dir.name, []) if life.vm != name]
            highest = attempts_of.get(run_dir.name, 0)
            attempts = attempts_in(data[names.LOG], highest)
            self.lives[run_dir.name] = known + [VmLife(name, attempt, data, highest) for attempt in attempts]

    def lives_of(self, run_id: str, item: str, ended_as: int) -> list[Life]:
        """The lives of a growing file in the order of their attempts, up to the one as which the run ended."""
        counted = [life for life in self.lives.get(run_id, []) if life.taken <= ended_as]
        ordered = sorted(counted, key=lambda life: life.attempt)
        return [Life(life.vm, life.files[item]) for life in ordered if life.files[item]]

    # --- what can be seen ----------------------------------------------------------------------------

    def runs(self) -> list[views.RunView]:
        return views.runs(self.project)

    def stored_run(self, run_id: str) -> StoredRun:
        return self.store.run(f"{workload.PROJECT}/{names.STORE_RUNS}/{run_id}")

    def bridge_pid(self) -> Pid | None:
        record = files.read_json(self.project.bridge_record)
        if not isinstance(record, dict) or not record.get("pid"):
            return None
        return Pid(int(record["pid"]), int(record["start"]))

    def tagged(self) -> list[int]:
        """Every process of this round but what belongs to the campaign itself."""
        return processes.tagged(TAG, self.tag, but_not=self.store.own_pids() if hasattr(self, "store") else ())

    def keep_vms(self) -> None:
        """Copy what is still on the VMs: `down` wipes their disks."""
        for vm in self.vms():
            _copy(self.project.vms / vm.name, self.folder / "evidence" / "vms" / vm.name)

    # --- inside ----------------------------------------------------------------------------------------

    def _keep_evidence(self) -> None:
        _copy(self.project.root, self.folder / "evidence" / "laptop")
        _copy(self.cloud, self.folder / "evidence" / "cloud")

    def _tunnel_table(self) -> str:
        lines = ["", "[tunnel]", f'kind = "{self.tunnel}"', f'url = "http://{AWAY}:{{port}}"']
        if self.relay is not None:
            lines += ['host = "127.0.0.1"', f"options = {json.dumps(self.relay.options())}"]
        return "\n".join([*lines, ""])

    def _disk(self, path: Path, size_mb: int) -> mounts.Disk:
        disk = mounts.Disk(path, size_mb)
        disk.mount()
        self._disks.append(disk)
        return disk


def wait_gone(pids: list[Pid], timeout_s: float) -> list[Pid]:
    """Those that still live after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while (left := [pid for pid in pids if pid.alive]) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


def remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


def _copy(source: Path, target: Path) -> None:
    """As much of it as can be read."""
    leave = shutil.ignore_patterns(mounts.BALLAST, "vms", "drive", "data", "ship", "api")
    with contextlib.suppress(OSError, shutil.Error):
        shutil.copytree(source, target, symlinks=True, ignore=leave, dirs_exist_ok=True)


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
