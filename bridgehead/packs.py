"""Many pieces of the payload in one answer: whole small files, and blocks of big ones.

Asked for is a list of parts, each a range of a content that is named by its SHA-256. The answer names nothing: it holds
the parts in the order asked for, each behind its length, so there is no member, path, link or count in it that could
be other than what was asked for. Its receiver knows every length and hash beforehand.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from bridgehead.errors import TransferError, UsageError, VerificationError

PARTS_MAX: Final = 2048
CONTENT_MAX_BYTES: Final = 4 * 2**20
PLAIN: Final = b"r"  # the first byte of an answer
DEFLATED: Final = b"z"
GONE: Final = 0xFFFFFFFF  # instead of a length: the laptop has this content no more
_LENGTH = struct.Struct(">I")
_SHA256 = re.compile(r"[0-9a-f]{64}\Z")
_SLACK_BYTES = 64 * 2**10


@dataclass(frozen=True)
class Part:
    sha256: str  # of the whole content, hex
    start: int
    length: int


def make_request(parts: Sequence[Part], *, deflate: bool) -> dict[str, Any]:
    return {"parts": [[part.sha256, part.start, part.length] for part in parts], "deflate": deflate}


def read_request(document: object) -> tuple[list[Part], bool]:
    """The parts, and whether the answer may be deflated. Raises UsageError for anything but a request within bounds."""
    listed = document.get("parts") if isinstance(document, dict) else None
    if not isinstance(document, dict) or not isinstance(listed, list) or not 0 < len(listed) <= PARTS_MAX:
        raise UsageError(f"a pack is asked for with 1 to {PARTS_MAX} parts")
    parts = [_read_part(item) for item in listed]
    if sum(part.length for part in parts) > CONTENT_MAX_BYTES:
        raise UsageError(f"a pack holds at most {CONTENT_MAX_BYTES} bytes")
    return parts, document.get("deflate") is True


def groups(parts: Sequence[Part]) -> Iterator[list[Part]]:
    """In order, each group as much as one request may ask for."""
    group: list[Part] = []
    total_bytes = 0
    for part in parts:
        if group and (len(group) == PARTS_MAX or total_bytes + part.length > CONTENT_MAX_BYTES):
            yield group
            group, total_bytes = [], 0
        group.append(part)
        total_bytes += part.length
    if group:
        yield group


def frame_head(length: int) -> bytes:
    return _LENGTH.pack(length)


def most_bytes(parts: Sequence[Part]) -> int:
    """No honest answer is longer."""
    content_bytes = sum(part.length for part in parts) + _LENGTH.size * len(parts)
    return content_bytes + content_bytes // 100 + _SLACK_BYTES


def unpack(body: bytes, parts: Sequence[Part]) -> Iterator[tuple[Part, memoryview | None]]:
    """Each part that is there whole, with its bytes (None: gone), in order; a body that was cut ends earlier.

    Raises VerificationError for a part of another length than asked for, and for whatever follows the last one;
    TransferError for what is no pack at all.
    """
    if not body:
        return
    data = memoryview(_inflated(body, parts))
    at = 0
    for part in parts:
        if len(data) - at < _LENGTH.size:
            return
        (length,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size
        if length == GONE:
            yield part, None
            continue
        if length != part.length:
            raise VerificationError("a pack holds a part of another length than was asked for")
        if len(data) - at < length:
            return
        yield part, data[at : at + length]
        at += length
    if at != len(data):
        raise VerificationError("a pack holds more than was asked for")


def _inflated(body: bytes, parts: Sequence[Part]) -> bytes | memoryview:
    if body[:1] == PLAIN:
        return memoryview(body)[1:]
    if body[:1] != DEFLATED:
        raise TransferError("something other than the bridge answered: not a pack")
    most = sum(part.length for part in parts) + _LENGTH.size * len(parts)
    inflater = zlib.decompressobj()
    try:
        data = inflater.decompress(memoryview(body)[1:], most + 1)
    except zlib.error:
        raise VerificationError("a pack that can't be inflated") from None
    if len(data) > most or inflater.unused_data:
        raise VerificationError("a pack holds more than was asked for")
    return data


def _read_part(item: object) -> Part:
    if not isinstance(item, list) or len(item) != 3:
        raise UsageError("a part of a pack is [sha256, start, length]")
    sha256, start, length = item
    if not isinstance(sha256, str) or not _SHA256.match(sha256):
        raise UsageError("a part of a pack names its content by SHA-256")
    for number in (start, length):
        if type(number) is not int or not 0 <= number < 2**53:
            raise UsageError("a part of a pack has a start and a length")
    return Part(sha256, start, length)
