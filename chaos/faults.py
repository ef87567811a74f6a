"""Each way in which something dies, stops, fills up or lies: a small class with the name that the campaign reports.

`strike` does it, `heal` undoes what a user or a provider would undo. What has died is never brought back here: that is
the product's own business, or the attendant's where it takes a user.
"""

from __future__ import annotations

import signal
from abc import abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from bridgehead import names, processes
from chaos import mounts, store_check, url_faults
from chaos.fault import Fault, Missed, kill
from chaos.proxy import Mode
from chaos.store_check import FolderRun
from chaos.stores import DriveStore
from chaos.watch import daemon_process, runner_process, stage_process
from chaos.world import Pid

_BLOCK_BYTES = 512


class KillStage(Fault):
    """SIGKILL to the stage's process."""

    kind = "kill-stage"

    def strike(self) -> None:
        kill(stage_process(self._run_dir()), "stage")


class KillRunner(Fault):
    """SIGKILL to the stage runner; the stage goes on."""

    kind = "kill-runner"

    def strike(self) -> None:
        kill(runner_process(self._run_dir()), "runner")


class KillStageAndRunner(Fault):
    """Both at once, as an out-of-memory killer may."""

    kind = "kill-stage-and-runner"

    def strike(self) -> None:
        folder = self._run_dir()
        kill(runner_process(folder), "runner")
        kill(stage_process(folder), "stage")


class KillDaemon(Fault):
    """SIGKILL to one of the VM's daemons."""

    daemon: ClassVar[str] = ""

    def strike(self) -> None:
        kill(daemon_process(self.world, self._vm().name, self.daemon), self.daemon)


class KillKernel(Fault):
    """SIGKILL to the notebook's kernel, cell and all."""

    kind = "kill-kernel"

    def strike(self) -> None:
        vm = self._vm()
        for process in self.world.pids_of(vm.name):
            if "ipykernel_launcher" in processes.command_line(process.pid):
                kill(process, "kernel")
                return
        raise Missed("no kernel lives")


class KillBridge(Fault):
    """SIGKILL to the bridge on the laptop."""

    kind = "kill-bridge"

    def strike(self) -> None:
        kill(self.world.bridge_pid(), "bridge")


class LaptopOff(Fault):
    """The laptop is switched off, then the VM dies: the next one has nothing but the store and its notebook."""

    kind = "laptop-off-vm-dies"
    hold_range_s = (14.0, 22.0)

    def strike(self) -> None:
        vm = self._vm()
        was_off, self.world.laptop_is_off = self.world.laptop_is_off, True  # before the kill: nobody starts it again
        try:
            kill(self.world.bridge_pid(), "bridge")
        except Missed:
            self.world.laptop_is_off = was_off  # a blow that missed is never healed
            raise
        self.world.kill_vm(vm.name)

    def heal(self) -> None:
        self.world.laptop_is_off = False


class KillVm(Fault):
    """The VM is gone without a word, its disk too."""

    kind = "kill-vm"

    def strike(self) -> None:
        self.world.kill_vm(self._vm().name)


@dataclass
class _Stop(Fault):
    """SIGSTOP for a while."""

    stopped: list[Pid] = field(default_factory=list)
    hold_range_s = (1.0, 7.0)

    def strike(self) -> None:
        self.stopped = [pid for pid in self._targets() if pid is not None and pid.send(signal.SIGSTOP)]
        if not self.stopped:
            raise Missed("nothing to stop")

    def heal(self) -> None:
        for pid in self.stopped:
            pid.send(signal.SIGCONT)

    @abstractmethod
    def _targets(self) -> list[Pid | None]: ...


class StopStage(_Stop):
    kind = "stop-stage"

    def _targets(self) -> list[Pid | None]:
        return [stage_process(self._run_dir())]


class StopDaemons(_Stop):
    """All daemons of the VM hang, the stage does not."""

    kind = "stop-daemons"

    def _targets(self) -> list[Pid | None]:
        vm = self._vm().name
        return [daemon_process(self.world, vm, daemon) for daemon in names.DAEMONS]


class StopBridge(_Stop):
    """A laptop that sleeps."""

    kind = "stop-bridge"
    hold_range_s = (3.0, 9.0)

    def _targets(self) -> list[Pid | None]:
        return [self.world.bridge_pid()]


@dataclass
class FreezeVm(Fault):
    """The whole VM stands still, shorter than it takes to be given up."""

    kind = "freeze-vm"
    hold_range_s = (1.0, 4.0)
    vm: str = ""

    def strike(self) -> None:
        self.vm = self._vm().name
        self.world.freeze(self.vm)

    def heal(self) -> None:
        self.world.thaw(self.vm)


