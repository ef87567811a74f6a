"""A mount that behaves as Google Drive's does in a notebook: `python -m doubles.drivefs CLOUD MOUNTPOINT --cache …`.

Writes are visible at once and uploaded later (or never); `fsync` promises nothing; removed files go to the trash.
How it misbehaves is told through a socket while it runs (`Faults`). `drivefs_mount.DriveFsMount` starts and ends it.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import json
import os
import random
import socket
import stat
import subprocess
import sys
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn

import mfusepy

from doubles.drivefs_tree import Faults, Node, Tree
from doubles.google_cloud import Cloud

ID_ATTRIBUTE = "user.drive.id"
_ALIAS = "/My Drive"  # the notebook's mount shows the drive under both spellings
_NO_QUOTA_BYTES = 15 * 2**30


@dataclass(eq=False)
class _Open:
    fd: int
    node: Node
    writes: bool


class DriveFs(mfusepy.Operations):  # type: ignore[misc]
    """The calls of the kernel, each through `_gate`, where the faults are."""

    use_ns = True

    def __init__(self, tree: Tree, seed: int) -> None:
        self._tree = tree
        self._draw = random.Random(seed)
        self._open: dict[int, _Open] = {}
        self._next = 1
        self.calls = 0  # of the kernel
        self.written_bytes = 0
        self.limits_from = 0  # full_after_bytes and die_after_bytes count from here

    def init(self, path: str) -> None:
        threading.Thread(target=self._upload_forever, daemon=True).start()

    def _upload_forever(self) -> None:
        while True:
            if not self._tree.upload_next():
                time.sleep(0.005)

    # --- names --------------------------------------------------------------------------------------

    def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
        self._gate()
        if path == _ALIAS:
            return {"st_mode": stat.S_IFLNK | 0o777, "st_nlink": 1}
        with self._tree.lock:
            node = self._open[fh].node if fh in self._open else self._tree.find(path)
            mode = stat.S_IFDIR | 0o700 if node.folder else stat.S_IFREG | 0o600
            size = node.cache.stat().st_size if node.cache is not None else node.size
            when = int(node.mtime * 1e9)
            return {
                "st_mode": mode, "st_nlink": 1, "st_size": size, "st_ino": node.key, "st_blocks": (size + 511) // 512,
                "st_mtime": when, "st_ctime": when, "st_atime": when, "st_uid": os.getuid(), "st_gid": os.getgid(),
            }  # fmt: skip

    def readlink(self, path: str) -> str:
        self._gate()
        if path != _ALIAS:
            raise OSError(errno.EINVAL, path)
        return "MyDrive"

    def readdir(self, path: str, fh: int) -> list[str]:
        self._gate()
        with self._tree.lock:
            return [".", "..", *self._tree.names(self._tree.find(path))] + ([_ALIAS[1:]] if path == "/" else [])

    def mkdir(self, path: str, mode: int) -> None:
        self._gate(changes=True)
        with self._tree.lock:
            self._tree.add(path, folder=True)

    def rmdir(self, path: str) -> None:
        self._gate(changes=True)
        with self._tree.lock:
            self._tree.remove(path, folder=True)

    def unlink(self, path: str) -> None:
        self._gate(changes=True)
        with self._tree.lock:
            self._tree.remove(path, folder=False)

    def rename(self, old: str, new: str) -> None:
        self._gate(changes=True)
        with self._tree.lock:
            self._tree.rename(old, new)

    def symlink(self, target: str, source: str) -> NoReturn:
        raise OSError(errno.EPERM, target)

    def link(self, target: str, source: str) -> NoReturn:
        raise OSError(errno.EPERM, target)

    def chmod(self, path: str, mode: int) -> None:
        self._gate(changes=True)

    def chown(self, path: str, uid: int, gid: int) -> None:
        self._gate(changes=True)

    def utimens(self, path: str, times: tuple[int, int] | None = None) -> None:
        self._gate(changes=True)
        with self._tree.lock:
            self._tree.find(path).mtime = time.time() if times is None else times[1] / 1e9

    def getxattr(self, path: str, name: str, position: int = 0) -> bytes:
        self._gate()
        with self._tree.lock:
            if name != ID_ATTRIBUTE or path == "/":
                raise OSError(errno.ENODATA, name)
            node = self._tree.find(path)
            return (node.cloud_id if node.uploaded else f"local-{node.key}").encode()

    def listxattr(self, path: str) -> list[str]:
        return [ID_ATTRIBUTE]

    def statfs(self, path: str) -> dict[str, int]:
        self._gate()
        usage = self._tree.cloud.usage()
        limit = _NO_QUOTA_BYTES if usage.limit is None else usage.limit
        free = 0 if self._tree.faults.full else max(0, limit - usage.used)
        return {"f_bsize": 4096, "f_frsize": 4096, "f_blocks": limit // 4096, "f_bfree": free // 4096,
                "f_bavail": free // 4096, "f_namemax": 255}  # fmt: skip

    # --- content ------------------------------------------------------------------------------------

    def create(self, path: str, mode: int, flags: int) -> int:
        self._gate(changes=True, content=True)
        with self._tree.lock:
            return self._opened(self._tree.add(path, folder=False), writes=True)

    def open(self, path: str, flags: int) -> int:
        writes = flags & os.O_ACCMODE != os.O_RDONLY
        self._gate(changes=writes, content=True)
        with self._tree.lock:
            try:
                node = self._tree.find(path)
            except FileNotFoundError:  # the kernel remembers a name that went meanwhile: this makes it look again
                raise OSError(errno.ESTALE, path) from None
            handle = self._opened(node, writes=writes)
            if flags & os.O_TRUNC:
                os.ftruncate(self._open[handle].fd, 0)
                self._tree.written(node)
            return handle

    def _opened(self, node: Node, *, writes: bool) -> int:
        fd = os.open(self._tree.content(node), os.O_RDWR)
        handle, self._next = self._next, self._next + 1
        self._open[handle] = _Open(fd, node, writes)
        node.writers += int(writes)
        return handle

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        self._gate(content=True)
        return os.pread(self._open[fh].fd, size, offset)

    def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
        self._gate(changes=True, content=True, more_bytes=len(data))
        held = self._open[fh]
        done = os.pwrite(held.fd, data, offset)
        with self._tree.lock:
            self._tree.written(held.node)
        return done

    def truncate(self, path: str, length: int, fh: int | None = None) -> None:
        self._gate(changes=True, content=True)
        with self._tree.lock:
            node = self._open[fh].node if fh in self._open else self._tree.find(path)
            os.truncate(self._tree.content(node), length)
            self._tree.written(node)
            if not node.writers:
                self._tree.changed(node)

    def flush(self, path: str, fh: int) -> None:
        self._gate()

    def fsync(self, path: str, datasync: int, fh: int) -> None:
        self._gate(content=True)  # and that is all it does over there too

    def fsyncdir(self, path: str, datasync: int, fh: int) -> None:
        self._gate()

    def release(self, path: str, fh: int) -> None:
        with self._tree.lock:
            held = self._open.pop(fh)
            os.close(held.fd)
            node = held.node
            node.writers -= int(held.writes)
            if held.writes and node.content_dirty and not node.writers and not node.gone:
                self._tree.changed(node)

    # --- faults -------------------------------------------------------------------------------------

    def _gate(self, *, changes: bool = False, content: bool = False, more_bytes: int = 0) -> None:
        self.calls += 1
        faults = self._tree.faults
        while faults.hang:
            time.sleep(0.01)
            faults = self._tree.faults
        if faults.slow_s:
            time.sleep(faults.slow_s)
        if faults.dead:
            raise OSError(errno.ENOTCONN, "dead")
        if changes and faults.read_only:
            raise OSError(errno.EROFS, "read only")
        if content and faults.error and self._draw.random() < faults.error:
            raise OSError(errno.EIO, "error")
        written = self.written_bytes + more_bytes - self.limits_from
        if faults.die_after_bytes and written > faults.die_after_bytes:
            os._exit(9)
        if more_bytes and (faults.full or (faults.full_after_bytes and written > faults.full_after_bytes)):
            raise OSError(errno.ENOSPC, "full")
        self.written_bytes += more_bytes


class _Control:
    """Answers one JSON line with another: {"faults": {…}} changes some, {"state": true} tells how it stands."""

    def __init__(self, drive: DriveFs, tree: Tree, path: str) -> None:
        self._drive, self._tree = drive, tree
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        self._socket.bind(path)
        self._socket.listen()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            connection, _ = self._socket.accept()
            with connection, connection.makefile("rwb") as stream:
                answer = self._answer(json.loads(stream.readline() or b"{}"))
                with contextlib.suppress(OSError):
                    stream.write(json.dumps(answer).encode() + b"\n")

    def _answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        if asked.get("die"):
            os._exit(9)
        with self._tree.lock:
            if "faults" in asked:
                changed = asdict(self._tree.faults) | asked["faults"]
                self._tree.faults = Faults(**changed)
                self._drive.limits_from = self._drive.written_bytes
            return {
                "pending": self._tree.pending(),
                "counts": dict(self._tree.counts),
                "calls": self._drive.calls,
                "written_bytes": self._drive.written_bytes,
                "faults": asdict(self._tree.faults),
            }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cloud", type=Path)
    parser.add_argument("mountpoint", type=Path)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--control", required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--faults", type=json.loads, default={})
    parser.add_argument("--with-parent", action="store_true", help="unmount and end when stdin closes")
    args = parser.parse_args()
    args.cache.mkdir(parents=True, exist_ok=True)
    tree = Tree(Cloud(args.cloud), args.cache, args.seed)
    tree.faults = Faults(**args.faults)
    drive = DriveFs(tree, args.seed)
    _Control(drive, tree, args.control)
    if args.with_parent:
        threading.Thread(target=_end_with_parent, args=(args.mountpoint,), daemon=True).start()
    mfusepy.FUSE(
        drive, str(args.mountpoint), foreground=True, fsname="drive", subtype="drive", hard_remove=True,
        attr_timeout=0, entry_timeout=5, negative_timeout=0,  # a path is looked up anew by every call anyway
    )  # fmt: skip
    return 0


def _end_with_parent(mountpoint: Path) -> None:
    sys.stdin.buffer.read()
    subprocess.run(["fusermount3", "-uzq", str(mountpoint)], check=False, timeout=10)
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
