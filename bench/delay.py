"""A line with a round trip: passes TCP connections on to a port of this machine, each byte half a round trip later."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import Iterator

_CHUNK_BYTES = 1 << 18
_AHEAD_BYTES = 1 << 24  # on their way in one direction; a line holds no more


@contextlib.contextmanager
def line(port: int, round_trip_s: float) -> Iterator[int]:
    """A port that leads to `port`, in a process of its own."""
    argv = [sys.executable, "-m", "bench.delay", str(port), str(round_trip_s / 2)]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline())
    finally:
        process.terminate()
        process.wait(10)


async def _serve(port: int, delay_s: float) -> None:
    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(delay_s)  # the first packet of a connection has to get there too
        there, back = await asyncio.open_connection("127.0.0.1", port, limit=_CHUNK_BYTES)
        await asyncio.sleep(delay_s)
        await asyncio.gather(_pass_on(reader, back, delay_s), _pass_on(there, writer, delay_s))

    server = await asyncio.start_server(connected, "127.0.0.1", 0, limit=_CHUNK_BYTES)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay_s: float) -> None:
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_AHEAD_BYTES // _CHUNK_BYTES)

    async def deliver() -> None:
        while True:
            due, piece = await queue.get()
            await asyncio.sleep(due - loop.time())
            if not piece:
                break
            writer.write(piece)
            await writer.drain()
        writer.close()

    delivering = asyncio.create_task(deliver())
    with contextlib.suppress(ConnectionError):
        while piece := await reader.read(_CHUNK_BYTES):
            await queue.put((loop.time() + delay_s, piece))
    await queue.put((loop.time() + delay_s, b""))
    with contextlib.suppress(ConnectionError):
        await delivering


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1]), float(sys.argv[2])))