class TwoVms(FreezeVm):
    """The VM stands still until another has its run, then wakes and believes that it still owns it."""

    kind = "two-vms"
    hold_range_s = (14.0, 18.0)


class _Tunnel(Fault):
    mode: ClassVar[Mode] = Mode.OPEN
    hold_range_s = (1.0, 8.0)

    def strike(self) -> None:
        self.world.proxy.set_mode(self.mode)

    def heal(self) -> None:
        self.world.proxy.set_mode(Mode.OPEN)


class CutTunnel(_Tunnel):
    kind = "tunnel-cut"
    mode = Mode.CUT


class SlowTunnel(_Tunnel):
    kind = "tunnel-slow"
    mode = Mode.SLOW


class FlappingTunnel(_Tunnel):
    kind = "tunnel-flapping"
    mode = Mode.FLAP


class _Root(Fault):
    @classmethod
    def missing(cls) -> str:
        return "" if mounts.can_mount() else "needs root, to mount a small disk"


class FullVmDisk(_Root):
    kind = "disk-full-vm"
    hold_range_s = (1.0, 5.0)

    def strike(self) -> None:
        self.world.vm_disk.fill()

    def heal(self) -> None:
        self.world.vm_disk.empty()


class FullLaptopDisk(_Root):
    kind = "disk-full-laptop"
    hold_range_s = (1.0, 5.0)

    def strike(self) -> None:
        self.world.laptop_disk.fill()

    def heal(self) -> None:
        self.world.laptop_disk.empty()


class FullStore(_Root):
    """No more room in the store, often in the middle of a slot."""

    kind = "store-full"
    hold_range_s = (1.0, 6.0)

    def strike(self) -> None:
        self.world.store.fill()

    def heal(self) -> None:
        self.world.store.empty()


class DeadMount(Fault):
    """The mount is gone, and a while later it is back."""

    kind = "mount-dead"
    hold_range_s = (1.0, 8.0)

    def strike(self) -> None:
        self.world.store_is_well = False
        self.world.store.unmount()

    def heal(self) -> None:
        self.world.store.mount()
        self.world.store_is_well = True


class _Drive(Fault):
    """The mounted Drive misbehaves in its own ways."""

    faults: ClassVar[dict[str, object]] = {}
    hold_range_s = (3.0, 12.0)

    @classmethod
    def missing(cls) -> str:
        return DriveStore.missing()

    def strike(self) -> None:
        self.world.store.misbehave(**self.faults)

    def heal(self) -> None:
        self.world.store.misbehave()


class ReorderingMount(_Drive):
    """Later files overtake earlier ones on their way up."""

    kind = "mount-reordering"
    faults: ClassVar[dict[str, object]] = {"reorder": True, "delay_s": (0.0, 3.0)}


class DroppingMount(_Drive):
    """Files look uploaded and never were."""

    kind = "mount-dropping"
    faults: ClassVar[dict[str, object]] = {"drop": 0.3}


class ZeroingMount(_Drive):
    """One block of a file arrives as zeros."""

    kind = "mount-zeroing"
    faults: ClassVar[dict[str, object]] = {"zero": 0.3}


class DuplicatingMount(_Drive):
    """Files arrive twice under one name; the mount shows `name (1)`."""

    kind = "mount-duplicating"
    faults: ClassVar[dict[str, object]] = {"duplicate": 0.4}


class StaleMount(_Drive):
    """Folders that were listed once keep showing that."""

    kind = "mount-stale"
    faults: ClassVar[dict[str, object]] = {"stale": True}


class SlowMount(_Drive):
    """Each call takes its time."""

    kind = "mount-slow"
    faults: ClassVar[dict[str, object]] = {"slow_s": 0.15}


class HangingMount(_Drive):
    """No call returns."""

    kind = "mount-hanging"
    faults: ClassVar[dict[str, object]] = {"hang": True}


class FailingMount(_Drive):
    """EIO now and then."""

    kind = "mount-failing"
    faults: ClassVar[dict[str, object]] = {"error": 0.3}


class NoUploads(_Drive):
    """Nothing that was written is uploaded for a while."""

    kind = "mount-holding"
    faults: ClassVar[dict[str, object]] = {"hold": True}


