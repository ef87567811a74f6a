"""What each file of the payload hashes to, remembered as long as its stamp says that it is the same."""

from __future__ import annotations

import hashlib
import os
import time
from dataclasses import dataclass

from bridgehead import blocks

_SETTLED_S = 2.0  # a file changed so recently may change again without a change of its time stamp
_CHUNK_BYTES = blocks.LEAST_BYTES

Stamp = tuple[int, int, int, int]  # mtime_ns, ctime_ns, size, inode


@dataclass(frozen=True)
class Hashed:
    stamp: Stamp
    sha256: str
    blocks: bytes  # the SHA-256 of each block, one after the other; empty below blocks.FROM_BYTES
    settled: bool  # whether an equal stamp proves that the file is the same


class Hashes:
    """By relative path. The caller sees to it that one thread at a time hashes."""

    def __init__(self) -> None:
        self._known: dict[str, Hashed] = {}

    def last(self, relative: str) -> Hashed | None:
        """What the file was when it was last hashed."""
        return self._known.get(relative)

    def now(self, relative: str, fd: int, info: os.stat_result) -> Hashed:
        """What the open file is, read if need be. Raises OSError."""
        known = self._known.get(relative)
        if known is None or not known.settled or known.stamp != stamp_of(info):
            known = self._known[relative] = _hash(fd, info)
        return known

    def forget_all_but(self, relatives: frozenset[str]) -> None:
        for gone in set(self._known) - relatives:
            self._known.pop(gone, None)


def stamp_of(info: os.stat_result) -> Stamp:
    # The change time tells of a content that was replaced and given its old time back; Windows' is the birth.
    return (info.st_mtime_ns, info.st_ctime_ns, info.st_size, info.st_ino)


def _hash(fd: int, info: os.stat_result) -> Hashed:
    """One pass for the whole and its blocks."""
    settled = abs(time.time() - info.st_mtime) > _SETTLED_S  # before it is read: it may change meanwhile
    step = blocks.block_bytes(info.st_size) if info.st_size >= blocks.FROM_BYTES else 0
    whole, block, filled, listed = hashlib.sha256(), hashlib.sha256(), 0, []
    os.lseek(fd, 0, os.SEEK_SET)
    while piece := os.read(fd, _CHUNK_BYTES - filled % _CHUNK_BYTES):
        whole.update(piece)
        if not step:
            continue
        block.update(piece)
        filled += len(piece)
        if filled == step:
            listed.append(block.digest())
            block, filled = hashlib.sha256(), 0
    if filled:
        listed.append(block.digest())
    os.lseek(fd, 0, os.SEEK_SET)
    return Hashed(stamp_of(info), whole.hexdigest(), b"".join(listed), settled)
