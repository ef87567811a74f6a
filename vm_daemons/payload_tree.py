"""The payload folder: what lies there, and how a file gets in and out so that a running stage never sees half of one.

A file is replaced by a rename: who has the old one open keeps it. What was there before stays on the shelf for a while.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bridgehead import blocks, files, names, paths, processes
from bridgehead.errors import UsageError, VerificationError
from vm_daemons.home import VmHome
from vm_daemons.payload_shelf import Shelf

_KNOWN = "payload.json"  # what the last manifest put here; in state/, private to this module
Entry = dict[str, Any]  # of the manifest: path, size, sha256, mode


class Tree:
    """Remembers of each file that it put there what it was, so that it need not be read again to know it."""

    def __init__(self, home: VmHome, entries: dict[str, Entry]) -> None:
        """`entries` are the manifest's, their paths checked."""
        self._root = home.payload
        self._record = home.state / _KNOWN
        record = files.read_json(self._record)
        record = record if isinstance(record, dict) else {}
        found = record.get("files")
        self._known: dict[str, dict[str, Any]] = found if isinstance(found, dict) else {}
        if record.get("boot_id") != processes.boot_id():
            # Nothing is fsynced: after a power cut a file may have lost its content and kept its time.
            self._known = dict.fromkeys(self._known, {})
        self._checked = set(entries)  # paths that are safe as they are spelt
        self._plain_folders: set[str] = set()  # no links on the way to them
        self._absent: set[str] = set()  # folders that were not there when the sync began

    def is_current(self, entry: Entry) -> bool:
        """Whether it is there with its size and hash; it gets its mode. A file not touched since then is not read."""
        relative = entry["path"]
        folder = relative.rpartition("/")[0]
        if folder in self._absent:
            return False
        path = self.locate(relative)
        try:
            found = os.lstat(path)
        except (FileNotFoundError, NotADirectoryError):
            if folder and folder not in self._plain_folders:
                self._absent.add(folder)
            return False
        if found.st_size != entry["size"] or not stat.S_ISREG(found.st_mode):
            return False
        if (self._sha256_at(relative, found) or files.sha256_file(Path(path))) != entry["sha256"]:
            return False
        if found.st_mode & 0o777 != mode_of(entry):
            os.chmod(path, mode_of(entry))
        return True

    def holders(self) -> dict[str, list[str]]:
        """SHA-256 -> the paths that hold it, as far as it is known without reading."""
        found: dict[str, list[str]] = {}
        for relative in self._known:
            sha256 = self.sha256_of(relative)
            if sha256:
                found.setdefault(sha256, []).append(relative)
        return found

    def big_files(self) -> Iterator[tuple[Path, str, int]]:
        """Path, SHA-256 and size of those that are fetched by blocks, as far as they are known without reading."""
        for relative in self._known:
            with contextlib.suppress(OSError, UsageError):
                path = self.locate(relative)
                found = os.lstat(path)
                sha256 = self._sha256_at(relative, found)
                if sha256 and found.st_size >= blocks.FROM_BYTES:
                    yield Path(path), sha256, found.st_size

    def sha256_of(self, relative: str) -> str:
        """What lies there, when it has not been touched since that was last known; else empty."""
        if self._known.get(relative):
            with contextlib.suppress(OSError, UsageError):
                return self._sha256_at(relative, os.lstat(self.locate(relative)))
        return ""

    def locate(self, relative: str) -> str:
        """The path below the payload folder. Raises UsageError for an unsafe one, or one that goes through a link."""
        if relative not in self._checked:
            paths.check_relative(relative)
            self._checked.add(relative)
        folder = relative.rpartition("/")[0]
        if folder and folder not in self._plain_folders:
            paths.inside(self._root, folder)
            if os.path.isdir(f"{self._root}/{folder}"):
                self._plain_folders.add(folder)
        return f"{self._root}/{relative}"

    def expect(self, wanted: list[Entry]) -> None:
        """Remember what is about to be put there: a sync that is cut leaves nothing that a later one can't remove."""
        self._save({**self._known, **{entry["path"]: self._known.get(entry["path"], {}) for entry in wanted}})

    def drop(self, entries: dict[str, Entry], shelf: Shelf) -> int:
        """Away with what an earlier manifest named and this one does not; how many."""
        dropped = sorted(set(self._known) - set(entries))
        for relative in dropped:
            with contextlib.suppress(UsageError, FileNotFoundError, NotADirectoryError, IsADirectoryError):
                path = self.locate(relative)
                self._shelve(relative, path, shelf)
                os.unlink(path)
                self._remove_empty_parents(Path(path).parent)
        return len(dropped)

    def place(self, entry: Entry, shelf: Shelf, *, last: bool) -> None:
        """Move the content from the shelf into its place. Raises VerificationError when a folder is in the way."""
        relative = entry["path"]
        with _nothing_in_the_way(relative):
            path = self.locate(relative)
            folder = relative.rpartition("/")[0]
            if folder and folder not in self._plain_folders:
                os.makedirs(os.path.dirname(path), exist_ok=True)
                self.locate(relative)
            self._shelve(relative, path, shelf)
            shelf.take(entry["sha256"], path, mode_of(entry), last=last)

    def remember(self, entries: dict[str, Entry]) -> None:
        """All of the manifest is in place."""
        known = {}
        for relative, entry in entries.items():
            found = os.lstat(f"{self._root}/{relative}")
            known[relative] = {"sha256": entry["sha256"], "mtime_ns": found.st_mtime_ns, "inode": found.st_ino}
        self._save(known)

    def _sha256_at(self, relative: str, found: os.stat_result) -> str:
        known = self._known.get(relative) or {}
        same = known.get("mtime_ns") == found.st_mtime_ns and known.get("inode") == found.st_ino
        return str(known.get("sha256") or "") if same else ""

    def _shelve(self, relative: str, path: str, shelf: Shelf) -> None:
        sha256 = self.sha256_of(relative)
        if sha256:
            shelf.keep(sha256, path)

    def _remove_empty_parents(self, folder: Path) -> None:
        with contextlib.suppress(OSError):  # not empty: it stays
            while folder != self._root:
                folder.rmdir()
                self._plain_folders.discard(folder.relative_to(self._root).as_posix())
                folder = folder.parent

    def _save(self, known: dict[str, dict[str, Any]]) -> None:
        record = {"v": names.RECORD_VERSION, "boot_id": processes.boot_id(), "files": known}
        files.write_atomic(self._record, json.dumps(record, separators=(",", ":")).encode())
        self._known = known


def mode_of(entry: Entry) -> int:
    return int(entry.get("mode", 0o644)) & 0o777


@contextlib.contextmanager
def _nothing_in_the_way(relative: str) -> Iterator[None]:
    try:
        yield
    except (IsADirectoryError, NotADirectoryError, FileExistsError):
        raise VerificationError(
            f"{relative}: a folder and a file want the same name in the payload folder",
            hint="something on the VM wrote there; remove it with sh: and sync: again",
        ) from None
