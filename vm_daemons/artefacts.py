"""What a run made, on its way to the laptop: small files many at a time, big ones in parts side by side.

The laptop is asked first what it has already. Each part is hashed once; what was lost on the way, an answer included,
is learnt by asking again.
"""

from __future__ import annotations

import functools
import hashlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bridgehead import names
from bridgehead.errors import NotFoundError, TransferError
from vm_daemons import crew
from vm_daemons.client import Backoff, BridgeClient, OffsetConflict, Rejected
from vm_daemons.upload_pace import Transfer, UploadPace
from vm_daemons.upload_requests import FilePart, PartsState, Where, ask_batch, open_parts, send_batch, send_part

SMALL_BYTES: Final = 2**20  # files up to this size travel in batches
BATCH_BYTES: Final = 8 * 2**20
BATCH_FILES: Final = 2000
ASK_FROM_BYTES: Final = 4 * 2**20  # a batch of so much is asked for before it is sent the first time
PARTS_WANTED: Final = 256
PART_SIZES: Final = (8 * 2**20, 16 * 2**20, names.PART_MAX_BYTES)
TRIES: Final = 6  # without progress between them
_READ_BYTES: Final = 2**18  # still in the core's own cache when it is hashed


@dataclass(frozen=True)
class _Plan:
    """A file as it was when it was hashed."""

    mark: tuple[int, int]
    part_size: int
    digests: list[bytes]

    @property
    def size(self) -> int:
        return self.mark[1]

    def size_of(self, number: int) -> int:
        return min(self.part_size, self.size - number * self.part_size)

    def generation(self, client: BridgeClient, attempt: int) -> str:
        return f"{client.vm_id}-{attempt}-{hashlib.sha256(b''.join(self.digests)).hexdigest()[:16]}"


class Artefacts:
    """Sends the files of ended runs, one run at a time."""

    def __init__(self, client: BridgeClient, pace: UploadPace) -> None:
        self._client = client
        self._pace = pace
        self._width = crew.Width()
        self._plans: dict[Path, _Plan] = {}  # so that a laptop that is away does not have us hash again and again

    def send(self, run_dir: Path, run_id: str, attempt: int, relatives: list[str]) -> dict[str, str]:
        """Send these files of the run folder; path → why, of those that the laptop refuses for good.

        Raises TransferError once several tries in a row brought no progress, and what else BridgeClient raises.
        """
        sizes = {relative: os.stat(f"{run_dir}/{relative}").st_size for relative in relatives}
        small = [relative for relative in relatives if sizes[relative] <= SMALL_BYTES]
        transfer = self._pace.transfer(run_id, sizes)
        refused: dict[str, str] = {}
        try:
            batches = [_Batch(run_dir, run_id, attempt, listed) for listed in _batches(small, sizes)]
            _with_tries(lambda: self._send_batches(batches, transfer, refused), lambda: transfer.files)
            for relative in relatives:
                if sizes[relative] > SMALL_BYTES:
                    self._send_big(run_dir / relative, Where(run_id, attempt, relative), transfer, refused)
        finally:
            self._pace.end(run_id)
        return {relative[:200]: why for relative, why in refused.items()}

    # --- small ones ---------------------------------------------------------------------------------------

    def _send_batches(self, batches: list[_Batch], transfer: Transfer, refused: dict[str, str]) -> None:
        left = [batch for batch in batches if not batch.sent]
        crew.work((functools.partial(self._send_batch, batch, transfer, refused) for batch in left), self._width)

    def _send_batch(self, batch: _Batch, transfer: Transfer, refused: dict[str, str]) -> int:
        self._pace.wait_turn()
        index, data = batch.read()
        size = sum(map(len, data))
        if batch.tried or size >= ASK_FROM_BYTES:  # it may be there, and is not worth sending to find out
            have = ask_batch(self._client, batch.run_id, batch.attempt, index)
            index = [entry for entry, there in zip(index, have, strict=True) if not there]
            data = [piece for piece, there in zip(data, have, strict=True) if not there]
        batch.tried = True
        if index:
            self._pace.on_bytes(sum(map(len, data)))
            refused.update(send_batch(self._client, batch.run_id, batch.attempt, index, data))
        batch.sent = True
        transfer.add(size, files=len(batch.relatives))
        return sum(map(len, data))

    # --- big ones -----------------------------------------------------------------------------------------

    def _send_big(self, path: Path, where: Where, transfer: Transfer, refused: dict[str, str]) -> None:
        upload = _BigUpload(self._client, self._pace, self._width, path, where, self._plan, transfer)
        try:
            _with_tries(upload.go_on, lambda: upload.arrived_bytes)
        except Rejected as error:  # a name that the laptop never takes: said, and not tried for ever
            refused[where.relative] = error.message
        self._plans.pop(path, None)
        transfer.add(0, files=1)

    def _plan(self, path: Path, part_most: int) -> _Plan:
        found = path.stat()
        mark = (found.st_mtime_ns, found.st_size)
        known = self._plans.get(path)
        if known is None or known.mark != mark or known.part_size > part_most:
            wanted = next((size for size in PART_SIZES if size * PARTS_WANTED >= found.st_size), PART_SIZES[-1])
            part_size = min(wanted, part_most)
            known = self._plans[path] = _Plan(mark, part_size, _digests(path, found.st_size, part_size))
        return known


