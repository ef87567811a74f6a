"""A line as a tunnel is: so many bytes a second for all connections together, and so long on the way. In a process of
its own, so that it costs neither end anything; `python -m bench.line TARGET_PORT MB_S DELAY_S` prints its port."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import Iterator

_CHUNK_BYTES = 1 << 15
_UNDER_WAY_MAX = 64  # pieces that a connection may have on the line


@contextlib.contextmanager
def line(target_port: int, mb_s: float, delay_s: float) -> Iterator[int]:
    """Yields the port that leads through the line to `target_port`; `mb_s` holds for each direction."""
    argv = [sys.executable, "-m", "bench.line", str(target_port), str(mb_s), str(delay_s)]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline())
    finally:
        process.kill()
        process.wait(10)


class _Line:
    def __init__(self, target_port: int, mb_s: float, delay_s: float) -> None:
        self._target, self._rate, self._delay_s = target_port, mb_s * 1e6, delay_s
        self._free_at = {"there": 0.0, "back": 0.0}  # when the line has sent what was put on it

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, to_there = await asyncio.open_connection("127.0.0.1", self._target)
        with contextlib.suppress(OSError, asyncio.CancelledError):
            await asyncio.gather(self._pump(reader, to_there, "there"), self._pump(there, writer, "back"))

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: str) -> None:
        under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_UNDER_WAY_MAX)
        sending = asyncio.create_task(self._send(under_way, writer))
        loop = asyncio.get_running_loop()
        data = b"x"
        while data:
            data = await reader.read(_CHUNK_BYTES)
            now = loop.time()
            self._free_at[way] = max(self._free_at[way], now) + len(data) / self._rate
            await asyncio.sleep(max(0.0, self._free_at[way] - now))
            await under_way.put((loop.time() + self._delay_s, data))
        await sending

    async def _send(self, under_way: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due, data = await under_way.get()
            await asyncio.sleep(max(0.0, due - loop.time()))
            if not data:
                writer.close()
                return
            writer.write(data)
            await writer.drain()


async def _main(target_port: int, mb_s: float, delay_s: float) -> None:
    server = await asyncio.start_server(_Line(target_port, mb_s, delay_s).serve, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_main(int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])))