class _Damage(Fault):
    """A block of the newest checkpoint changes on its disk, and the run is killed: it has to find another one."""

    in_store: ClassVar[bool] = False
    zero: ClassVar[bool] = False

    def strike(self) -> None:
        folder = self._run_dir()
        vm = self._vm()
        (self._damage_store if self.in_store else self._damage_local)(folder)
        if self.in_store:
            self.world.kill_vm(vm.name)
        else:
            kill(runner_process(folder), "runner")
            kill(stage_process(folder), "stage")

    def _damage_store(self, folder: Path) -> None:
        stored = self.world.stored_run(folder.name)
        newest = store_check.newest_slot(stored)
        if newest is None or len(store_check.readable_steps(stored)) < 2:
            raise Missed("the store holds fewer than two checkpoints")
        slot, commit = newest
        self.world.damaged.add((folder.name, int(commit["step"])))
        largest = max(commit["files"], key=lambda entry: int(entry["size"]))
        stored.change(f"{slot}/{largest['stored']}", self._altered)

    def _damage_local(self, folder: Path) -> None:
        root = folder / names.CHECKPOINTS
        found = sorted(entry for entry in root.glob("step-*") if (entry / names.CHECKPOINT_MANIFEST).exists())
        if len(found) < 2:
            raise Missed("the VM holds fewer than two checkpoints")
        largest = max(found[-1].iterdir(), key=lambda path: path.stat().st_size)
        FolderRun(largest.parent).change(largest.name, self._altered)

    def _altered(self, data: bytes) -> bytes:
        """The same with a zeroed block or a flipped bit."""
        at = self.random.randrange(max(1, len(data) - _BLOCK_BYTES))
        if self.zero and any(data[at : at + _BLOCK_BYTES]):
            end = min(len(data), at + _BLOCK_BYTES)
            return data[:at] + bytes(end - at) + data[end:]
        return data[:at] + bytes([data[at] ^ (1 << self.random.randrange(8))]) + data[at + 1 :]


class FlippedLocal(_Damage):
    kind = "flipped-block-local"


class ZeroedLocal(_Damage):
    kind = "zeroed-block-local"
    zero = True


class FlippedStored(_Damage):
    kind = "flipped-block-store"
    in_store = True


class ZeroedStored(_Damage):
    kind = "zeroed-block-store"
    in_store = True
    zero = True


class _Clock(Fault):
    machine: ClassVar[str] = ""
    hold_range_s = (2.0, 8.0)

    @classmethod
    def missing(cls) -> str:
        return "" if mounts.compiler() else "needs a C compiler, for a clock that can jump"

    def strike(self) -> None:
        jump_s = self.random.choice((-7200.0, -90.0, -20.0, 20.0, 90.0, 7200.0))
        mounts.set_clock(self.world.clock[self.machine], jump_s)

    def heal(self) -> None:
        mounts.set_clock(self.world.clock[self.machine], 0.0)


class VmClock(_Clock):
    kind = "clock-jump-vm"
    machine = "vm"


class LaptopClock(_Clock):
    kind = "clock-jump-laptop"
    machine = "laptop"


def _daemon_kinds() -> list[type[Fault]]:
    """One kind for each daemon that a VM has."""
    return [
        type(f"Kill_{daemon}", (KillDaemon,), {"kind": f"kill-{daemon.replace('_', '-')}", "daemon": daemon})
        for daemon in names.DAEMONS
    ]


_ALL: list[type[Fault]] = [
    KillStage, KillRunner, KillStageAndRunner, *_daemon_kinds(), KillKernel, KillBridge, KillVm, LaptopOff,
    StopStage, StopDaemons, StopBridge, FreezeVm, TwoVms,
    CutTunnel, SlowTunnel, FlappingTunnel, *url_faults.ALL,
    FullVmDisk, FullLaptopDisk, FullStore, DeadMount,
    ReorderingMount, DroppingMount, ZeroingMount, DuplicatingMount, StaleMount, SlowMount, HangingMount, FailingMount,
    NoUploads,
    FlippedLocal, ZeroedLocal, FlippedStored, ZeroedStored,
    VmClock, LaptopClock,
]  # fmt: skip
FAULTS: dict[str, type[Fault]] = {fault.kind: fault for fault in _ALL}
ON_DRIVE = frozenset(kind for kind, fault in FAULTS.items() if issubclass(fault, _Drive))
# After these the run begins again from a checkpoint, so that a second fault can meet it while it resumes.
RESUMING = frozenset(
    kind
    for kind in FAULTS
    if kind in ("kill-stage", "kill-stage-and-runner", "kill-vm", "laptop-off-vm-dies", "two-vms") or "-block-" in kind
)
STANDING_STILL = frozenset(kind for kind, fault in FAULTS.items() if issubclass(fault, _Stop | FreezeVm))


def stand_still_for(seconds: float) -> None:
    """Whatever is stopped stands still for so long, and not for the few seconds that a short round has."""
    for kind in STANDING_STILL:
        FAULTS[kind].hold_range_s = (seconds, seconds)
