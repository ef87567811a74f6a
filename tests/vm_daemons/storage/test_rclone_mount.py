"""A real mount with write-back, killed in the middle: what a later VM finds is whole or refused, never half."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from bridgehead import checkpoints, names
from bridgehead.errors import BridgeheadError, VerificationError
from doubles.drivefs_mount import is_mounted, unmount
from support import wait_until
from vm_daemons.storage.store import Store
from vm_run_support import run_folder, vm_home

RUN = "train-0001-abc123"
pytestmark = pytest.mark.skipif(
    shutil.which("rclone") is None or not os.access("/dev/fuse", os.R_OK | os.W_OK),
    reason="no rclone (apt install rclone fuse3), or no access to /dev/fuse",
)


class Rclone:
    """`source` mounted at `mountpoint`; uploads begin a second after a file was closed and are slow."""

    def __init__(self, tmp_path: Path) -> None:
        self.source, self.mountpoint, self.cache = (tmp_path / name for name in ("source", "mounted", "cache"))
        self.source.mkdir()
        self.mountpoint.mkdir()
        command = [
            "rclone", "mount", str(self.source), str(self.mountpoint), "--vfs-cache-mode", "writes",
            "--vfs-write-back", "1s", "--dir-cache-time", "1s", "--cache-dir", str(self.cache), "--bwlimit", "4M",
            "--config", str(tmp_path / "rclone.conf"),
        ]  # fmt: skip
        self._process = subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True)
        wait_until(lambda: is_mounted(self.mountpoint), 20, what="the mount")

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(100)
        unmount(self.mountpoint)


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Rclone]:
    mounted = Rclone(tmp_path)
    yield mounted
    mounted.kill()


def save(run_dir: Path, step: int, content: bytes) -> None:
    root = run_dir / names.CHECKPOINTS
    with checkpoints.staging(root) as staged:
        (staged / "state.pt").write_bytes(content)
        (staged / "shard.bin").write_bytes(content[::-1])
        checkpoints.commit(staged, root, step, {"epoch": step})


def holds(folder: Path, part: str) -> bool:
    return any(part in path.name and path.stat().st_size for path in folder.rglob("*") if path.is_file())


def sizes(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): path.stat().st_size for path in folder.rglob("*") if path.is_file()}


def restore(tmp_path: Path, mount: Rclone, content: dict[int, bytes]) -> int:
    """The step that another VM gets out of what arrived, after a look at each byte; 0 when it gets none."""
    later = vm_home(tmp_path / "vm-b", store=mount.source)
    later_run = run_folder(later, "python train.py", attempt=2)
    found = Store(later).restore(RUN, later_run)
    if found is None:
        return 0
    root = later_run / names.CHECKPOINTS / f"step-{found.step:08d}"
    assert (root / "state.pt").read_bytes() == content[found.step]
    assert (root / "shard.bin").read_bytes() == content[found.step][::-1]
    return found.step


@pytest.mark.parametrize("moment", ["writing", "written", "uploading"])
def test_a_mount_killed_while_a_checkpoint_goes_through_it(mount: Rclone, tmp_path: Path, moment: str) -> None:
    content = {step: os.urandom(3_000_000) for step in (10, 20)}
    home = vm_home(tmp_path / "vm-a", store=mount.mountpoint)
    run_dir = run_folder(home, "python train.py")
    store = Store(home)
    save(run_dir, 10, content[10])
    first = store.mirror(run_dir)
    assert first is not None and first.step == 10
    wait_until(lambda: sizes(mount.source) == sizes(mount.mountpoint), 60, what="the first checkpoint to arrive")
    save(run_dir, 20, content[20])

    def mirror() -> None:
        with contextlib.suppress(BridgeheadError, OSError):
            store.mirror(run_dir)

    mirroring = threading.Thread(target=mirror, daemon=True)
    mirroring.start()
    if moment == "writing":
        wait_until(lambda: holds(mount.cache, "step-00000020"), 30, what="the second one in the mount's cache")
    elif moment == "uploading":
        wait_until(lambda: holds(mount.source, "step-00000020"), 30, what="the second one under way")
    else:
        mirroring.join(60)
    mount.kill()
    mirroring.join(60)
    assert not mirroring.is_alive()
    assert restore(tmp_path, mount, content) in content, "the first one had arrived whole and was not touched"


def test_a_commit_that_arrived_before_its_files_is_not_believed(mount: Rclone, tmp_path: Path) -> None:
    content = {10: os.urandom(3_000_000)}
    home = vm_home(tmp_path / "vm-a", store=mount.mountpoint)
    run_dir = run_folder(home, "python train.py")
    save(run_dir, 10, content[10])
    Store(home).mirror(run_dir)
    wait_until(lambda: holds(mount.source, names.SLOT_COMMIT), 30, what="the commit to arrive")
    mount.kill()
    with contextlib.suppress(VerificationError):  # rclone uploads side by side: the small commit overtakes its files
        assert restore(tmp_path, mount, content) == 10