class _BigUpload:
    """One file in parts. `arrived_bytes` grows as long as there is progress."""

    def __init__(
        self,
        client: BridgeClient,
        pace: UploadPace,
        width: crew.Width,
        path: Path,
        where: Where,
        plan: Callable[[Path, int], _Plan],
        transfer: Transfer,
    ) -> None:
        self._client = client
        self._pace = pace
        self._width = width
        self._path = path
        self._where = where
        self._plan = plan
        self._transfer = transfer
        self._part_most = names.PART_MAX_BYTES
        self.arrived_bytes = 0

    def go_on(self) -> None:
        """From where the laptop stands to the end. Raises TransferError when it is cut or not complete yet."""
        plan = self._plan(self._path, self._part_most)
        self._pace.wait_turn()
        state = self._open(plan)
        while not state.complete:
            before = state
            crew.work(self._jobs(plan, state.missing), self._width)
            state = self._open(plan)  # the laptop's word counts, whatever became of the answers
            if state.missing == before.missing:
                raise TransferError(f"the parts of {self._path.name} don't arrive")

    def _open(self, plan: _Plan) -> PartsState:
        generation = plan.generation(self._client, self._where.attempt)
        state = open_parts(self._client, self._where, generation, plan.size, plan.part_size, plan.digests)
        most, room = state.limits.max_append, state.limits.max_size
        if most is not None and 0 < most < plan.part_size:
            self._part_most = most
            raise TransferError(f"the laptop takes parts of at most {most} bytes")
        if room is not None and room < plan.size and not state.complete:
            raise TransferError("the laptop's disk has no room for it", hint="make room; it is sent again")
        self._arrived(plan.size - sum(plan.size_of(number) for number in state.missing))
        return state

    def _jobs(self, plan: _Plan, missing: list[int]) -> Iterator[crew.Job]:
        for number in missing:
            start = number * plan.part_size
            part = FilePart(self._path, start, plan.size_of(number), plan.digests[number], self._pace.on_bytes)
            yield functools.partial(self._send, plan, part, last=number == missing[-1])

    def _send(self, plan: _Plan, part: FilePart, *, last: bool) -> int:
        self._pace.wait_turn()
        generation = plan.generation(self._client, self._where.attempt)
        try:
            send_part(self._client, self._where, generation, part, of=len(plan.digests), last=last)
        except OffsetConflict:
            pass  # it is there: an answer was lost
        except NotFoundError:
            raise TransferError("the laptop does not know the upload any more; it is opened again") from None
        self._arrived(self.arrived_bytes + part.size)
        return part.size

    def _arrived(self, total: int) -> None:
        self._transfer.add(max(0, total - self.arrived_bytes))
        self.arrived_bytes = max(total, self.arrived_bytes)


@dataclass
class _Batch:
    """Some small files of one run; read when its turn comes."""

    run_dir: Path
    run_id: str
    attempt: int
    relatives: list[str]
    tried: bool = False
    sent: bool = False

    def read(self) -> tuple[list[tuple[str, int, str]], list[bytes]]:
        """(path, size, SHA-256) of each, and the bytes: what is sent is what was hashed, whoever writes meanwhile."""
        data = [_read(f"{self.run_dir}/{relative}") for relative in self.relatives]
        hashed = zip(self.relatives, data, strict=True)
        return [(relative, len(piece), hashlib.sha256(piece).hexdigest()) for relative, piece in hashed], data


def _read(path: str) -> bytes:
    """What open() and its buffers do, in a third of the time: there may be ten thousand of these."""
    fd = os.open(path, os.O_RDONLY)
    try:
        data = b""
        while piece := os.read(fd, 2**16 if not data else SMALL_BYTES):
            data += piece
        return data
    finally:
        os.close(fd)


def _batches(relatives: list[str], sizes: dict[str, int]) -> Iterator[list[str]]:
    """In order, at most so many files and bytes in each."""
    listed: list[str] = []
    total = 0
    for relative in relatives:
        if listed and (len(listed) == BATCH_FILES or total + sizes[relative] > BATCH_BYTES):
            yield listed
            listed, total = [], 0
        listed.append(relative)
        total += sizes[relative]
    if listed:
        yield listed


def _with_tries(action: Callable[[], None], progress: Callable[[], int]) -> None:
    """Until it is done. Raises the last TransferError after several in a row without progress between them."""
    backoff, tries, reached = Backoff(), 0, progress()
    while True:
        try:
            action()
            return
        except Rejected:
            raise
        except TransferError:
            tries = 0 if progress() > reached else tries + 1
            reached = max(reached, progress())
            if tries >= TRIES:
                raise
            time.sleep(backoff.next_s())


def _digests(path: Path, size: int, part_size: int) -> list[bytes]:
    found = []
    buffer = memoryview(bytearray(_READ_BYTES))
    with path.open("rb", buffering=0) as handle:
        for start in range(0, size, part_size):
            digest, left = hashlib.sha256(), min(part_size, size - start)
            while left and (count := handle.readinto(buffer[: min(left, _READ_BYTES)])):
                digest.update(buffer[:count])
                left -= count
            found.append(digest.digest())
    return found
