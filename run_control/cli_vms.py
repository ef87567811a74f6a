"""Commands about local notebook VMs: a VM's whole life, its death included, on this machine."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from run_control.cli_support import JsonFlag, ProjectFlag, emit, note, project_of, say, table

NameArgument = Annotated[str, typer.Argument(metavar="[NAME]", help="Default: the only live one.")]


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Local notebook VMs; give any VM back; pause what VMs send.", rich_markup_mode=None)
    group.callback()(vm_group)
    group.command("list")(list_vms)
    group.command("start")(start)
    group.command("interrupt")(interrupt)
    group.command("run-cell")(run_cell)
    group.command("kill")(kill)
    group.command("release")(release)
    group.command("pause-uploads")(pause_uploads)
    group.command("resume-uploads")(resume_uploads)
    app.add_typer(group, name="vm")


def vm_group() -> None:
    """Local notebook VMs: a real Jupyter kernel here, with a disk that goes and a Drive folder that stays.

    release, pause-uploads and resume-uploads are for VMs anywhere.
    """


def list_vms(context: typer.Context, json: JsonFlag = False, project: ProjectFlag = None) -> int:
    """Local VMs that were started since the last down."""
    from run_control import local_vms

    found = local_vms.backend(project_of(context, project)).list()
    rows = [(vm.name, _state(vm), vm.cell, vm.vm_id) for vm in found]
    return emit(
        {"vms": [_json(vm) for vm in found]},
        as_json=json,
        show=lambda: table(("NAME", "STATE", "CELL", "VM"), rows),
    )


def start(context: typer.Context, json: JsonFlag = False, project: ProjectFlag = None) -> int:
    """Start one more local VM. The bridge has to be up."""
    from run_control import bridge_control, local_vms
    from run_control.project import changing

    found = project_of(context, project)
    bridge_control.need(found)
    with changing(found):
        vm = local_vms.start(found)
    return emit({"vm": _json(vm)}, as_json=json, show=lambda: say(f"{vm.name} started"))


def interrupt(
    context: typer.Context, name: NameArgument = "", json: JsonFlag = False, project: ProjectFlag = None
) -> int:
    """Press the notebook's stop button: the cell ends, daemons and stages go on."""
    from run_control import local_vms

    found = project_of(context, project)
    vm = local_vms.choose(found, name)
    local_vms.backend(found).interrupt(vm)
    return emit({"vm": _json(vm)}, as_json=json, show=lambda: say(f"{vm.name}: cell interrupted"))


def run_cell(
    context: typer.Context, name: NameArgument = "", json: JsonFlag = False, project: ProjectFlag = None
) -> int:
    """Run the bootstrap cell again; it takes over from daemons that still live."""
    from run_control import local_vms

    found = project_of(context, project)
    vm = local_vms.choose(found, name)
    local_vms.backend(found).run_cell(vm)
    return emit({"vm": _json(vm)}, as_json=json, show=lambda: say(f"{vm.name}: cell runs again"))


def kill(context: typer.Context, name: NameArgument = "", json: JsonFlag = False, project: ProjectFlag = None) -> int:
    """The VM dies: SIGKILL to everything in it, its disk wiped. Only the Drive folder is left."""
    from run_control import local_vms
    from run_control.project import changing

    found = project_of(context, project)
    vm = local_vms.choose(found, name)
    with changing(found):
        local_vms.kill(found, vm)
    return emit({"vm": {**_json(vm), "alive": False}}, as_json=json, show=lambda: say(f"{vm.name} is dead"))


def release(
    context: typer.Context,
    vm: Annotated[str, typer.Argument(metavar="[VM]", help="Its id or the beginning; default: the only one.")] = "",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Also when runs are under way there.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would happen; queue nothing.")] = False,
    json: JsonFlag = False,
    project: ProjectFlag = None,
) -> int:
    """Give a VM back, local or not: its runs are saved and go on on the next VM, then it goes."""
    from bridgehead.errors import UsageError
    from run_control import queueing, releasing

    found = project_of(context, project)
    plan = releasing.plan(found, vm)
    if plan.under_way and not yes and not dry_run:
        raise UsageError(
            f"under way on {plan.vm_id}: {', '.join(plan.under_way)}",
            hint=f"--dry-run shows what becomes of them; bridgehead vm release {plan.vm_id} --yes",
        )
    data = {"plan": plan.to_json()}
    if not dry_run:
        data |= {"queued": queueing.submit(found, plan.line).to_json()}

    def show() -> None:
        for line in plan.lines:
            say(line)
        for warning in plan.warnings:
            note(f"warning: {warning}")
        say(f"{'would be queued' if dry_run else 'queued'}: {plan.line}")

    return emit(data, as_json=json, show=show)


def _state(vm: Any) -> str:
    return "released" if vm.alive and vm.released else "alive" if vm.alive else "dead"


def pause_uploads(context: typer.Context, json: JsonFlag = False, project: ProjectFlag = None) -> int:
    """Let artefacts wait on their VMs, local or not; logs and status go on. It lasts until resume-uploads."""
    from run_control import uploads_view

    uploads_view.pause(project_of(context, project))
    text = "artefacts wait from each VM's next heartbeat on; logs and status go on. next: bridgehead vm resume-uploads"
    return emit({"uploads_paused": True}, as_json=json, show=lambda: say(text))


def resume_uploads(context: typer.Context, json: JsonFlag = False, project: ProjectFlag = None) -> int:
    """Let artefacts come again."""
    from run_control import uploads_view

    uploads_view.resume(project_of(context, project))
    text = "artefacts come again from each VM's next heartbeat on"
    return emit({"uploads_paused": False}, as_json=json, show=lambda: say(text))


def _json(vm: Any) -> dict[str, Any]:
    return {"name": vm.name, "vm_id": vm.vm_id, "alive": vm.alive, "cell": vm.cell, "released": vm.released}
