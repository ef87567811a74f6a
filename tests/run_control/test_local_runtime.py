"""`up --runtime local` with a real kernel, the real bootstrap cell and a real bridge: birth, death and successor."""

from __future__ import annotations

from pathlib import Path

from cli_process import bridgehead

from bridgehead import names, processes
from run_control import local_vms, up, views
from run_control.project import Project
from support import wait_until


def _joined(project: Project, count: int) -> bool:
    return len(views.vms(project)) == count


def test_a_dead_vm_is_reported_and_replaced_and_down_leaves_nothing(fresh: Project) -> None:
    try:
        first = up.up(fresh, runtime=up.LOCAL, tunnel="none", port=0)
        assert first.started_bridge and first.started_vm
        wait_until(lambda: _joined(fresh, 1), 30, what="the VM's first heartbeat")
        assert up.up(fresh, runtime=up.LOCAL, tunnel="none", port=0).vm == first.vm, "a live VM is kept"

        answer = bridgehead("vm", "kill", "--json", cwd=fresh.root)
        assert answer.data["vm"]["alive"] is False
        assert [vm["state"] for vm in views.vms(fresh)] == ["live"], "nobody tells the ledger of a VM's death"

        second = up.up(fresh, runtime=up.LOCAL, tunnel="none", port=0)
        assert second.started_vm and not second.started_bridge and second.vm != first.vm
        assert [vm["state"] for vm in views.vms(fresh)][0] == "gone"
        wait_until(lambda: _joined(fresh, 2), 30, what="the second VM's first heartbeat")
    finally:
        up.down(fresh)
    assert local_vms.backend(fresh).list() == []
    assert not any(str(fresh.root) in processes.command_line(pid) for pid in processes.all_pids())
    for name in (first.vm, second.vm):
        assert processes.tagged(names.ENV_LOCAL_VM, name) == []


def test_a_vm_that_lived_on_hears_of_a_new_bridge(fresh: Project, tmp_path: Path) -> None:
    from run_control import bridge_control

    try:
        first = up.up(fresh, runtime=up.LOCAL, tunnel="none", port=0)
        wait_until(lambda: _joined(fresh, 1), 30, what="the VM's first heartbeat")
        assert bridge_control.stop(fresh)
        seen = views.vms(fresh)[0]["last_seen"]
        again = up.up(fresh, runtime=up.LOCAL, tunnel="none", port=0)
        assert again.started_bridge and again.vm == first.vm and not again.started_vm
        wait_until(lambda: views.vms(fresh)[0]["last_seen"] > seen, 30, what="the VM at the bridge's new address")
    finally:
        up.down(fresh)
