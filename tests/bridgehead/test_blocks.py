"""Blocks of big files: they cover the file without gap or overlap, and there are never too many."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from bridgehead import blocks


@pytest.mark.parametrize("size", [1, blocks.LEAST_BYTES, blocks.LEAST_BYTES + 1, 2**30, 2**32, 2**32 + 1, 2**40])
def test_blocks_cover_the_file_and_are_not_too_many(size: int) -> None:
    found = list(blocks.spans(size))
    assert len(found) == blocks.count(size) <= blocks.COUNT_MAX
    assert [start for start, _ in found] == [index * blocks.block_bytes(size) for index in range(len(found))]
    assert sum(length for _, length in found) == size and min(length for _, length in found) > 0


def test_each_digest_is_of_its_block_and_a_short_file_has_none_at_its_end(tmp_path: Path) -> None:
    data = os.urandom(blocks.LEAST_BYTES + 100)
    (tmp_path / "file").write_bytes(data)
    fd = os.open(tmp_path / "file", os.O_RDONLY)
    try:
        assert blocks.digests_of_fd(fd, len(data)) == [
            hashlib.sha256(data[: blocks.LEAST_BYTES]).digest(),
            hashlib.sha256(data[blocks.LEAST_BYTES :]).digest(),
        ]
        assert blocks.digests_of_fd(fd, len(data) + 1)[1] == b""
    finally:
        os.close(fd)
