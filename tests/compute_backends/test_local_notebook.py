"""Local notebook VMs: a real kernel runs the cells, and a VM's death takes everything but the drive."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from bridgehead import files, names, processes
from bridgehead.errors import VmError
from compute_backends.base import ComputeBackend, VmRequest
from compute_backends.local_notebook import CELL_LOG, CONTENT, VM_HOME, LocalNotebook, LocalVm
from support import wait_until

# What a bootstrap cell does, in small: a detached child, something in the drive, and a foreground loop.
CELL = f"""\
import os, pathlib, subprocess, sys, time
home, store = pathlib.Path(os.environ["{names.ENV_HOME}"]), pathlib.Path(os.environ["{names.ENV_STORE}"])
(home / "{names.VM_STATE}").mkdir(parents=True, exist_ok=True)
(home / "{names.VM_STATE}" / "{names.VM_RECORD}").write_text('{{"vm_id": "vm-abc123"}}')
(store / "kept").write_text("kept")
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print("child", child.pid, "in", os.getcwd(), flush=True)
try:
    while True:
        time.sleep(0.05)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


def _notebook(folder: Path, *cells: str) -> Path:
    """A notebook with these code cells and a text before them."""
    made = [{"cell_type": "markdown", "source": ["# text"]}]
    made += [{"cell_type": "code", "source": cell.splitlines(keepends=True)} for cell in cells]  # type: ignore[dict-item]
    path = folder / "bootstrap.ipynb"
    path.write_text(json.dumps({"cells": made}))
    return path


@pytest.fixture
def local(tmp_path: Path) -> Iterator[LocalNotebook]:
    made = LocalNotebook(tmp_path / "vms", tmp_path / "drive")
    yield made
    for vm in made.list():
        made.kill(vm)


def _ran(vm: LocalVm) -> int:
    return int((files.read_json(vm.folder / "host.json") or {}).get("ran", 0))


def _printed(vm: LocalVm, text: str, *, times: int = 1) -> bool:
    log = vm.folder / CELL_LOG
    return log.exists() and log.read_text().count(text) >= times


def _tagged(vm: LocalVm) -> list[int]:
    return processes.tagged(names.ENV_LOCAL_VM, vm.name)


def test_it_is_a_compute_backend(local: LocalNotebook) -> None:
    backend: ComputeBackend = local
    assert backend.name == "local"


def test_the_life_of_a_vm(local: LocalNotebook, tmp_path: Path) -> None:
    vm = local.start(VmRequest(_notebook(tmp_path, CELL)))
    wait_until(lambda: _printed(vm, "child"), 20, what="the cell's output")
    log = (vm.folder / CELL_LOG).read_text()
    assert f"in {vm.folder / CONTENT}" in log
    child = int(log.split()[1])
    assert local.describe(vm).vm_id == "vm-abc123" and local.is_alive(vm)

    local.interrupt(vm)
    wait_until(lambda: local.describe(vm).cell == "done", 10, what="the end of the interrupted cell")
    assert _printed(vm, "interrupted") and processes.start_ticks(child), "a detached process outlives an interrupt"

    local.run_cell(vm)
    wait_until(lambda: _printed(vm, "child", times=2), 10, what="the second run of the cell")
    assert local.describe(vm).cell == "running"

    local.kill(vm)
    assert not local.is_alive(vm) and _tagged(vm) == [] and not processes.start_ticks(child)
    assert not (vm.folder / CONTENT).exists() and (tmp_path / "drive" / "kept").read_text() == "kept"
    assert [dead.vm_id for dead in local.list()] == ["vm-abc123"], "who it was is remembered when its disk is gone"
    with pytest.raises(VmError):
        local.interrupt(vm)


