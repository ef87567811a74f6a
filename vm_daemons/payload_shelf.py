"""Contents by their SHA-256, beside the payload folder: what was fetched and is not in place yet, and what was there.

So nothing is in the payload folder before all of it has been checked, a fetch that is cut goes on where it was, and a
file that comes back, under whatever name, is not fetched again. Nothing is fsynced: after a power cut it would be
fetched anew, and what lies here from an earlier sync is hashed before it is used.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from bridgehead import blocks, files
from bridgehead.errors import VerificationError
from vm_daemons.gauges import disk
from vm_daemons.home import VmHome

KEPT_MAX_BYTES = 2 * 2**30  # of old versions, and never more than a tenth of the free disk
_PART = ".part"
_BLOCKS = ".blocks"
_COPY_BYTES = 1 << 20


class Shelf:
    """For one sync at a time, under the payload's lock; `add` may be called from several threads."""

    def __init__(self, home: VmHome) -> None:
        self.folder = home.state / "content"
        self.folder.mkdir(parents=True, exist_ok=True)
        self._found = set(os.listdir(self.folder))
        self._checked: set[str] = set()

    def path(self, sha256: str) -> Path:
        return self.folder / sha256

    def part(self, sha256: str) -> Path:
        """Where a big file is put together."""
        return self.folder / (sha256 + _PART)

    def has(self, sha256: str, size: int) -> bool:
        """Whether it is here and really is what its name says; what isn't goes."""
        if sha256 in self._checked:
            return True
        found = files.plain_stat(self.path(sha256)) if sha256 in self._found else None
        if found is None:
            return False
        if found.st_size == size and files.sha256_file(self.path(sha256)) == sha256:
            self._checked.add(sha256)
            return True
        self.path(sha256).unlink()
        return False

    def add(self, sha256: str, data: bytes | memoryview) -> None:
        """Raises VerificationError when `data` is something else."""
        if hashlib.sha256(data).hexdigest() != sha256:
            raise VerificationError("arrived with another hash than the manifest names")
        fd = self._create(sha256)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
        finally:
            os.close(fd)
        self._checked.add(sha256)

    def add_from(self, sha256: str, source: IO[bytes]) -> bool:
        """All that can be read of `source`; False when it is something else."""
        part = self.part(sha256)
        if _copy(source, part) == sha256:
            self.add_part(sha256)
            return True
        part.unlink()
        return False

    def add_part(self, sha256: str) -> None:
        """What was put together is whole, and its hash was checked."""
        os.replace(self.part(sha256), self.path(sha256))
        self._checked.add(sha256)

    def add_copy(self, sha256: str, source: Path | str) -> bool:
        """A copy of a file that should hold this content; False when it does not any more."""
        try:
            with open(source, "rb") as reader:
                return self.add_from(sha256, reader)
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError):
            return False

    def keep(self, sha256: str, path: Path | str) -> bool:
        """A second name for a file that is about to lose its own; nothing is copied."""
        with contextlib.suppress(OSError):  # it is here already, or this disk has no links
            os.link(path, self.path(sha256), follow_symlinks=False)
            return True
        return False

    def take(self, sha256: str, target: Path | str, mode: int, *, last: bool) -> None:
        """Put the content at `target` by a rename; a copy of it unless this is its `last` use. Raises OSError."""
        source = f"{self.folder}/{sha256}"
        if last:
            self._checked.discard(sha256)
        else:
            copy = self.folder / f"{files.TEMP_PREFIX}{secrets.token_hex(8)}"
            with open(source, "rb") as reader:
                _copy(reader, copy)
            source = str(copy)
        os.chmod(source, mode)
        os.replace(source, target)

    def big_files(self) -> Iterator[tuple[Path, str, int]]:
        """Path, SHA-256 and size of those that came by blocks; their content is not checked."""
        for path in self.folder.glob(f"*{_BLOCKS}"):
            sha256 = path.name.removesuffix(_BLOCKS)
            found = files.plain_stat(self.path(sha256))
            if found is not None:
                yield self.path(sha256), sha256, found.st_size

    def blocks_of(self, sha256: str, size: int) -> bytes:
        """The list of block hashes that came with a content; empty when there is none."""
        with contextlib.suppress(OSError):
            listed = (self.folder / (sha256 + _BLOCKS)).read_bytes()
            if len(listed) == blocks.count(size) * blocks.DIGEST_BYTES:
                return listed
        return b""

    def keep_blocks(self, sha256: str, listed: bytes) -> None:
        (self.folder / (sha256 + _BLOCKS)).write_bytes(listed)

    def room_made(self, needed_bytes: int, wanted: set[str]) -> int:
        """The disk's free bytes, once old versions have been given up if there is need; not what is `wanted`."""
        if needed_bytes > disk(self.folder)[1]:
            for path in self._oldest_first():
                if path.name.removesuffix(_PART) not in wanted:
                    path.unlink(missing_ok=True)
        return disk(self.folder)[1]

    def held_bytes(self, sha256: str) -> int:
        """What of a content takes room here already, whole or in part."""
        held = 0
        for name in (sha256, sha256 + _PART):
            if name in self._found and (found := files.plain_stat(self.folder / name)) is not None:
                held += found.st_blocks * 512
        return held

    def prune(self, in_use: set[str]) -> None:
        """Old versions beyond the limit go, the oldest first; lists of blocks stay as long as their content."""
        left_bytes = min(KEPT_MAX_BYTES, disk(self.folder)[1] // 10)
        kept = set(in_use)
        for path in reversed(self._oldest_first()):
            left_bytes -= path.stat().st_size
            if left_bytes < 0 or path.name.startswith(files.TEMP_PREFIX):
                path.unlink()
            else:
                kept.add(path.name)
        for path in self.folder.glob(f"*{_BLOCKS}"):
            if path.name.removesuffix(_BLOCKS) not in kept:
                path.unlink()

    def _oldest_first(self) -> list[Path]:
        """By when they came here: the change of a file's names is the last thing that happened to it."""
        found = [(stat.st_ctime_ns, path) for path in self.folder.iterdir() if (stat := _no_list(path)) is not None]
        return [path for _, path in sorted(found)]

    def _create(self, sha256: str) -> int:
        """Never into a file that is here: it may be one of a running stage under a second name."""
        path = f"{self.folder}/{sha256}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        try:
            return os.open(path, flags, 0o644)
        except FileExistsError:
            os.unlink(path)
            return os.open(path, flags, 0o644)


def _no_list(path: Path) -> os.stat_result | None:
    return None if path.suffix == _BLOCKS else files.plain_stat(path)


def _copy(source: IO[bytes], target: Path) -> str:
    """The SHA-256 of what was copied. Raises OSError."""
    digest = hashlib.sha256()
    with target.open("wb") as writer:
        while piece := source.read(_COPY_BYTES):
            digest.update(piece)
            writer.write(piece)
    return digest.hexdigest()
