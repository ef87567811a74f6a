"""Make-believe VMs in one process: each polls, beats, pushes a log, sends artefacts slowly and fetches the payload.

stdin: one JSON object with `port, key_id, key, runs, vms, seconds, log_mib_s, slow`; stdout at the end: one with
`errors, answers_s, logs, requests, in_flight_max`. The log's bytes are a function of VM and offset; their hash is taken
here as they are sent, and compared with the file on the laptop by who started this.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import random
import sys
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from bridgehead import names, signing
from bridgehead.queue_lines import Verb, parse_line
from bridgehead.records import AckRecord, Command, Heartbeat

_POLL_S = 25
_LOG_EVERY_S = 0.5
_ARTIFACT_BYTES = 4 << 20
_PART_BYTES = 2 << 20
_SLOW_BYTES_S = 128 << 10  # what one upload gets of a tunnel
_PIECE_BYTES = 16 << 10
_BEAT_S = 5.0
_ERRORS_MAX = 20


@dataclass
class Told:
    """What is reported at the end."""

    errors: list[str] = field(default_factory=list)
    answers_s: list[float] = field(default_factory=list)  # queue line written -> its VM has it
    logs: dict[str, dict[str, Any]] = field(default_factory=dict)  # run -> size, sha256
    requests: int = 0
    in_flight: int = 0
    in_flight_max: int = 0


class Line:
    """Signed requests of one process."""

    def __init__(self, session: aiohttp.ClientSession, given: Mapping[str, Any], told: Told) -> None:
        self._session, self._given, self._told = session, given, told
        self._key = bytes.fromhex(given["key"])

    async def ask(
        self,
        method: str,
        path: str,
        query: str = "",
        body: bytes = b"",
        *,
        headers: Mapping[str, str] | None = None,
        slowly: bool = False,
    ) -> tuple[Mapping[str, str], bytes]:
        """Headers and body of the answer; RuntimeError unless it is 2xx."""
        sent = dict(headers or {})
        digest = hashlib.sha256(body).digest()
        sent |= signing.sign_request(
            self._key, self._given["key_id"], method, path, query, sent, body_sha256=digest, nonce=os.urandom(12).hex()
        )
        url = f"http://127.0.0.1:{self._given['port']}{path}" + (f"?{query}" if query else "")
        data: Any = body or None
        if slowly:
            sent["Content-Length"], data = str(len(body)), _trickle(body)
        told = self._told
        told.requests += 1
        told.in_flight += 1
        told.in_flight_max = max(told.in_flight, told.in_flight_max)
        try:
            async with self._session.request(method, url, data=data, headers=sent) as answer:
                text = await answer.read()
                if not 200 <= answer.status < 300:
                    raise RuntimeError(f"{method} {path}: {answer.status} {text[:120]!r}")
                return answer.headers, text
        finally:
            told.in_flight -= 1


async def _trickle(body: bytes) -> AsyncIterator[bytes]:
    started = time.monotonic()
    for at in range(0, len(body), _PIECE_BYTES):
        await asyncio.sleep(max(0.0, started + at / _SLOW_BYTES_S - time.monotonic()))
        yield body[at : at + _PIECE_BYTES]


class Vm:
    """One VM with one run until `until` (monotonic)."""

    def __init__(self, line: Line, told: Told, vm: str, run_id: str, until: float, given: Mapping[str, Any]) -> None:
        self._line, self._told, self._vm, self._run = line, told, vm, run_id
        self._until, self._given, self._key = until, given, bytes.fromhex(given["key"])
        self._in = f"vm={vm}&attempt=1"
        self._block = hashlib.sha256(vm.encode()).digest() * 2048  # 64 KiB

    async def live(self) -> None:
        jobs = [self._poll(), self._beat(), self._push_log()]
        jobs += [self._send_slowly(number) for number in range(self._given["slow"])]
        await asyncio.gather(*(self._told_of(job) for job in jobs))

    async def _told_of(self, job: Any) -> None:
        try:
            await job
        except (RuntimeError, aiohttp.ClientError, TimeoutError, OSError) as error:
            if len(self._told.errors) < _ERRORS_MAX:
                self._told.errors.append(f"{self._vm}: {type(error).__name__}: {error}"[:300])

    async def _out_of_step(self, every_s: float) -> None:
        """VMs do not do the same thing at the same moment, but for a time after they all were started at once."""
        await asyncio.sleep(random.uniform(0.0, min(every_s, self._left_s() / 4)))

    def _left_s(self) -> float:
        return self._until - time.monotonic()

    async def _poll(self) -> None:
        after, wait_s = 0, 1 + random.randrange(_POLL_S)
        while self._left_s() > 0:
            query = f"vm={self._vm}&after={after}&wait={wait_s}"
            wait_s = min(_POLL_S, 1 + int(self._left_s()))
            _, text = await self._line.ask("GET", names.QUEUE_PATH, query)
            now, found = time.time(), json.loads(text)
            lines: list[str] = found.get("lines", [])
            opened = [signing.open_document(self._key, "command", each) for each in found.get("commands", [])]
            commands = [Command.from_json(body) for body in opened]
            stamps = [command.argument for command in commands if command.verb == Verb.SH]
            stamps += [parsed.argument for line in lines if (parsed := parse_line(line)) is not None]
            self._told.answers_s += [now - float(stamp.split()[-1]) for stamp in stamps]
            after = max([after + len(lines), *(command.delivery for command in commands)])
            for command in commands:
                await self._answer(command)

    async def _answer(self, command: Command) -> None:
        records = [AckRecord(self._vm, names.Ack.ACCEPTED, command.attempt)]
        if command.verb == Verb.SH:
            done = str(names.RunState.DONE)
            records.append(AckRecord(self._vm, names.Ack.FINISHED, command.attempt, exit_code=0, state=done))
        for record in records:
            path = f"{names.QUEUE_PATH}/{command.id}/ack"
            await self._line.ask("POST", path, "", json.dumps(record.to_json()).encode())

    async def _beat(self) -> None:
        await self._out_of_step(_BEAT_S)
        while self._left_s() > 0:
            beat = Heartbeat(self._vm, "load", time.time())
            path = f"{names.VMS_PREFIX}{self._vm}/heartbeat"
            await self._line.ask("POST", path, "", json.dumps(beat.to_json()).encode())
            await asyncio.sleep(max(0.0, min(_BEAT_S, self._left_s())))

    async def _push_log(self) -> None:
        path, digest, offset = f"{names.IN_PREFIX}{self._run}/{names.LOG}", hashlib.sha256(), 0
        await self._out_of_step(_LOG_EVERY_S)
        start, generation = time.monotonic(), {names.HEADER_GENERATION: f"{self._vm}-1-1"}
        await self._line.ask("POST", path, self._in, headers={**generation, names.HEADER_COMPLETE: "?0"})
        while self._left_s() > 0:
            due = int((time.monotonic() - start) * self._given["log_mib_s"] * 2**20) - offset
            data = self._log_bytes(offset, min(due, 4 << 20))
            if data:
                headers = {**generation, names.HEADER_OFFSET: str(offset), names.HEADER_COMPLETE: "?0"}
                headers["Content-Type"] = names.PARTIAL_UPLOAD
                answer, _ = await self._line.ask("PATCH", path, self._in, data, headers=headers)
                digest.update(data)
                offset += len(data)
                if answer[names.HEADER_OFFSET] != str(offset):
                    raise RuntimeError(f"the log of {self._vm} stands at {answer[names.HEADER_OFFSET]}, not {offset}")
                self._told.logs[self._run] = {"size": offset, "sha256": digest.hexdigest()}
            await asyncio.sleep(_LOG_EVERY_S)

    def _log_bytes(self, offset: int, size: int) -> bytes:
        block = offset.to_bytes(8, "big") + self._block
        return (block * (size // len(block) + 1))[:size] if size > 0 else b""

    async def _send_slowly(self, number: int) -> None:
        path = f"{names.IN_PREFIX}{self._run}/{names.ARTIFACTS}/file-{number}.bin"
        payload = f"{names.SERVE_PREFIX}{names.VM_PAYLOAD}/payload/model.bin"
        turn = 0
        await self._out_of_step(_PART_BYTES / _SLOW_BYTES_S)
        while self._left_s() > 0:
            turn += 1
            body = turn.to_bytes(8, "big") + os.urandom(_ARTIFACT_BYTES - 8)
            whole = hashlib.sha256(body).digest()
            generation = {names.HEADER_GENERATION: f"{self._vm}-1-{whole.hex()[:16]}"}
            headers = {names.HEADER_LENGTH: str(len(body)), names.HEADER_REPR_DIGEST: signing.digest_header(whole)}
            await self._line.ask("POST", path, self._in, headers={**generation, **headers, names.HEADER_COMPLETE: "?0"})
            for offset in range(0, len(body), _PART_BYTES):
                if self._left_s() <= 0:
                    return
                last = offset + _PART_BYTES >= len(body)
                headers = {names.HEADER_OFFSET: str(offset), names.HEADER_COMPLETE: "?1" if last else "?0"}
                headers["Content-Type"] = names.PARTIAL_UPLOAD
                part = body[offset : offset + _PART_BYTES]
                await self._line.ask("PATCH", path, self._in, part, headers={**generation, **headers}, slowly=True)
            await self._line.ask("GET", payload)


async def _main(given: Mapping[str, Any]) -> Told:
    told = Told()
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=120)) as session:
        line = Line(session, given, told)
        until = time.monotonic() + given["seconds"]
        pairs = zip(given["vms"], given["runs"], strict=True)
        await asyncio.gather(*(Vm(line, told, vm, run_id, until, given).live() for vm, run_id in pairs))
    return told


if __name__ == "__main__":
    print(json.dumps(vars(asyncio.run(_main(json.loads(sys.stdin.readline()))))))
