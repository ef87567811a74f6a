"""What a VM sends below `/in/` for whole files: parts that are hashed already, and batches of small files."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING

import requests

from bridgehead import files, names, part_lists
from bridgehead.errors import TransferError, UsageError

if TYPE_CHECKING:
    from vm_daemons.client import BridgeClient

_LIMIT = re.compile(r"(?:^|[,;]\s*)([a-z-]+)=([0-9]{1,18})(?=\s*(?:[,;]|\Z))")


@dataclass(frozen=True)
class Where:
    """A file of a run in one of its attempts, as the laptop knows it."""

    run_id: str
    attempt: int
    relative: str


@dataclass(frozen=True)
class Limits:
    """What the laptop takes, from `Upload-Limit`; what it does not say is None. In bytes."""

    max_size: int | None = None
    max_append: int | None = None

    @classmethod
    def read(cls, header: str) -> Limits:
        told = {name: int(value) for name, value in _LIMIT.findall(header)}
        return cls(told.get("max-size"), told.get("max-append-size"))


@dataclass(frozen=True)
class PartsState:
    """Where an upload in parts stands on the laptop: the first of the parts that are still to come."""

    missing: list[int]
    complete: bool
    limits: Limits = Limits()


@dataclass(frozen=True)
class FilePart:
    """A request body that lies in a file and was hashed before; `on_bytes` hears of what leaves, and may hold it up."""

    path: Path
    start: int
    size: int
    sha256: bytes
    on_bytes: Callable[[int], object] = lambda count: None

    def open(self) -> _Slice:
        return _Slice(self)


class _Slice:
    """What requests wants of a body: a length, and pieces that end with an empty one."""

    def __init__(self, part: FilePart) -> None:
        self._part = part
        self._left = part.size
        self._file = FileIO(str(part.path))
        self._file.seek(part.start)

    def __len__(self) -> int:
        return self._part.size

    def read(self, size: int = -1) -> bytes:
        if not self._left:
            return b""
        piece = self._file.read(self._left if size < 0 else min(size, self._left)) or b""
        if not piece:
            raise OSError(f"{self._part.path.name} got shorter while it was sent")
        self._left -= len(piece)
        self._part.on_bytes(len(piece))
        if not self._left:
            self._file.close()
        return piece


def open_parts(
    client: BridgeClient, where: Where, generation: str, length: int, part_size: int, digests: Sequence[bytes]
) -> PartsState:
    """Announce the SHA-256 of each part; what the laptop has already, it puts into place by itself."""
    headers = {
        names.HEADER_COMPLETE: "?0",
        names.HEADER_GENERATION: generation,
        names.HEADER_LENGTH: str(length),
        names.HEADER_PART_SIZE: str(part_size),
    }
    answer = client.send_in(
        "POST", where.run_id, where.relative, where.attempt, headers=headers, body=b"".join(digests)
    )
    return _state(answer, len(digests))


def send_part(
    client: BridgeClient, where: Where, generation: str, part: FilePart, *, of: int, last: bool
) -> PartsState:
    """One of `of` parts to its place. Raises OffsetConflict when it is there already."""
    headers = {
        "Content-Type": names.PARTIAL_UPLOAD,
        names.HEADER_OFFSET: str(part.start),
        names.HEADER_COMPLETE: "?1" if last else "?0",
        names.HEADER_GENERATION: generation,
    }
    answer = client.send_in("PATCH", where.run_id, where.relative, where.attempt, headers=headers, body=part)
    return _state(answer, of)


def ask_batch(client: BridgeClient, run_id: str, attempt: int, index: list[tuple[str, int, str]]) -> list[bool]:
    """For each (path, size, sha256) whether the laptop has it; that is in its place then."""
    answer = _batch(client, run_id, attempt, files.canonical_json(index) + b"\n", ask=True)
    have = _listed(answer, "have", len(index))
    return [item is True for item in have]


def send_batch(
    client: BridgeClient, run_id: str, attempt: int, index: list[tuple[str, int, str]], data: list[bytes]
) -> dict[str, str]:
    """Send small files in one request; path → why, of those that the laptop refuses."""
    body = b"".join([files.canonical_json(index), b"\n", *data])
    told = _listed(_batch(client, run_id, attempt, body), "files", len(index))
    refused = {}
    for (path, _, _), error in zip(index, told, strict=True):
        if isinstance(error, dict):
            if error.get("code") != UsageError.code:
                raise TransferError(f"{path}: {str(error.get('message'))[:300]}")
            refused[path] = str(error.get("message"))[:300]
    return refused


def _batch(client: BridgeClient, run_id: str, attempt: int, body: bytes, *, ask: bool = False) -> requests.Response:
    query = {"ask": "1"} if ask else {}
    headers = {"Content-Type": names.BATCH_TYPE}
    return client.send_in("POST", run_id, "", attempt, headers=headers, body=body, query=query)


def _listed(answer: requests.Response, name: str, count: int) -> list[object]:
    try:
        found = answer.json()[name]
    except (ValueError, KeyError, TypeError):
        found = None
    if not isinstance(found, list) or len(found) != count:
        raise TransferError("something other than the bridge answered the batch")
    return found


def _state(answer: requests.Response, count: int) -> PartsState:
    """Only our bridge says what is missing: a proxy's own 2xx must not pass for it."""
    missing = answer.headers.get(names.HEADER_MISSING)
    if missing is None:
        raise TransferError(f"the bridge's answer holds no {names.HEADER_MISSING}")
    try:
        numbers = part_lists.read(missing, count)
    except UsageError as error:
        raise TransferError(error.message) from None
    complete = answer.headers.get(names.HEADER_COMPLETE) == "?1"
    if complete is bool(numbers):
        raise TransferError("the bridge's answer is neither complete nor names what is missing")
    return PartsState(numbers, complete, Limits.read(answer.headers.get(names.HEADER_LIMIT, "")))
