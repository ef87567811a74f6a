"""What a big file still lacks, from the laptop: long runs as ranges side by side, single blocks in packs."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable

import requests

from bridgehead import packs
from bridgehead.errors import NotFoundError, TransferError, VerificationError
from bridgehead.packs import Part
from vm_daemons import payload_packs
from vm_daemons.client import Backoff, BridgeClient
from vm_daemons.payload_assembly import Assembly
from vm_daemons.payload_line import TRIES, Changed, read_bytes

SEGMENT_BYTES = 16 * 2**20  # of one request: several go side by side, and a slow line is not cut into many
RUN_BYTES = 2 * 2**20  # shorter runs of blocks come in packs: a request for each would cost a round trip
_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)\Z")
Job = Callable[[], None]


def jobs(assembly: Assembly, client: BridgeClient) -> list[Job]:
    """Who has run all of these, in any order, has fetched what was missing. See `Range.fetch` for what they raise."""
    parts: list[Part] = []
    found: list[Job] = []
    alone = threading.Lock()
    for first, last in assembly.missing_runs():
        start, end = assembly.spans[first][0], sum(assembly.spans[last])
        if end - start <= RUN_BYTES:
            parts += [Part(assembly.sha256, *span) for span in assembly.spans[first : last + 1]]
            continue
        for at in range(start, end, SEGMENT_BYTES):
            found.append(Range(assembly, client, at, min(at + SEGMENT_BYTES, end), alone).fetch)
    return found + [_pack(assembly, client, group) for group in packs.groups(parts)]


def _pack(assembly: Assembly, client: BridgeClient, parts: list[Part]) -> Job:
    def take(part: Part, data: memoryview) -> None:
        assembly.write(part.start, data)
        assembly.arrived(part.start, part.start + part.length)

    return lambda: payload_packs.fetch(client, parts, take, assembly.line)


class Range:
    """Bytes from `start`, a block's begin, up to `end` of the file. `alone` is shared by all ranges of one file."""

    def __init__(self, assembly: Assembly, client: BridgeClient, start: int, end: int, alone: threading.Lock) -> None:
        self._assembly, self._client, self._alone = assembly, client, alone
        self._start, self._at, self._end = start, start, end
        self._tries = 0  # without a byte

    def fetch(self) -> None:
        """Go on where it was cut, until it is there.

        Raises Changed when the laptop has another version, VerificationError for more bytes than were asked for, and
        TransferError after six tries without a byte.
        """
        backoff = Backoff()
        while self._at < self._end and not self._assembly.has(self._start, self._end):
            before = self._at
            self._assembly.line.check()
            try:
                self._ask()
            except Changed:
                raise
            except TransferError:
                self._tries = 0 if self._at > before else self._tries + 1
                if self._tries >= TRIES:
                    raise
                if not self._tries:
                    backoff.reset()
                self._assembly.line.ended.wait(backoff.next_s())

    def _ask(self) -> None:
        try:
            answer = self._client.content(self._assembly.sha256, self._at, self._end)
        except NotFoundError:
            raise Changed(self._assembly.sha256) from None
        with answer:
            if answer.headers.get("ETag", "").removeprefix("W/") != f'"{self._assembly.sha256}"':
                raise Changed(self._assembly.sha256)
            if answer.status_code == 206:
                self._check_position(answer)
                self._read(answer, self._at, self._end, ours=True)
            else:
                self._read_whole(answer)
        if self._at < self._end and not self._assembly.has(self._start, self._end):
            raise TransferError("the download of a payload file ended early")

    def _check_position(self, answer: requests.Response) -> None:
        told = _CONTENT_RANGE.match(answer.headers.get("Content-Range", ""))
        if told is None or tuple(map(int, told.groups())) != (self._at, self._end - 1, self._assembly.size):
            raise TransferError("the bridge answered another range than asked for")

    def _read_whole(self, answer: requests.Response) -> None:
        """Something on the way knows no ranges: one connection takes the file from its start, for all of us."""
        with self._alone:
            if not self._assembly.has(0, self._assembly.size):
                self._read(answer, 0, self._assembly.size, ours=False)

    def _read(self, answer: requests.Response, at: int, end: int, *, ours: bool) -> None:
        """Write what comes from `at` on. What a cut leaves of a block is gone on with when it is `ours`."""
        assembly = self._assembly
        try:
            for piece in answer.iter_content(read_bytes(self._tries)):
                if at + len(piece) > end:
                    raise VerificationError("the laptop sends more of a payload file than was asked for")
                assembly.write(at, piece)
                block = at - at % assembly.step
                at += len(piece)
                if ours:
                    self._at = at
                assembly.arrived(block, at)
                assembly.line.took(len(piece))
        except requests.RequestException as error:
            raise TransferError(f"the download of a payload file was cut ({type(error).__name__})") from None
