"""`bridgehead up` and `down`: the bridge, the notebook to run, and with `--runtime local` the VM that runs it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from bridge import tunnels
from bridgehead import names
from bridgehead.errors import BridgeDownError
from run_control import bridge_control, local_vms, private_files, project_file, tunnel_table
from run_control.project import Project, changing
from run_control.tracking import control as tracking

NOTEBOOK = "notebook"
LOCAL = "local"
RUNTIMES = (NOTEBOOK, LOCAL)


@dataclass(frozen=True)
class UpReport:
    """What `up` found or made."""

    project: str
    port: int
    url: str
    tunnel: str
    started_bridge: bool
    notebook: str
    vm: str = ""  # the local VM's name
    started_vm: bool = False
    released_vm: str = ""  # one that had given itself back, and was stopped
    untracked: list[str] = field(default_factory=list)  # what keeps sinks of [tracking] from being told

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class DownReport:
    stopped_bridge: bool
    stopped_vms: list[str]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def up(project: Project, *, runtime: str, tunnel: str | None = None, port: int | None = None) -> UpReport:
    """Bring up what is not up yet; running it twice changes nothing. Raises UsageError, BridgeDownError, VmError.

    With None for tunnel or port a live bridge keeps its own, and a new one gets what [tunnel] says, and the default.
    """
    view = project_file.load(project.root)
    # Not started: a misspelt name, a missing key or an unreadable token is told before anything is.
    tunnels.make(tunnel_table.with_kind(view.tunnel, tunnel))
    private_files.refuse_odd_ones(project)
    if bridge_control.find(project) is None:
        bridge_control.refuse_full_disk(project)
    with changing(project):
        live = bridge_control.find(project)
        started = live is None
        if live is None:
            new_port = names.DEFAULT_PORT if port is None else port
            live = bridge_control.start(project, port=new_port, tunnel=tunnel or "")
        else:
            live = bridge_control.need(project)
            _refuse_another(live, tunnel, port)
        local = local_vms.ensure(project, new_address=started) if runtime == LOCAL else None
        untracked = tracking.ensure(project, project_file.tracking(project.root)[1])
    return UpReport(
        project=view.name,
        port=live.port,
        url=live.url,
        tunnel=live.tunnel,
        started_bridge=started,
        notebook=str(project.notebook),
        vm=local.vm.name if local else "",
        started_vm=bool(local and local.is_new),
        released_vm=local.released if local else "",
        untracked=untracked,
    )


def _refuse_another(live: bridge_control.LiveBridge, tunnel: str | None, port: int | None) -> None:
    """Raises BridgeDownError when the live bridge is not the one asked for."""
    wanted = ""
    if tunnel is not None and tunnel != live.tunnel:
        wanted += f" --tunnel {tunnel}"
    if port and port != live.port:  # 0 is any port
        wanted += f" --port {port}"
    if wanted:
        raise BridgeDownError(
            f"already up with tunnel {live.tunnel} on port {live.port}",
            hint=f"bridgehead down, then bridgehead up{wanted}",
        )


def down(project: Project) -> DownReport:
    """Stop local VMs, the bridge and its tunnel. Runs that were going resume at the next `up`."""
    with changing(project):
        vms = local_vms.stop_all(project)
        tracking.stop(project)
        stopped = bridge_control.stop(project)
        if bridge_control.find(project) is not None:
            raise BridgeDownError("the bridge did not stop", hint=f"look into {project.bridge_log}")
    return DownReport(stopped, vms)
