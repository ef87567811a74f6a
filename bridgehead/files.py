"""Files that are either the old version or the new one, whatever dies in between."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import secrets
import stat
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from bridgehead.os_errors import means_full

TEMP_PREFIX = ".tmp-"
_CHUNK_BYTES = 1 << 20
_NO_ROOM_BYTES = 1 << 20
_ROOM_TRIES = 300
_ROOM_PAUSE_S = 2.0
T = TypeVar("T")
_REPLACE_TRIES_S = (0.05, 0.1, 0.2, 0.4, 0.8, 1.0)  # Windows: a virus scanner may hold the target


def write_atomic(path: Path, data: bytes, *, mode: int = 0o644) -> None:
    """Write `data` to a random temp name beside `path`, fsync, replace, fsync the folder.

    Raises OSError; then `path` still holds what it held and the temp file is gone.
    """
    with atomic_writer(path, mode=mode) as handle:
        handle.write(data)


@contextlib.contextmanager
def atomic_writer(path: Path, *, mode: int = 0o644) -> Iterator[BinaryIO]:
    """The same for data that comes in parts: the file appears when the block ends without error."""
    temp = path.parent / f"{TEMP_PREFIX}{secrets.token_hex(8)}"
    fd = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), mode)
    try:
        with os.fdopen(fd, "wb") as handle:
            yield handle
            handle.flush()
            os.fsync(handle.fileno())
        replace(temp, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temp.unlink()
        raise
    fsync_folder(path.parent)


def replace(source: Path, target: Path) -> None:
    """os.replace, tried again for 2.5 s where a scanner holds the target open (Windows)."""
    for pause_s in _REPLACE_TRIES_S:
        try:
            os.replace(source, target)
            return
        except PermissionError:
            if not _on_windows():
                raise
            time.sleep(pause_s)
    os.replace(source, target)


def _on_windows() -> bool:
    return os.name == "nt"


def fsync_folder(folder: Path) -> None:
    """Make a rename in `folder` survive a power cut. Windows has no such call."""
    if os.name == "nt":
        return
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_file_system(folder: Path) -> bool:
    """Have on the disk all that was written to the file system of `folder`. False where there is no such call.

    syncfs(2), which since Linux 5.8 reports what could not be written. Raises OSError.
    """
    if not sys.platform.startswith("linux"):
        return False
    import ctypes  # few need it

    try:
        syncfs = ctypes.CDLL(None, use_errno=True).syncfs
    except (OSError, AttributeError):
        return False
    fd = os.open(folder, os.O_RDONLY)
    try:
        if syncfs(fd) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
    finally:
        os.close(fd)
    return True


def write_json(path: Path, value: object, *, mode: int = 0o644) -> None:
    """One JSON document, atomically; human-readable, keys in the order given."""
    write_atomic(path, (json.dumps(value, indent=2) + "\n").encode(), mode=mode)


def read_json(path: Path) -> Any | None:
    """The document, or None when the file is absent, no plain file or not valid JSON (a reader is tolerant)."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # a FIFO would hang us, a folder is no document
            return None
        return json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError, ValueError, RecursionError):
        return None
    except OSError as error:
        if error.errno == errno.ELOOP:  # a link to itself
            return None
        raise


def plain_stat(path: Path) -> os.stat_result | None:
    """What lies at `path` itself, when that is a plain file; None for nothing, a link, a folder, a FIFO."""
    try:
        found = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found if stat.S_ISREG(found.st_mode) else None


def canonical_json(value: object) -> bytes:
    """One byte string per value: sorted keys, no spaces, ASCII. What signatures and ids cover."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


def append_line(path: Path, line: str, *, durable: bool = True) -> None:
    """Append one line with a single write; with `durable`, fsync before returning."""
    data = (line + "\n").encode()
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0), 0o644)
    try:
        while data:
            data = data[os.write(fd, data) :]
        if durable:
            os.fsync(fd)
    finally:
        os.close(fd)


def is_full(folder: Path) -> bool:
    """Whether the disk of `folder` has less than 1 MiB left; False where it does not tell."""
    try:
        found = os.statvfs(folder)
    except (OSError, AttributeError):
        return False
    return found.f_bavail * found.f_frsize < _NO_ROOM_BYTES


def with_room(write: Callable[[], T], *, on_full: Callable[[], None], pause: Callable[[float], None] = time.sleep) -> T:
    """`write()`, tried again for 10 minutes while the disk or the quota is full; `on_full` hears of it once."""
    for tries in range(_ROOM_TRIES):
        try:
            return write()
        except OSError as error:
            if not means_full(error):
                raise
            if tries == 0:
                on_full()
            pause(_ROOM_PAUSE_S)
    return write()


def sha256_file(path: Path, *, on_bytes: Callable[[int], None] | None = None) -> str:
    """Hex SHA-256 of a file, read in 1 MiB pieces; `on_bytes` hears of each piece."""
    digest = hashlib.sha256()
    with path.open("rb") as handle:
        while piece := handle.read(_CHUNK_BYTES):
            digest.update(piece)
            if on_bytes is not None:
                on_bytes(len(piece))
    return digest.hexdigest()


def sweep_temp_files(folder: Path, *, older_than_s: float = 3600.0) -> int:
    """Remove what a killed writer left in `folder` (not below it). Returns how many went."""
    swept = 0
    horizon = time.time() - older_than_s
    for entry in folder.glob(f"{TEMP_PREFIX}*"):
        with contextlib.suppress(OSError):
            if entry.stat().st_mtime < horizon:
                entry.unlink()
                swept += 1
    return swept
