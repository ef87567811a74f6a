"""The durable store of a round: a folder that can vanish from its mount point, or the double of a mounted Drive.

`path` is what the VM is told: a folder inside of the mount, which is not there when the mount is not, as on a real one.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from chaos import mounts
from chaos.store_check import FolderRun, StoredRun

_INSIDE = "MyDrive"
_DELAY_S = (0.02, 0.4)  # from closing a file to its upload


class Store(Protocol):
    """What a round does with its store."""

    path: Path

    def mount(self) -> None:
        """Make it reachable, again after `unmount` or `lose`."""
        ...

    def unmount(self) -> None:
        """The mount is gone."""
        ...

    def lose(self) -> None:
        """The VM that had it mounted is gone, and with it whatever had not been uploaded."""
        ...

    def fill(self) -> None:
        """No more room, until `empty`."""
        ...

    def empty(self) -> None: ...

    def uploading(self) -> bool:
        """Whether it is known to hold something of a slot back."""
        ...

    def misbehave(self, **faults: Any) -> None:
        """Of the Drive double alone: see its Faults. No arguments: none any more."""
        ...

    def run(self, relative: str) -> StoredRun:
        """What it really holds below `relative`."""
        ...

    def close(self) -> None: ...

    def own_pids(self) -> list[int]:
        """Processes that are the store's, not the product's."""
        ...


class FolderStore:
    """A folder that is bound to a mount point."""

    def __init__(self, cloud: Path, mountpoint: Path, disk: mounts.Disk) -> None:
        self._cloud = cloud
        self._mountpoint = mountpoint
        self._disk = disk
        self._mounted = False
        self.path = mountpoint / _INSIDE

    def mount(self) -> None:
        self._mountpoint.mkdir(exist_ok=True)
        (self._cloud / _INSIDE).mkdir(exist_ok=True)
        if self._mounted:
            return
        if mounts.can_mount():
            mounts.bind(self._cloud, self._mountpoint)
        else:
            self.path.symlink_to(self._cloud / _INSIDE)
        self._mounted = True

    def unmount(self) -> None:
        if self._mounted:
            self._mounted = False
            if mounts.can_mount():
                mounts.unbind(self._mountpoint)
            else:
                self.path.unlink(missing_ok=True)

    def lose(self) -> None:
        """A folder has no cache to lose."""

    def fill(self) -> None:
        self._disk.fill()

    def empty(self) -> None:
        self._disk.empty()

    def uploading(self) -> bool:
        return False

    def misbehave(self, **faults: Any) -> None:
        raise NotImplementedError("a folder does as it is told")

    def run(self, relative: str) -> StoredRun:
        return FolderRun(self._cloud / _INSIDE / relative)

    def close(self) -> None:
        self.unmount()

    def own_pids(self) -> list[int]:
        return []


class DriveStore:
    """The double of DriveFS from tests/doubles: what is written is uploaded later, or never."""

    def __init__(self, cloud: Path, mountpoint: Path, seed: int) -> None:
        self._cloud = importlib.import_module("doubles.google_cloud").Cloud(cloud)
        double = importlib.import_module("doubles.drivefs_mount")
        self._mount = double.DriveFsMount(self._cloud, mountpoint, seed=seed, delay_s=_DELAY_S)
        self._faults: dict[str, Any] = {}
        self._up = False
        self.path: Path = self._mount.root

    @staticmethod
    def missing() -> str:
        """Why it can't be had here; empty when it can."""
        try:
            return str(importlib.import_module("doubles.drivefs_mount").why_not())
        except ImportError as error:
            return f"needs tests/doubles and mfusepy ({error})"

    def mount(self) -> None:
        if not self._up:
            self._mount.start()
            self._up = True

    def unmount(self) -> None:
        if self._up:
            self._up = False
            self._mount.die()

    def lose(self) -> None:
        if self._up:
            self._mount.start()
            self._mount.faults(**self._faults)

    def fill(self) -> None:
        self.misbehave(full=True)

    def empty(self) -> None:
        self.misbehave()

    def uploading(self) -> bool:
        try:
            return self._up and any("/slot-" in path for path in self._mount.state()["pending"])
        except (OSError, ValueError):  # it has just died
            return False

    def misbehave(self, **faults: Any) -> None:
        usual = importlib.import_module("doubles.drivefs_tree").Faults(delay_s=_DELAY_S)
        self._faults = {name: faults.get(name, getattr(usual, name)) for name in vars(usual)}
        if self._up:
            self._mount.faults(**self._faults)

    def run(self, relative: str) -> StoredRun:
        return _CloudRun(self._cloud, relative)

    def close(self) -> None:
        self._mount.close()

    def own_pids(self) -> list[int]:
        return [self._mount.pid] if self._up else []


@dataclass(frozen=True)
class _CloudRun:
    """A StoredRun in the account itself."""

    cloud: Any
    root: str

    def names(self, folder: str) -> list[str]:
        found = set()
        for entry in self.cloud.at(f"{self.root}/{folder}"):
            if entry.folder:
                found |= {child.name for child in self.cloud.children(entry.id)}
        return sorted(found)

    def versions(self, path: str) -> list[bytes]:
        found = []
        for entry in self.cloud.at(f"{self.root}/{path}"):
            try:
                found.append(self.cloud.content(entry).read_bytes())
            except OSError:
                continue
        return found

    def written_at(self, path: str) -> int | None:
        return None  # the order of writing is not the order of upload, and nobody may rely on it

    def change(self, path: str, alter: Callable[[bytes], bytes]) -> None:
        entries = self.cloud.at(f"{self.root}/{path}")
        if not entries:
            raise FileNotFoundError(path)
        self.cloud.damage(entries[-1].id, 0, alter(self.cloud.content(entries[-1]).read_bytes()))
