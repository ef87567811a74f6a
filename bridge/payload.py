"""The user's own files that go to the VM: what the globs of bridgehead.toml name, each with size and hash."""

from __future__ import annotations

import hashlib
import os
import stat
import threading
from pathlib import Path
from typing import Any, TypedDict

from bridge import payload_choice
from bridge.payload_hashes import Hashed, Hashes, stamp_of
from bridge.project import LoadProject
from bridgehead import files, paths
from bridgehead.errors import NotFoundError, UsageError


class PayloadFile(TypedDict):
    path: str
    size: int
    sha256: str
    mode: int  # 0o644 or 0o755


class Payload:
    """Reads the project file and the disk anew for each manifest; hashes only what has changed."""

    def __init__(self, root: Path, load_project: LoadProject) -> None:
        self._root = root
        self._load_project = load_project
        self._hashes = Hashes()
        self._hashing = threading.Lock()
        self._listed: frozenset[str] | None = None
        self._by_sha256: dict[str, str] = {}  # of the last manifest: to one of the paths that hold it

    def manifest(self) -> dict[str, Any]:
        """`{"project", "payload_sha256", "requirements", "down_mb_s", "store", "vm", "allow_sh", "stays", "files"}`.

        Files are in the order of their paths; `stays` says what is not sent though the globs seem to mean it. Raises
        ProjectError, and UsageError for files whose names can't cross the wire or that can't be read.
        """
        view = self._load_project()
        with self._hashing:
            choice = payload_choice.choose(self._root, view)
            choice.check_names(lambda relative: self._hashes.last(relative) is not None)
            listed = [entry for item in choice.files if (entry := self._entry(*item)) is not None]
            self._by_sha256 = {entry["sha256"]: entry["path"] for entry in listed}
            self._listed = frozenset(entry["path"] for entry in listed)
            self._hashes.forget_all_but(self._listed)
        return {
            "project": view.name,
            "payload_sha256": hashlib.sha256(files.canonical_json(listed)).hexdigest(),
            "requirements": list(view.requirements),
            "down_mb_s": view.down_mb_s,
            "store": view.store.to_json(),
            "vm": view.vm.to_json(),
            "allow_sh": view.allow_sh,
            "stays": choice.stays(),
            "files": listed,
        }

    def open(self, relative: str) -> tuple[int, int, str]:
        """(descriptor, size, sha256) of a file of the manifest; the caller closes the descriptor.

        Raises UsageError for an unsafe path and NotFoundError for what the last manifest does not list.
        """
        paths.check_relative(relative)
        if relative not in self._paths():
            raise NotFoundError(f"no payload file {relative!r}")
        fd, info = self._open_regular(relative)
        try:
            with self._hashing:
                return fd, info.st_size, self._hashes.now(relative, fd, info).sha256
        except BaseException:
            os.close(fd)
            raise

    def open_content(self, sha256: str) -> tuple[int, int]:
        """(descriptor, size) of a file that had this SHA-256 and has not been touched since; the caller closes it.

        Nothing is hashed: who fetches checks what comes. Raises NotFoundError when the laptop has it no more.
        """
        fd, hashed = self._open_hashed(sha256)
        return fd, hashed.stamp[2]

    def blocks(self, sha256: str) -> tuple[int, bytes]:
        """Size of a content, and the SHA-256 of each of its blocks in one string. Raises NotFoundError."""
        fd, hashed = self._open_hashed(sha256)
        os.close(fd)
        return hashed.stamp[2], hashed.blocks

    def _open_hashed(self, sha256: str) -> tuple[int, Hashed]:
        self._paths()
        relative = self._by_sha256.get(sha256)
        hashed = self._hashes.last(relative) if relative is not None else None
        if relative is None or hashed is None or hashed.sha256 != sha256:
            raise NotFoundError("the payload holds no such content now", hint="ask for its manifest again")
        fd, info = self._open_regular(relative)
        if stamp_of(info) != hashed.stamp:
            os.close(fd)
            raise NotFoundError("the payload holds no such content now", hint="ask for its manifest again")
        return fd, hashed

    def _open_regular(self, relative: str) -> tuple[int, os.stat_result]:
        try:
            fd = _open(self._root, relative)
        except OSError:
            raise NotFoundError(f"the payload file {relative!r} is gone") from None
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode):
            os.close(fd)
            raise NotFoundError(f"the payload file {relative!r} is gone")
        return fd, info

    def _paths(self) -> frozenset[str]:
        if self._listed is None:
            self.manifest()
        return self._listed or frozenset()

    def _entry(self, relative: str, seen: os.stat_result) -> PayloadFile | None:
        """None for a file that went away while we looked. What is as it was when it was hashed is not even opened."""
        known = self._hashes.same(relative, seen)
        if known is not None:
            return _entry(relative, seen, known)
        try:
            fd = _open(self._root, relative)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise UsageError(f"the payload file {relative!r} can't be read: {error.strerror}") from None
        try:
            info = os.fstat(fd)
            return _entry(relative, info, self._hashes.now(relative, fd, info))
        finally:
            os.close(fd)


def _entry(relative: str, info: os.stat_result, hashed: Hashed) -> PayloadFile:
    mode = 0o755 if info.st_mode & stat.S_IXUSR else 0o644
    return {"path": relative, "size": info.st_size, "sha256": hashed.sha256, "mode": mode}


def _open(root: Path, relative: str) -> int:
    """Without following links, and without waiting for the other end of a named pipe."""
    return paths.open_inside(root, relative, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
