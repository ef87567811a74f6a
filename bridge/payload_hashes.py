"""What each file of the payload hashes to, remembered as long as its stamp says that it is the same."""

from __future__ import annotations

import hashlib
import os
import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from bridgehead import blocks

_SETTLED_S = 2.0  # a file changed so recently may change again without a change of its time stamp
_AHEAD = 8  # blocks that wait for their hash

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

    def same(self, relative: str, info: os.stat_result) -> Hashed | None:
        """What it was, when its state proves that it still is."""
        known = self._known.get(relative)
        return known if known is not None and known.settled and known.stamp == stamp_of(info) else None

    def now(self, relative: str, fd: int, info: os.stat_result) -> Hashed:
        """What the open file is, read if need be. Raises OSError."""
        known = self.same(relative, info)
        if known is None:
            known = self._known[relative] = _hash(fd, info)
        return known

    def forget_all_but(self, relatives: frozenset[str]) -> None:
        for gone in set(self._known) - relatives:
            self._known.pop(gone, None)


def stamp_of(info: os.stat_result) -> Stamp:
    # The change time tells of a content that was replaced and given its old time back; Windows' is the birth.
    return (info.st_mtime_ns, info.st_ctime_ns, info.st_size, info.st_ino)


def _hash(fd: int, info: os.stat_result) -> Hashed:
    """One pass for the whole and its blocks, each on a thread of its own."""
    settled = abs(time.time() - info.st_mtime) > _SETTLED_S  # before it is read: it may change meanwhile
    big = info.st_size >= blocks.FROM_BYTES
    whole, listed, under_way = hashlib.sha256(), [], deque[Future[bytes]]()
    os.lseek(fd, 0, os.SEEK_SET)
    with os.fdopen(os.dup(fd), "rb") as handle, ThreadPoolExecutor(1) as pool:
        while piece := handle.read(blocks.block_bytes(info.st_size)):
            if big:
                under_way.append(pool.submit(_sha256, piece))
            whole.update(piece)
            if len(under_way) > _AHEAD:
                listed.append(under_way.popleft().result())
        listed += [digest.result() for digest in under_way]
    os.lseek(fd, 0, os.SEEK_SET)
    return Hashed(stamp_of(info), whole.hexdigest(), b"".join(listed), settled)


def _sha256(piece: bytes) -> bytes:
    return hashlib.sha256(piece).digest()
