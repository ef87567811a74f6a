"""The local notebook VMs of a project: found, started, ended, and reported to the ledger when they are gone."""

from __future__ import annotations

from dataclasses import dataclass

from bridgehead.errors import NotFoundError, VmError
from compute_backends.base import VmHandle, VmRequest
from compute_backends.local_notebook import LocalNotebook, LocalVm
from run_control.project import Project
from run_control.views import ledger_of

GONE = "its processes are gone"
STOPPED = "it was stopped"
RELEASED = "it had given itself back"


def backend(project: Project) -> LocalNotebook:
    return LocalNotebook(project.vms, project.drive)


def choose(project: Project, name: str) -> LocalVm:
    """The VM of that name, or the only live one when no name is given. Raises NotFoundError, VmError."""
    known = backend(project).list()
    if name:
        for vm in known:
            if name in (vm.name, vm.vm_id):
                return vm
        raise NotFoundError(f"no local VM {name!r}", hint="bridgehead vm list")
    live = [vm for vm in known if vm.alive]
    if not live:
        raise VmError("no local VM is alive", hint="bridgehead vm start")
    if len(live) > 1:
        raise NotFoundError(f"{len(live)} local VMs are alive: {', '.join(vm.name for vm in live)}", hint="name one")
    return live[0]


@dataclass(frozen=True)
class Ensured:
    """A live local VM; `released`: the name of one that had given itself back, which was stopped for it."""

    vm: LocalVm
    is_new: bool
    released: str = ""


def ensure(project: Project, *, new_address: bool) -> Ensured:
    """A local VM that works, perhaps a new one. Dead ones are cleared away and reported first.

    `new_address`: the bridge was just started, so a VM that lived on runs the cell again to learn where it is now.
    """
    clear_dead(project)
    local, released = backend(project), ""
    for vm in local.list():
        if vm.alive and vm.released:
            local.stop(vm)
            _report(project, local.describe(vm), RELEASED)
            released = vm.name
        elif vm.alive:
            if new_address:
                local.run_cell(vm)
            return Ensured(vm, is_new=False, released=released)
    return Ensured(start(project), is_new=True, released=released)


def start(project: Project) -> LocalVm:
    return backend(project).start(VmRequest(project.notebook))


def clear_dead(project: Project) -> None:
    """End what a dead VM left running, wipe its disk, and give its runs to the next VM at once."""
    local = backend(project)
    for vm in local.list():
        if not vm.alive:
            local.kill(vm)
            _report(project, local.describe(vm), GONE)


def stop_all(project: Project) -> list[str]:
    """Stop every local VM and forget it. Returns the names of those that were alive."""
    local = backend(project)
    stopped = []
    for vm in local.list():
        if vm.alive:
            local.stop(vm)
            stopped.append(vm.name)
        else:
            local.kill(vm)
        _report(project, local.describe(vm), STOPPED if vm.alive else GONE)
        local.forget(vm)
    return stopped


def stop(project: Project, vm: LocalVm) -> None:
    """End a VM in order, and give its runs to the next one at once."""
    backend(project).stop(vm)
    _report(project, backend(project).describe(vm), STOPPED)


def kill(project: Project, vm: VmHandle) -> None:
    """A VM's death, rehearsed. The ledger is not told: nobody tells it of a real one either."""
    backend(project).kill(vm)


def _report(project: Project, vm: LocalVm, reason: str) -> None:
    if not vm.vm_id or not project.ledger.is_file():
        return
    with ledger_of(project) as ledger:
        if any(row.vm_id == vm.vm_id and row.state != "gone" for row in ledger.vms()):
            ledger.mark_vm_gone(vm.vm_id, reason)
