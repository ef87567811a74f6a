"""TensorBoard's event file, written by hand: a run's scalars and texts, in one file that can be cut back.

Records are framed as TFRecord (tensorflow/core/lib/io/record_writer.h: length, masked CRC-32C of it, data, masked
CRC-32C of the data) and hold the protocol buffers of event.proto and summary.proto, of which this needs five messages.
A file that is cut at the length that was noted after the last message holds exactly what was told up to then: no writer
with a queue and a file of its own for each process offers that.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Final

_VERSION: Final = "brain.Event:2"
_MASK_DELTA: Final = 0xA282EAD8
_POLYNOMIAL: Final = 0x82F63B78  # Castagnoli, reflected
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types of protocol buffers
_DT_STRING: Final = 7
_FLOAT_MAX: Final = 3.4028234663852886e38  # simple_value has 32 bits


def scalar(tag: str, value: float, step: int, at: float) -> bytes:
    """A record with one number."""
    shown = max(-_FLOAT_MAX, min(_FLOAT_MAX, value))
    return _record(_event(at, step, _text(1, tag) + _key(2, _FIXED32) + struct.pack("<f", shown)))


def text(tag: str, markdown: str, at: float) -> bytes:
    """A record with a text for the tab of that name."""
    plugin = _message(1, _text(1, "text"))
    shape = _message(2, _key(1, _VARINT) + _varint(1))
    tensor = _key(1, _VARINT) + _varint(_DT_STRING) + _message(2, shape) + _text(8, markdown)
    return _record(_event(at, 0, _text(1, tag) + _message(9, plugin) + _message(8, tensor)))


class EventFile:
    """One run's file. `size` is how much of it counts."""

    def __init__(self, path: Path, size: int) -> None:
        """Open it, cut back to `size` bytes; 0: anew. Raises OSError."""
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as stream:
            stream.truncate(size)
            self.size = size

    def append(self, records: Iterable[bytes], at: float) -> None:
        """On the disk when this returns; `at` is when the file begins. Raises OSError, and `size` is as before."""
        first = [] if self.size else [_record(_number(1, at) + _text(3, _VERSION))]
        data = b"".join([*first, *records])
        with self.path.open("ab") as stream:
            stream.truncate(self.size)  # half a message of before
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        self.size += len(data)


def crc32c(data: bytes) -> int:
    """CRC-32C, as RFC 3720 has it."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def _table() -> list[int]:
    table = []
    for number in range(256):
        for _ in range(8):
            number = (number >> 1) ^ (_POLYNOMIAL if number & 1 else 0)
        table.append(number)
    return table


_TABLE: Final = _table()


def _masked(data: bytes) -> bytes:
    crc = crc32c(data)
    return struct.pack("<I", (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & 0xFFFFFFFF)


def _record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + _masked(length) + data + _masked(data)


def _event(at: float, step: int, value: bytes) -> bytes:
    """An Event (wall_time, step, summary) with one Summary.Value."""
    return _number(1, at) + _key(2, _VARINT) + _varint(step) + _message(5, _message(1, value))


def _key(field: int, wire_type: int) -> bytes:
    return _varint(field << 3 | wire_type)


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def _number(field: int, value: float) -> bytes:
    return _key(field, _FIXED64) + struct.pack("<d", value)


def _message(field: int, data: bytes) -> bytes:
    return _key(field, _BYTES) + _varint(len(data)) + data


def _text(field: int, value: str) -> bytes:
    return _message(field, value.encode("utf-8", "replace"))
