"""A big body straight from its socket, or to it, on a thread: received in small pieces, hashed and handed on there.

aiohttp parses a body in small pieces on the event loop, which costs more CPU than receiving it. So from a certain size
on the bridge takes the rest of the body off the socket itself. aiohttp's parser does not learn of those bytes, so the
connection can't be used for another request: the answer closes it. A file is sent past asyncio as well, which comes
back to the loop each time that the socket's buffer is full; nothing is hidden from aiohttp then and it goes on after.
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
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from aiohttp import web

FROM_BYTES: Final = 1 << 20
_PIECE_BYTES: Final = 1 << 19  # still in the core's own cache when it is hashed and when it is written
_SEND_BYTES: Final = 8 << 20  # at most with one system call: a reader as fast as us would keep us in it
_TAKEN: Final = web.RequestKey("taken", bool)
BODIES_MAX: Final = 8  # at once; more go through aiohttp, so that no peer can hold up anything but itself
MIN_BYTES_PER_S: Final = 8 * 1024  # averaged over the body, after the first stall time
_pool = ThreadPoolExecutor(BODIES_MAX, thread_name_prefix="body")
_LOOK_S: Final = 0.25  # how often a waiting thread looks whether it was called off

Piece = bytes | memoryview
Take = Callable[[Piece], object]  # a piece is lent: its memory is used for the next one once the call has returned


class Stalled(Exception):
    """Nothing moved for the whole time-out, or too little over the whole body."""


def may_take(request: web.BaseRequest) -> bool:
    """Whether the body is big, of announced length, and on a plain socket of a POSIX system."""
    return request.content_length is not None and _may(request, request.content_length)


def may_send(request: web.BaseRequest, count: int) -> bool:
    """Whether `count` bytes of a file are many, and the head of the answer has left for a plain socket."""
    return _may(request, count) and request.transport is not None and request.transport.get_write_buffer_size() == 0


def was_taken(request: web.BaseRequest) -> bool:
    """Whether the answer to this request has to close the connection."""
    return bool(request.get(_TAKEN, False))


async def take_body(request: web.BaseRequest, digest: hashlib._Hash, take: Take, *, stall_s: float) -> None:
    """Hand the whole body to `take`, piece by piece on one thread, and hash it there.

    Raises ConnectionError when it is cut, Stalled, and what `take` raised, but that only once the rest has been read
    away: a sender that sends all before it listens sees the answer. No call of `take` is under way any more then.
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
    line = _Line(transport, select.POLLIN, stall_s, left)

    def work() -> None:
        pieces = _pieces(head, line, length)
        try:
            for piece in pieces:
                digest.update(piece)
                take(piece)
        finally:  # if `take` raised
            for _ in pieces:
                pass

    await _on_thread(work, line)


async def send_file(request: web.BaseRequest, fd: int, start: int, count: int, *, stall_s: float) -> None:
    """Send a part of the open file on a thread. Raises Stalled and OSError: the client or the file has gone."""
    assert request.transport is not None
    line = _Line(request.transport, select.POLLOUT, stall_s, count)

    def work() -> None:
        at, end = start, start + count
        while at < end:
            try:
                sent = os.sendfile(line.fileno(), fd, at, min(end - at, _SEND_BYTES))
            except BlockingIOError:
                line.wait()
                continue
            if sent == 0:
                raise OSError("the file got shorter while it was sent")
            line.moved()
            at += sent

    await _on_thread(work, line)


class _Line:
    """One connection's socket on a thread of ours. It does not block (asyncio has set it so), hence the poll."""

    def __init__(self, transport: asyncio.Transport, events: int, stall_s: float, size_bytes: int) -> None:
        self._socket = socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno()))
        self._poll = select.poll()
        self._poll.register(self._socket, events)
        self._stall_s = stall_s
        self._deadline = time.monotonic() + stall_s + size_bytes / MIN_BYTES_PER_S
        self._waited_s = 0.0
        self.called_off = threading.Event()

    def __enter__(self) -> None:
        self._socket.__enter__()

    def __exit__(self, *error: object) -> None:
        self._socket.__exit__(*error)

    def fileno(self) -> int:
        return self._socket.fileno()

    def wake_at(self, wanted_bytes: int) -> None:
        """Sleep through the many small arrivals; a wait that runs out looks what there is all the same."""
        with contextlib.suppress(OSError):
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, wanted_bytes)

    def receive_into(self, view: memoryview) -> None:
        """Exactly as many bytes as `view` has. Raises ConnectionError and Stalled."""
        filled = 0
        while filled < len(view):
            try:
                count = self._socket.recv_into(view[filled:])
            except BlockingIOError:
                self.wait()
                continue
            if count == 0:
                raise ConnectionResetError("the body was cut")
            self.moved()
            filled += count

    def moved(self) -> None:
        """Some bytes went through. Raises like `wait`."""
        self._waited_s = 0.0
        self._check()

    def wait(self) -> None:
        """Until it goes on, or for a moment. Raises Stalled, and ConnectionError when it was called off."""
        self._check()
        if not self._poll.poll(_LOOK_S * 1000):
            self._waited_s += _LOOK_S

    def _check(self) -> None:
        if self.called_off.is_set():
            raise ConnectionAbortedError("called off")
        if self._waited_s >= self._stall_s or time.monotonic() > self._deadline:
            raise Stalled


def _pieces(head: list[bytes], line: _Line, length: int) -> Iterator[Piece]:
    """The body: what the parser had read already, then the same buffer again and again."""
    yield from head
    done = sum(map(len, head))
    buffer, size = memoryview(bytearray(_PIECE_BYTES)), 0
    while done < length:
        wanted = min(length - done, _PIECE_BYTES - done % _PIECE_BYTES)  # so that a file is written in whole pages
        if wanted != size:
            line.wake_at(wanted)
            size = wanted
        line.receive_into(buffer[:wanted])
        yield buffer[:wanted]
        done += wanted


def _may(request: web.BaseRequest, size_bytes: int) -> bool:
    transport = request.transport
    return (
        os.name == "posix"
        and len(_under_way) < BODIES_MAX
        and size_bytes >= FROM_BYTES
        and transport is not None
        and not transport.is_closing()
        and transport.get_extra_info("socket") is not None
        and transport.get_extra_info("sslcontext") is None
    )


async def _on_thread(work: Callable[[], None], line: _Line) -> None:
    """Run `work` to its end and close the line; a cancelled caller calls it off and waits for that."""

    def run() -> None:
        try:
            with line:
                work()
        finally:
            _under_way.discard(line)

    _under_way.add(line)
    working = asyncio.get_running_loop().run_in_executor(_pool, run)
    try:
        await asyncio.shield(working)
    except asyncio.CancelledError:
        line.called_off.set()
        await asyncio.wait([working])
        raise


_under_way: set[_Line] = set()
