"""A stage on a VM whose disk is full: it is no fault of the run, and the run goes on once there is room."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from bridgehead import names
from bridgehead.names import RunState
from chaos.mounts import Disk, can_mount
from command_rig import Rig
from support import wait_until
from vm_daemons.run_keeper import START_ROOM_BYTES
from vm_run_support import log_of, python, wait_for_log, wait_for_stage

pytestmark = pytest.mark.skipif(not can_mount(), reason="needs root, to mount a small disk")


def prints_once_told(go: Path) -> str:
    """At its first start it waits for `go` and then prints a line that the log can't take; later it is done at once."""
    return python(
        "import pathlib, time\n"
        f"go = pathlib.Path({str(go)!r})\n"
        "first = not go.exists()\n"
        "print('up', flush=True)\n"
        "while not go.exists(): time.sleep(0.02)\n"
        "print('x' * 8192 if first else 'went on', flush=True)"
    )


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    (tmp_path / "vm").mkdir()
    found = Disk(tmp_path / "vm", 24)
    found.mount()
    yield found
    with contextlib.suppress(OSError):
        found.unmount()


@pytest.fixture
def rig(disk: Disk) -> Iterator[Rig]:
    rig = Rig(disk.path)
    yield rig
    disk.empty()
    rig.clean()


def test_a_stage_that_fails_on_a_full_disk_is_started_again(rig: Rig, disk: Disk, tmp_path: Path) -> None:
    with rig.daemon():
        train = rig.run(prints_once_told(tmp_path / "go"))
        rig.laptop.queue(train)
        wait_for_log(rig.dir(train), "up", 20)
        stage = wait_for_stage(rig.dir(train))
        disk.fill()
        (tmp_path / "go").touch()
        wait_until(lambda: not Path(f"/proc/{stage}").exists(), 20, what="the stage's end, seen by its runner")
        disk.empty()
        ended = rig.wait_for_exit(train)
    log = log_of(rig.dir(train))
    assert (ended.state, ended.retries) == (RunState.DONE, 1), log
    assert "exit code 1 while this VM's disk was full: retry 1 of 2" in log and "went on" in log


def test_nothing_is_started_on_a_disk_that_takes_no_line(rig: Rig, disk: Disk) -> None:
    disk.fill(leave_bytes=START_ROOM_BYTES // 2)
    with rig.daemon():
        train = rig.run(python("print('ran')"))
        rig.laptop.queue(train)
        wait_for_log(rig.dir(train), "waits for room on this VM's disk", 20)
        assert not (rig.dir(train) / names.PROCESS).exists()
        disk.empty()
        assert rig.wait_for_exit(train).state is RunState.DONE
    assert log_of(rig.dir(train)).count("waits for room") == 1


SAVES_IN_A_FULL_DISK = (
    "import bridgehead, pathlib, torch\n"
    "from bridgehead import torch_state\n"
    "run = bridgehead.current_run()\n"
    "model = torch.nn.Linear(512, 512)\n"
    "saved = run.latest_checkpoint()\n"
    "print('up', flush=True)\n"
    "while not pathlib.Path({go!r}).exists(): __import__('time').sleep(0.02)\n"
    "with run.checkpoint(1) as folder:\n"
    "    {save}\n"
    "print('saved', flush=True)"
)


def _saves(go: Path, save: str) -> str:
    return python(SAVES_IN_A_FULL_DISK.format(go=str(go), save=save))


@pytest.mark.parametrize(
    "save",
    [
        "torch_state.save(folder, {'model': model}, position=1)",
        "torch.save(model.state_dict(), folder / 'mine.pt')",  # torch has a RuntimeError for it
    ],
)
def test_whatever_an_error_on_a_full_disk_calls_itself_the_run_is_started_again(
    rig: Rig, disk: Disk, tmp_path: Path, save: str
) -> None:
    """The script says so itself: the disk may have room again by the time that the process is gone."""
    with rig.daemon():
        train = rig.run(_saves(tmp_path / "go", save))
        rig.laptop.queue(train)
        wait_for_log(rig.dir(train), "up", 40)
        stage = wait_for_stage(rig.dir(train))
        disk.fill(leave_bytes=64 << 10)
        (tmp_path / "go").touch()
        wait_until(lambda: not Path(f"/proc/{stage}").exists(), 40, what="the stage's end, seen by its runner")
        disk.empty()
        ended = rig.wait_for_exit(train)
    log = log_of(rig.dir(train))
    assert (ended.state, ended.retries) == (RunState.DONE, 1), log
    assert "Traceback" in log and "while this VM's disk was full: retry 1 of 2" in log
