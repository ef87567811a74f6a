"""A big body straight from its socket: 1 MiB at a time on a thread, hashed and handed on there.

aiohttp parses a body in small pieces on the event loop, which costs more CPU than receiving it. So from a certain size
on the bridge takes the rest of the body off the socket itself. aiohttp's parser does not learn of those bytes, so the
connection can't be used for another request: the answer closes it.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from aiohttp import web

FROM_BYTES: Final = 1 << 20
_CHUNK_BYTES: Final = 1 << 20
_TAKEN: Final = web.RequestKey("taken", bool)
_SPARE_MAX: Final = 32  # one part's worth
_spare: list[bytearray] = []
BODIES_MAX: Final = 8  # at once; more go through aiohttp, so that no sender can hold up anything but itself
MIN_BYTES_PER_S: Final = 8 * 1024  # averaged over the body, after the first stall time
_pool = ThreadPoolExecutor(BODIES_MAX, thread_name_prefix="body")
_under_way = 0
_LOOK_S: Final = 0.25  # how often a waiting thread looks whether it was called off


Take = Callable[[list[bytes | bytearray]], None]


class Stalled(Exception):
    """Nothing arrived for the whole time-out, or too little over the whole body."""


def may_take(request: web.BaseRequest) -> bool:
    """Whether the body is big, of announced length, and on a plain socket of a POSIX system."""
    transport = request.transport
    return (
        os.name == "posix"
        and _under_way < BODIES_MAX
        and request.content_length is not None
        and request.content_length >= FROM_BYTES
        and transport is not None
        and transport.get_extra_info("socket") is not None
        and transport.get_extra_info("sslcontext") is None
    )


def was_taken(request: web.BaseRequest) -> bool:
    """Whether the answer to this request has to close the connection."""
    return bool(request.get(_TAKEN, False))


async def take_body(request: web.BaseRequest, digest: hashlib._Hash, take: Take, *, stall_s: float) -> None:
    """Hand the whole body to `take`, piece by piece on one thread, and hash it there.

    Raises ConnectionError when it is cut and Stalled; no call of `take` is under way any more then.
    """
    transport, length = request.transport, request.content_length
    assert transport is not None and length is not None
    head = []
    while piece := request.content.read_nowait(-1):  # each may let the parser go on with what it held back
        head.append(piece)
    left = length - sum(map(len, head))
    if left:
        request[_TAKEN] = True
        request.content.feed_eof()  # this and each read may switch reading on again
        transport.pause_reading()  # no await since the last read: nothing can have arrived in between
    called_off = threading.Event()
    source = socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno()))

    def work(left: int) -> None:
        deadline = time.monotonic() + stall_s + left / MIN_BYTES_PER_S
        with source:
            for piece in head:
                digest.update(piece)
            take([*head])
            while left:
                chunk = _receive(source, min(left, _CHUNK_BYTES), stall_s, deadline, called_off)
                digest.update(chunk)
                take([chunk])
                left -= len(chunk)

    global _under_way
    _under_way += 1
    try:
        working = asyncio.get_running_loop().run_in_executor(_pool, work, left)
        try:
            await asyncio.shield(working)
        except asyncio.CancelledError:
            called_off.set()
            await asyncio.wait([working])
            raise
    finally:
        _under_way -= 1


def give_back(pieces: Sequence[bytes | bytearray]) -> None:
    """Let later bodies use these buffers: memory fresh from the system costs as much CPU as half of a transfer."""
    for piece in pieces:
        if isinstance(piece, bytearray) and len(piece) == _CHUNK_BYTES and len(_spare) < _SPARE_MAX:
            _spare.append(piece)


def _buffer(wanted_bytes: int) -> bytearray:
    if wanted_bytes == _CHUNK_BYTES:
        with contextlib.suppress(IndexError):
            return _spare.pop()
    return bytearray(wanted_bytes)


def _receive(
    source: socket.socket, wanted_bytes: int, stall_s: float, deadline: float, called_off: threading.Event
) -> bytearray:
    """Exactly `wanted_bytes`. The socket does not block (asyncio has set it so), hence the poll."""
    buffer = _buffer(wanted_bytes)
    view, filled, waited_s = memoryview(buffer), 0, 0.0
    poll = select.poll()
    poll.register(source, select.POLLIN)
    while filled < wanted_bytes:
        if called_off.is_set():
            raise ConnectionAbortedError("called off")
        if time.monotonic() > deadline:
            raise Stalled
        try:
            count = source.recv_into(view[filled:])
        except BlockingIOError:
            if poll.poll(_LOOK_S * 1000):
                continue
            waited_s += _LOOK_S
            if waited_s >= stall_s:
                raise Stalled from None
            continue
        if count == 0:
            raise ConnectionResetError("the body was cut")
        filled, waited_s = filled + count, 0.0
    return buffer
