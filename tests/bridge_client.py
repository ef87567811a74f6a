"""A bridge on a loop of its own thread, and a small client that signs, for the tests of the wire."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import http.client
import json
import socket
import threading
from collections.abc import Coroutine, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from bridge.project import ProjectView
from bridge.server import Bridge, BridgeSettings
from bridgehead import names, signing
from bridgehead.records import StageSpec

T = TypeVar("T")
TIMEOUT_S = 100.0
VM = "vm-abc123"
STAGE = "pretrain"


@dataclass
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        return str(self.json["error"]["code"])


@dataclass
class LiveBridge:
    """A started bridge and its loop."""

    root: Path
    bridge: Bridge
    loop: asyncio.AbstractEventLoop

    @property
    def arrivals(self) -> Path:
        return self.root / names.IN_FOLDER

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(TIMEOUT_S)

    def knows(self, vm_id: str) -> None:
        """A VM of the bridge's own pairing has spoken: a lost VM's runs may go to it."""
        item = self.bridge.keys.get(self.bridge.keys.current()[0])
        assert item is not None
        self.bridge.ledger.bind_vm(vm_id, item.id, item.family, allow_sh=item.allow_sh)

    def client(self) -> Client:
        key_id, key = self.bridge.keys.current()
        return Client(self.bridge.port, key_id, key)

    def given_run(self, vm: str = VM) -> str:
        """Queue a run, let `vm` take it, and return its id."""
        taken = self.bridge.ledger.take([(1, f"run:{STAGE}")], project())
        self.bridge.ledger.deliver(vm, 0)
        return taken[0].run_id


@dataclass
class Client:
    port: int
    key_id: str
    key: bytes
    headers: dict[str, str] = field(default_factory=dict)  # with every request, unsigned

    def signed(
        self, method: str, target: str, body: bytes = b"", headers: Mapping[str, str] | None = None, **more: Any
    ) -> dict[str, str]:
        path, _, query = target.partition("?")
        headers = dict(headers or {})
        digest = hashlib.sha256(body).digest()
        return headers | signing.sign_request(
            self.key, self.key_id, method, path, query, headers, body_sha256=digest, **more
        )

    def get(self, target: str, **headers: str) -> Answer:
        return self.ask("GET", target, b"", {name.replace("_", "-"): value for name, value in headers.items()})

    def ask(self, method: str, target: str, body: bytes = b"", headers: Mapping[str, str] | None = None) -> Answer:
        return self.send(method, target, body, self.signed(method, target, body, headers))

    def send(self, method: str, target: str, body: bytes, headers: Mapping[str, str]) -> Answer:
        """As it is: the target is put on the wire byte for byte, the headers unsigned unless they hold a signature."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT_S)
        with contextlib.closing(connection):
            connection._validate_path = lambda url: None  # type: ignore[attr-defined]
            connection._encode_request = lambda line: line.encode("latin-1")  # type: ignore[attr-defined]
            named = "Host" in self.headers or "Host" in headers
            connection.putrequest(method, target, skip_host=named, skip_accept_encoding=True)
            if body or method in ("PUT", "POST", "PATCH"):
                headers = {"Content-Length": str(len(body)), **headers}
            for name, value in {**self.headers, **headers}.items():
                connection.putheader(name, value)
            connection.endheaders(body or None)
            answer = connection.getresponse()
            return Answer(answer.status, dict(answer.headers.items()), answer.read())

    def raw(self, method: str, target: str) -> bytes:
        """A signed request without a body as it goes on the wire, for a connection that the test holds."""
        lines = [f"{method} {target} HTTP/1.1", "Host: 127.0.0.1"]
        lines += [f"{name}: {value}" for name, value in self.signed(method, target).items()]
        return "\r\n".join([*lines, "", ""]).encode()

    def head_only(self, method: str, target: str, headers: Mapping[str, str]) -> Answer:
        """Send the head of a request whose body never comes, and wait for the answer."""
        with self.half_sent(method, target, headers, b"") as sock:
            answer = http.client.HTTPResponse(sock, method=method)
            answer.begin()
            return Answer(answer.status, dict(answer.headers.items()), answer.read())

    @contextlib.contextmanager
    def half_sent(self, method: str, target: str, headers: Mapping[str, str], part: bytes) -> Iterator[socket.socket]:
        """A connection on which the head and the beginning of a body have been sent."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=TIMEOUT_S) as sock:
            lines = [f"{method} {target} HTTP/1.1", "Host: 127.0.0.1"]
            lines += [f"{name}: {value}" for name, value in headers.items()]
            sock.sendall("\r\n".join([*lines, "", ""]).encode() + part)
            yield sock


class Uploader:
    """The upload requests for one file of one run."""

    def __init__(self, client: Client, run_id: str, path: str, *, vm: str = VM, attempt: int = 1) -> None:
        self.client = client
        self.target = f"/in/{run_id}/{path}?vm={vm}&attempt={attempt}"

    def put(self, body: bytes, **headers: str) -> Answer:
        return self.client.ask("PUT", self.target, body, headers)

    def open(self, generation: str, *, length: int | None = None, digest: bytes | None = None) -> Answer:
        headers = {names.HEADER_GENERATION: generation, names.HEADER_COMPLETE: "?0"}
        if length is not None:
            headers[names.HEADER_LENGTH] = str(length)
        if digest is not None:
            headers[names.HEADER_REPR_DIGEST] = signing.digest_header(digest)
        return self.client.ask("POST", self.target, b"", headers)

    def part_headers(self, generation: str, offset: int, *, last: bool = False) -> dict[str, str]:
        return {
            names.HEADER_GENERATION: generation,
            names.HEADER_OFFSET: str(offset),
            names.HEADER_COMPLETE: "?1" if last else "?0",
            "Content-Type": "application/partial-upload",
        }

    def patch(self, generation: str, offset: int, body: bytes, *, last: bool = False) -> Answer:
        return self.client.ask("PATCH", self.target, body, self.part_headers(generation, offset, last=last))

    def head(self, generation: str) -> Answer:
        return self.client.ask("HEAD", self.target, b"", {names.HEADER_GENERATION: generation})

    def delete(self) -> Answer:
        return self.client.ask("DELETE", self.target)


def project() -> ProjectView:
    return ProjectView("demo", {STAGE: StageSpec(STAGE, "python train.py")}, ["data/**"], [], ["numpy"])


@contextlib.contextmanager
def live_bridge(root: Path, **settings: Any) -> Iterator[LiveBridge]:
    """A bridge for the project folder `root` on a free port; stopped, and its thread ended, at the end."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="bridge under test", daemon=True)
    thread.start()
    bridge = Bridge(BridgeSettings(root, **{"load_project": project, "port": 0, **settings}))
    live = LiveBridge(root, bridge, loop)
    try:
        live.call(bridge.start())
        yield live
    finally:
        live.call(bridge.stop())
        live.call(loop.shutdown_default_executor())
        loop.call_soon_threadsafe(loop.stop)
        thread.join(TIMEOUT_S)
        loop.close()
