"""Big files in blocks of a fixed size, each with its SHA-256: what a VM has of a new version, it need not fetch.

Blocks lie at multiples of their size, so bytes that are inserted shift all that follow and nothing after them is found
again. Cutting by content would find it; in pure Python that costs more than the transfer.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from typing import Final

FROM_BYTES: Final = 2 * 2**20  # a smaller file travels whole
LEAST_BYTES: Final = 256 * 2**10
COUNT_MAX: Final = 2**14  # with more, blocks grow: a list of at most 512 KiB
DIGEST_BYTES: Final = 32


def block_bytes(size: int) -> int:
    """The size of the blocks of a file of `size` bytes: 256 KiB up to 4 GiB, then doubled as often as needed."""
    block = LEAST_BYTES
    while block * COUNT_MAX < size:
        block *= 2
    return block


def count(size: int) -> int:
    return -(-size // block_bytes(size))


def spans(size: int) -> Iterator[tuple[int, int]]:
    """Start and length of each block of a file of `size` bytes."""
    step = block_bytes(size)
    for start in range(0, size, step):
        yield start, min(step, size - start)


def digests_of_fd(fd: int, size: int) -> list[bytes]:
    """The SHA-256 of each block of an open file; one that ends early has an empty digest. Raises OSError."""
    os.lseek(fd, 0, os.SEEK_SET)
    with os.fdopen(os.dup(fd), "rb") as handle:
        return [hash_block(handle.read(length), length) for _, length in spans(size)]


def hash_block(data: bytes | memoryview, length: int) -> bytes:
    return hashlib.sha256(data).digest() if len(data) == length else b""