def test_a_vm_that_gave_itself_back_is_released_until_its_cell_runs_again(local: LocalNotebook, tmp_path: Path) -> None:
    state = f"{CONTENT}/{VM_HOME}/{names.VM_STATE}"
    cell = f"""\
import pathlib, time
told = pathlib.Path("{VM_HOME}/{names.VM_STATE}/{names.VM_LIFETIME}")
again = told.exists()
told.parent.mkdir(exist_ok=True)
told.write_text('{{"released": 1.0}}')
while again:
    time.sleep(0.05)
"""
    vm = local.start(VmRequest(_notebook(tmp_path, cell)))
    wait_until(lambda: local.describe(vm).cell == "done", 20, what="the end of the cell")
    assert local.describe(vm).released and local.is_alive(vm) and (vm.folder / state).is_dir()
    local.run_cell(vm)
    wait_until(lambda: local.describe(vm).cell == "running", 20, what="its second run")
    assert not local.describe(vm).released


def test_running_the_cell_again_stops_the_one_that_runs_first(local: LocalNotebook, tmp_path: Path) -> None:
    vm = local.start(VmRequest(_notebook(tmp_path, CELL)))
    wait_until(lambda: _printed(vm, "child"), 20, what="the cell's output")
    local.run_cell(vm)
    wait_until(lambda: _printed(vm, "child", times=2), 10, what="the second run")
    assert (vm.folder / CELL_LOG).read_text().count("interrupted") == 1


def test_stopping_in_order_leaves_no_process_and_no_disk(local: LocalNotebook, tmp_path: Path) -> None:
    vm = local.start(VmRequest(_notebook(tmp_path, CELL)))
    wait_until(lambda: _printed(vm, "child"), 20, what="the cell's output")
    local.stop(vm)
    assert _tagged(vm) == [] and not (vm.folder / CONTENT).exists()
    assert (tmp_path / "drive" / "kept").exists()


def test_cells_run_in_order_and_an_error_ends_them(local: LocalNotebook, tmp_path: Path) -> None:
    vm = local.start(VmRequest(_notebook(tmp_path, "x = 1", "print(f'x is {x}')", "1 / 0", "print('never')")))
    wait_until(lambda: local.describe(vm).cell == "error", 20, what="the error")
    assert _printed(vm, "x is 1") and _printed(vm, "ZeroDivisionError") and not _printed(vm, "never")


def test_the_kernel_is_set_up_as_a_front_end_would(local: LocalNotebook, tmp_path: Path) -> None:
    probe = "import os, sys\nprint('seen', sorted(os.environ), sys.executable, 'end')"
    vm = local.start(VmRequest(_notebook(tmp_path, probe)))
    assert (vm.folder / CONTENT / VM_HOME).is_dir() and not local.drive.is_relative_to(vm.folder)
    wait_until(lambda: _printed(vm, "end"), 20, what="the probe")
    seen = (vm.folder / CELL_LOG).read_text()
    assert "JPY_PARENT_PID" in seen and "PYTHONSAFEPATH" not in seen and "'PYTHONPATH'" not in seen
    assert names.ENV_PAIRING not in seen


def test_a_kernel_that_died_is_started_again_with_the_cell(local: LocalNotebook, tmp_path: Path) -> None:
    vm = local.start(VmRequest(_notebook(tmp_path, "import os\nprint('kernel', os.getpid())\n")))
    wait_until(lambda: local.describe(vm).cell == "done", 20, what="the cell")
    os.kill(int((vm.folder / CELL_LOG).read_text().split()[1]), signal.SIGKILL)
    wait_until(lambda: local.describe(vm).cell == "kernel-dead", 10, what="its death to be seen")
    local.run_cell(vm)
    wait_until(lambda: _printed(vm, "kernel", times=2), 20, what="the new kernel")


def test_a_kernel_starts_again_where_another_program_took_its_ports(local: LocalNotebook, tmp_path: Path) -> None:
    vm = local.start(VmRequest(_notebook(tmp_path, "import os\nprint('kernel', os.getpid())\n")))
    wait_until(lambda: local.describe(vm).cell == "done", 20, what="the cell")
    ports = files.read_json(vm.folder / "kernel.json")
    assert ports is not None
    os.kill(int((vm.folder / CELL_LOG).read_text().split()[1]), signal.SIGKILL)
    wait_until(lambda: local.describe(vm).cell == "kernel-dead", 10, what="its death to be seen")
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", ports["shell_port"]))
        taken.listen()
        local.run_cell(vm)
        wait_until(lambda: _printed(vm, "kernel", times=2), 20, what="the new kernel")


