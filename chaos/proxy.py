"""The tunnel that the campaign can break: TCP from where the VM calls to where the bridge, or its relay, listens.

It also sees when a VM answers the queue, and can hold such a request, or the laptop's word on it, for a fault.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import random
import threading
from collections.abc import Callable, Coroutine
from enum import StrEnum
from typing import Any

_CHUNK_BYTES = 1 << 16
_ACK = b"/ack HTTP/1.1"
AWAY = "127.0.0.2"  # the machine itself, under another name than that of the ports behind the proxy
_HOLD_S = 3.0  # how long a held request waits for the fault at most


class Mode(StrEnum):
    OPEN = "open"
    CUT = "cut"  # nothing gets through, and what was under way is broken off
    SLOW = "slow"  # each piece waits
    FLAP = "flap"  # broken off again and again


class Proxy:
    """In a thread of its own. `on_ack(n)` is called for the n-th answer that a VM begins to send, and may take time."""

    def __init__(self) -> None:
        self._mode = Mode.OPEN
        self._writers: set[asyncio.StreamWriter] = set()
        self._servers: list[asyncio.Server] = []
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)
        self.acks = 0
        self.hold_ack: Callable[[int, str], threading.Event | None] = lambda _number, _side: None

    def start(self) -> None:
        self._thread.start()
        self._ready.wait(10)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=10)

    def stand_before(self, port: int) -> None:
        """Lead AWAY:port to 127.0.0.1:port, for good. From any thread; takes effect soon."""
        with contextlib.suppress(RuntimeError):  # it has ended
            self._loop.call_soon_threadsafe(lambda: self._loop.create_task(self._listen(port)))

    def set_mode(self, mode: Mode) -> None:
        """Takes effect at once, for what is under way too."""
        self._mode = mode
        if mode in (Mode.CUT, Mode.FLAP):
            self._loop.call_soon_threadsafe(self._break_all)

    # --- in the thread --------------------------------------------------------------------------

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        flapping = self._loop.create_task(self._flap())
        self._ready.set()
        self._loop.run_forever()
        for server in self._servers:
            server.close()
        flapping.cancel()
        self._break_all()
        left = asyncio.all_tasks(self._loop)
        for task in left:
            task.cancel()
        self._loop.run_until_complete(_gathered(left))
        self._loop.close()

    def _break_all(self) -> None:
        for writer in list(self._writers):
            writer.transport.abort()

    async def _flap(self) -> None:
        while True:
            await asyncio.sleep(random.uniform(0.1, 0.6))
            if self._mode is Mode.FLAP:
                self._break_all()

    async def _listen(self, port: int) -> None:
        with contextlib.suppress(OSError):  # it stands there already
            self._servers.append(await asyncio.start_server(functools.partial(self._serve, port), AWAY, port))

    async def _serve(self, target: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._mode is Mode.CUT:
            writer.transport.abort()
            return
        try:
            there_reader, there_writer = await asyncio.open_connection("127.0.0.1", target)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, there_writer}
        held: list[threading.Event] = []  # the answers that are to wait
        try:
            await asyncio.gather(
                self._pump(reader, there_writer, lambda data: self._look(data, held)),
                self._pump(there_reader, writer, lambda _data: self._answer(held)),
            )
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # cancelled by `_run` alone, at the end; else the streams' own callback calls it unhandled
        finally:
            self._writers -= {writer, there_writer}
            for side in (writer, there_writer):
                side.transport.abort()

    async def _pump(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        before: Callable[[bytes], Coroutine[Any, Any, None]],
    ) -> None:
        while data := await reader.read(_CHUNK_BYTES):
            await before(data)
            if self._mode is Mode.SLOW:
                await asyncio.sleep(0.15)
            writer.write(data)
            await writer.drain()
        raise ConnectionResetError  # one side has ended: so does the other

    async def _look(self, data: bytes, held: list[threading.Event]) -> None:
        if _ACK not in data:
            return
        self.acks += 1
        request = self.hold_ack(self.acks, "request")
        if request is not None:
            await _until(request)
        answer = self.hold_ack(self.acks, "answer")
        if answer is not None:
            held.append(answer)

    async def _answer(self, held: list[threading.Event]) -> None:
        while held:
            await _until(held.pop())


async def _until(event: threading.Event) -> None:
    """Wait for an event of another thread, and not for ever."""
    waited_s = 0.0
    while not event.is_set() and waited_s < _HOLD_S:
        await asyncio.sleep(0.01)
        waited_s += 0.01


async def _gathered(tasks: set[asyncio.Task[Any]]) -> None:
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.gather(*tasks, return_exceptions=True)
