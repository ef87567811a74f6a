"""One big file while it is put together: which of its blocks are there, and the whole's hash, computed behind them.

What an earlier try has left is judged by the hashes of its blocks alone.
"""

from __future__ import annotations

import errno
import hashlib
import itertools
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from bridgehead import blocks
from vm_daemons.payload_line import Line

_COPY_BYTES = 1 << 20
_NO_SUCH_CALL = (errno.EXDEV, errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP)
Place = tuple[Path, int]  # a file on this VM, and where in it a block begins


class Assembly:
    """Use as a context; its methods may be called from several threads. `listed` are the SHA-256 of the blocks."""

    def __init__(self, part: Path, sha256: str, size: int, listed: list[bytes], line: Line) -> None:
        self.sha256, self.size, self.line = sha256, size, line
        self.spans = list(blocks.spans(size))
        self._part, self._listed = part, listed
        self.step = blocks.block_bytes(size)
        self._have = bytearray(len(self.spans))
        self._more = threading.Condition()
        self._ended = False
        self._digest: bytes | None = None

    def __enter__(self) -> Assembly:
        begun = self._part.exists()
        self._fd = os.open(self._part, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        os.ftruncate(self._fd, self.size)
        if begun:
            self._judge()
        self._follower = threading.Thread(target=self._follow, name="hash", daemon=True)
        self._follower.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._more:
            self._ended = True
            self._more.notify_all()
        self._follower.join()
        os.close(self._fd)

    def missing(self) -> set[bytes]:
        """Hashes of the blocks that are not there."""
        return {self._listed[index] for index, have in enumerate(self._have) if not have}

    def missing_runs(self) -> Iterator[tuple[int, int]]:
        """First and last index of blocks that are missing side by side."""
        for have, group in itertools.groupby(range(len(self.spans)), key=lambda index: self._have[index]):
            if not have:
                found = list(group)
                yield found[0], found[-1]

    def has(self, start: int, end: int) -> bool:
        """Whether all bytes from `start`, a block's begin, up to `end` are there."""
        return all(self._have[start // self.step : self._blocks_up_to(end)])

    def write(self, at: int, data: bytes | memoryview) -> None:
        """Bytes of some block; `arrived` says when they make up whole ones. Raises OSError."""
        view = memoryview(data)
        while view:
            count = os.pwrite(self._fd, view, at)
            view, at = view[count:], at + count

    def arrived(self, start: int, end: int) -> None:
        """All from `start`, a block's begin, up to `end` is written: whole blocks count as there."""
        first, last = start // self.step, self._blocks_up_to(end)
        with self._more:
            news = sum(self.spans[index][1] for index in range(first, last) if not self._have[index])
            if news:
                self._have[first:last] = b"\1" * (last - first)
                self._more.notify_all()
        if news:
            self.line.done(news)

    def copy(self, places: dict[bytes, Place]) -> None:
        """Take what other files here hold, neighbours in one go. One that has become shorter gives nothing."""
        for path, at, start, length in self._copies(places):
            try:
                source = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
            except OSError:
                continue
            try:
                whole = _copy_range(source, at, self._fd, start, length)
            finally:
                os.close(source)
            if whole:
                self.arrived(start, start + length)

    def is_right(self) -> bool:
        """Once nothing is missing: whether the whole has its hash. If not, blocks that are wrong count as missing."""
        with self._more:
            self._more.wait_for(lambda: self._digest is not None or self._ended)
        if self._digest is None or self._digest.hex() != self.sha256:
            self._judge()
            return False
        return True

    def is_right_at_last(self) -> bool:
        """The same, with all of it read once more."""
        digest = hashlib.sha256()
        for start, length in self.spans:
            digest.update(os.pread(self._fd, length, start))
        return digest.hexdigest() == self.sha256

    # --- inside ------------------------------------------------------------------------------------

    def _judge(self) -> None:
        before = self._bytes_here()
        for index, digest in enumerate(blocks.digests_of_fd(self._fd, self.size)):
            self._have[index] = digest == self._listed[index]
        self.line.done(self._bytes_here() - before)

    def _bytes_here(self) -> int:
        return sum(length for (_, length), have in zip(self.spans, self._have, strict=True) if have)

    def _blocks_up_to(self, end: int) -> int:
        return len(self.spans) if end >= self.size else end // self.step

    def _copies(self, places: dict[bytes, Place]) -> Iterator[tuple[Path, int, int, int]]:
        """Path, where to read, where to write, how much; blocks that are neighbours in both files in one."""
        path, at, start, length = Path(), 0, 0, 0
        for index, (here, size) in enumerate(self.spans):
            place = None if self._have[index] else places.get(self._listed[index])
            if place is not None and length and place == (path, at + length) and here == start + length:
                length += size
                continue
            if length:
                yield path, at, start, length
            length = 0
            if place is not None:
                (path, at), start, length = place, here, size
        if length:
            yield path, at, start, length

    def _follow(self) -> None:
        """Hash the file behind those who write it."""
        try:
            digest = self._hash_behind()
        except OSError:  # whoever judges the blocks then reads the same, and tells
            digest = b""
        with self._more:
            self._digest = digest
            self._more.notify_all()

    def _hash_behind(self) -> bytes:
        """Empty when it was called off."""
        digest, buffer = hashlib.sha256(), memoryview(bytearray(min(self.step, max(self.size, 1))))
        for index, (start, length) in enumerate(self.spans):
            with self._more:
                while not self._have[index]:
                    if self._ended:
                        return b""
                    self._more.wait()
            count = os.preadv(self._fd, [buffer[:length]], start)
            digest.update(buffer[:count])
        return digest.digest()


def _copy_range(source: int, at: int, target: int, start: int, length: int) -> bool:
    """Inside the kernel where it can (some disks share the blocks then). False when the source ends early."""
    os.lseek(source, at, os.SEEK_SET)
    while length:
        try:
            count = os.copy_file_range(source, target, length, offset_dst=start)
        except OSError as error:
            if error.errno not in _NO_SUCH_CALL:
                raise
            piece = os.read(source, min(length, _COPY_BYTES))
            count = os.pwrite(target, piece, start)
            os.lseek(source, count - len(piece), os.SEEK_CUR)
        if count == 0:
            return False
        start, length = start + count, length - count
    return True