def test_a_full_disk_ends_no_vm_and_what_was_printed_meanwhile_is_written_later(
    local: LocalNotebook, tmp_path: Path
) -> None:
    vm = local.start(VmRequest(_notebook(tmp_path, "print('said')")))
    wait_until(lambda: local.describe(vm).cell == "done", 20, what="the cell")
    log = vm.folder / CELL_LOG
    log.rename(vm.folder / "before")
    log.symlink_to("/dev/full")
    local.run_cell(vm)
    wait_until(lambda: _ran(vm) == 2 and local.describe(vm).cell == "done", 20, what="the cell's second run")
    log.unlink()
    wait_until(lambda: _printed(vm, "said"), 20, what="what it had printed")
    assert local.is_alive(vm)


def _without_room_for_a_kernel(local: LocalNotebook, tmp_path: Path) -> tuple[LocalVm, Path]:
    """A VM whose kernel died and can't be started again, and what is in its way."""
    vm = local.start(VmRequest(_notebook(tmp_path, "import os\nprint('kernel', os.getpid())\n")))
    wait_until(lambda: local.describe(vm).cell == "done", 20, what="the cell")
    os.kill(int((vm.folder / CELL_LOG).read_text().split()[1]), signal.SIGKILL)
    wait_until(lambda: local.describe(vm).cell == "kernel-dead", 10, what="its death to be seen")
    in_the_way = vm.folder / "kernel.json"
    in_the_way.unlink()
    in_the_way.mkdir()
    local.run_cell(vm)
    wait_until(lambda: "no kernel" in (vm.folder / "host.log").read_text(), 20, what="its words")
    return vm, in_the_way


def test_a_kernel_that_can_not_start_for_want_of_room_is_started_by_a_later_press(
    local: LocalNotebook, tmp_path: Path
) -> None:
    vm, in_the_way = _without_room_for_a_kernel(local, tmp_path)
    assert local.describe(vm).cell == "kernel-dead" and local.is_alive(vm)
    in_the_way.rmdir()
    local.run_cell(vm)
    wait_until(lambda: _printed(vm, "kernel", times=2), 20, what="the new kernel")


def test_a_vm_whose_kernel_could_not_start_stops_without_a_traceback(local: LocalNotebook, tmp_path: Path) -> None:
    vm, _ = _without_room_for_a_kernel(local, tmp_path)
    local.stop(vm)
    assert not local.is_alive(vm)
    assert "Traceback" not in (vm.folder / "host.log").read_text()


def test_a_host_that_is_gone_counts_as_a_dead_vm(local: LocalNotebook, tmp_path: Path) -> None:
    vm = local.start(VmRequest(_notebook(tmp_path, "pass")))
    record = files.read_json(vm.folder / "host.json")
    assert record is not None
    os.kill(record["pid"], signal.SIGKILL)
    wait_until(lambda: not local.is_alive(vm), what="its death")
    local.kill(vm)
    assert _tagged(vm) == []


def test_a_notebook_that_is_none_is_told_and_leaves_nothing(local: LocalNotebook, tmp_path: Path) -> None:
    (tmp_path / "bad.ipynb").write_text("no JSON")
    with pytest.raises(VmError) as caught:
        local.start(VmRequest(tmp_path / "bad.ipynb"))
    assert "host.log" in caught.value.hint
    assert all(_tagged(vm) == [] for vm in local.list())


def test_one_vms_death_is_not_anothers(local: LocalNotebook, tmp_path: Path) -> None:
    notebook = _notebook(tmp_path, "pass")
    first, second = local.start(VmRequest(notebook)), local.start(VmRequest(notebook))
    local.kill(first)
    assert local.is_alive(second) and len(local.list()) == 2
    local.kill(second)
