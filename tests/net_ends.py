"""The programs of the laptop and of the relay in tests/net.

python tests/net_ends.py bridge ROOT HOST PORT URL STAGES    writes ROOT/said.json: key id, key, SHA-256 of the ship
python tests/net_ends.py relay HOST PORT TARGET_HOST TARGET_PORT
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from pathlib import Path

from bridge.project import ProjectView
from bridge.server import Bridge, BridgeSettings
from bridgehead.records import StageSpec, VmRules

_CHUNK_BYTES = 1 << 16


async def serve_bridge(root: Path, host: str, port: int, url: str, stages: dict[str, str]) -> None:
    specs = {name: StageSpec(name, command) for name, command in stages.items()}
    project = ProjectView("net", specs, ["*.py"], vm=VmRules(lost_after_s=600.0))
    bridge = Bridge(BridgeSettings(root, load_project=lambda: project, host=host, port=port, long_poll_max_s=5.0))
    await bridge.start()
    bridge.announce_host(url)
    key_id, key = bridge.keys.current()
    (root / "said.json").write_text(json.dumps({"key_id": key_id, "key": key.hex(), "boot": bridge.boot_sha256}))
    await asyncio.Event().wait()


async def serve_relay(host: str, port: int, target: tuple[str, int]) -> None:
    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends = [writer]
        with contextlib.suppress(OSError):
            there, to_there = await asyncio.open_connection(*target)
            ends.append(to_there)
            await asyncio.gather(_pump(reader, to_there), _pump(there, writer))
        for end in ends:
            end.transport.abort()

    server = await asyncio.start_server(carry, host, port)
    await server.serve_forever()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(_CHUNK_BYTES):
        writer.write(data)
        await writer.drain()
    raise ConnectionResetError  # one side has ended: so does the other


if __name__ == "__main__":
    kind, *rest = sys.argv[1:]
    if kind == "bridge":
        asyncio.run(serve_bridge(Path(rest[0]), rest[1], int(rest[2]), rest[3], json.loads(rest[4])))
    else:
        asyncio.run(serve_relay(rest[0], int(rest[1]), (rest[2], int(rest[3]))))
