"""What the VM lacks of the payload, from the laptop onto the shelf; from there it goes into place, all at once.

Small files come by the hundred in one answer, big ones as ranges side by side, and of a big one that resembles what is
here only the blocks that differ. A connection that is cut costs what was under way; so does a daemon that dies.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path

from bridgehead import blocks, packs
from bridgehead.errors import NotFoundError, VerificationError
from bridgehead.packs import Part
from vm_daemons import payload_packs, payload_ranges
from vm_daemons.client import BridgeClient
from vm_daemons.payload_assembly import Assembly, Place
from vm_daemons.payload_line import Changed, Line
from vm_daemons.payload_ranges import Job
from vm_daemons.payload_shelf import Shelf
from vm_daemons.payload_tree import Entry, Tree

WORKERS = 4  # connections: more help no line, and a slow one is shared among them
ALONE_BYTES = 32 * 2**20  # bigger files come one after the other, each over all connections


def fetch(client: BridgeClient, tree: Tree, shelf: Shelf, wanted: list[Entry], line: Line) -> None:
    """Bring each content (one entry per SHA-256) onto the shelf.

    Raises Changed when the laptop has another version by now, VerificationError naming the file, TransferError and
    OSError. What has come stays on the shelf.
    """
    small = [entry for entry in wanted if int(entry["size"]) < blocks.FROM_BYTES]
    big = [entry for entry in wanted if int(entry["size"]) >= blocks.FROM_BYTES]
    bases = Bases(tree, shelf) if big else None
    with ThreadPoolExecutor(WORKERS, thread_name_prefix="payload") as pool:

        def side_by_side(jobs: list[Job]) -> None:
            _run(pool, jobs, line)

        try:
            side_by_side(_small(client, shelf, small, line))
            alone = [_Big(client, shelf, bases, entry, line) for entry in big if int(entry["size"]) > ALONE_BYTES]
            others = [_Big(client, shelf, bases, entry, line) for entry in big if int(entry["size"]) <= ALONE_BYTES]
            side_by_side([lambda one=one: one.fetch(_in_turn) for one in others])  # type: ignore[misc]
            for one in alone:
                one.fetch(side_by_side)
        finally:
            line.ended.set()


def _run(pool: ThreadPoolExecutor, jobs: list[Job], line: Line) -> None:
    """Side by side; the first error ends those that are under way, and is raised."""
    running = [pool.submit(job) for job in jobs]
    try:
        for job in wait(running, return_when=FIRST_EXCEPTION).done:
            job.result()
    except BaseException:
        line.ended.set()
        for job in running:
            job.cancel()
        raise


def _in_turn(jobs: list[Job]) -> None:
    for job in jobs:
        job()


def _small(client: BridgeClient, shelf: Shelf, entries: Iterable[Entry], line: Line) -> list[Job]:
    parts = []
    for entry in entries:
        if int(entry["size"]) == 0:
            shelf.add(str(entry["sha256"]), b"")
        else:
            parts.append(Part(str(entry["sha256"]), 0, int(entry["size"])))

    def take(part: Part, data: memoryview) -> None:
        shelf.add(part.sha256, data)
        line.done(part.length)

    def job(group: list[Part]) -> Job:
        return lambda: payload_packs.fetch(client, group, take, line)

    return [job(group) for group in packs.groups(parts)]


class Bases:
    """Where the blocks of big files lie that are on this VM already: in the payload folder or on the shelf."""

    def __init__(self, tree: Tree, shelf: Shelf) -> None:
        self._tree, self._shelf = tree, shelf
        self._places: dict[int, dict[bytes, Place]] = {}  # by the size of the blocks
        self._read_already: set[Path] = set()
        for path, sha256, size in [*tree.big_files(), *shelf.big_files()]:
            self._add(path, size, _split(shelf.blocks_of(sha256, size)))

    def places(self, entry: Entry) -> dict[bytes, Place]:
        """Of blocks that `entry` may hold; where its old version came without a list of them, that is read now."""
        size = int(entry["size"])
        path = Path(self._tree.locate(entry["path"]))
        if path not in self._read_already:
            self._read(path)
        return self._places.get(blocks.block_bytes(size), {})

    def _read(self, path: Path) -> None:
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            return
        try:
            found = os.fstat(fd)
            if stat.S_ISREG(found.st_mode) and found.st_size >= blocks.FROM_BYTES:
                self._add(path, found.st_size, blocks.digests_of_fd(fd, found.st_size))
        finally:
            os.close(fd)

    def _add(self, path: Path, size: int, listed: list[bytes]) -> None:
        if not listed:
            return
        self._read_already.add(path)
        found = self._places.setdefault(blocks.block_bytes(size), {})
        for (start, _), digest in zip(blocks.spans(size), listed, strict=True):
            found.setdefault(digest, (path, start))


class _Big:
    """One big file on its way to the shelf."""

    def __init__(self, client: BridgeClient, shelf: Shelf, bases: Bases | None, entry: Entry, line: Line) -> None:
        self._client, self._shelf, self._bases, self._entry, self._line = client, shelf, bases, entry, line

    def fetch(self, run_all: Callable[[list[Job]], None]) -> None:
        sha256, size = str(self._entry["sha256"]), int(self._entry["size"])
        try:
            told, listed = self._line.patiently(lambda: self._client.blocks(sha256))
        except NotFoundError:
            raise Changed(sha256) from None
        if told != size or len(listed) != blocks.count(size) * blocks.DIGEST_BYTES:
            raise Changed(sha256)  # it grew while the laptop hashed it
        with Assembly(self._shelf.part(sha256), sha256, size, _split(listed), self._line) as assembly:
            if assembly.missing() and self._bases is not None:
                assembly.copy(self._bases.places(self._entry))
            run_all(payload_ranges.jobs(assembly, self._client))
            right = assembly.is_right()
            if not right:  # something on this VM was changed in secret, or the line lies: once more what is wrong
                run_all(payload_ranges.jobs(assembly, self._client))
                right = assembly.is_right_at_last()
        if not right:
            self._shelf.part(sha256).unlink()
            raise VerificationError(
                f"{self._entry['path']} arrived with another hash than the manifest names; the old file stays"
            )
        self._shelf.keep_blocks(sha256, listed)
        self._shelf.add_part(sha256)


def _split(listed: bytes) -> list[bytes]:
    return [listed[at : at + blocks.DIGEST_BYTES] for at in range(0, len(listed), blocks.DIGEST_BYTES)]
