"""`up --runtime local` with a real kernel, the real bootstrap cell and a real bridge: birth, death and successor."""

from __future__ import annotations

import time
from pathlib import Path

from cli_process import bridgehead

from bridgehead import names, processes
from compute_backends import local_notebook
from run_control import bridge_control, local_vms, up, views
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


def test_a_vm_that_gave_itself_back_is_shown_as_released_and_replaced(fresh: Project) -> None:
    text = fresh.file.read_text().replace("[vm]", "[vm]\nrelease_after_s = 10", 1)
    fresh.file.write_text(text)
    try:
        first = up.up(fresh, runtime=up.LOCAL, tunnel="none", port=0)
        wait_until(lambda: local_vms.backend(fresh).list()[0].released, 60, what="its release")
        [vm] = views.vms(fresh)
        assert vm["state"] == "released" and "idle for 10s, everything is done and safe" in vm["reason"]

        answer = bridgehead("up", "--runtime", "local", cwd=fresh.root)
        assert f"local VM {first.vm} had given itself back" in answer.out
        [gone, new] = local_vms.backend(fresh).list()
        assert gone.name == first.vm and not gone.alive and new.alive and f"local VM {new.name} started" in answer.out
        assert processes.tagged(names.ENV_LOCAL_VM, first.vm) == []
        assert views.vms(fresh)[0]["state"] == "released", "also when its processes are gone"
    finally:
        up.down(fresh)


def test_a_vm_that_lived_on_hears_of_a_new_bridge(fresh: Project, tmp_path: Path) -> None:
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


def test_a_local_vm_hears_of_a_bridge_at_another_port_without_its_cell_run_again(fresh: Project) -> None:
    try:
        up.up(fresh, runtime=up.LOCAL, tunnel="none", port=0)
        wait_until(lambda: _joined(fresh, 1), 60, what="the VM's first heartbeat")
        old = bridge_control.need(fresh)
        assert bridge_control.stop(fresh)
        new = bridge_control.start(fresh, port=0, tunnel="none")
        assert new.port != old.port
        since = time.time()
        wait_until(lambda: views.vms(fresh)[0]["last_seen"] > since, 60, what="the VM at the new address")
        vm = local_vms.backend(fresh).list()[0]
        log = vm.folder / local_notebook.CELL_LOG
        moved = f"the bridge moved to 127.0.0.1:{new.port}"
        wait_until(lambda: moved in log.read_text(), 30, what="the cell's word on it")
    finally:
        up.down(fresh)
