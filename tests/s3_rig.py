"""An S3 endpoint on loopback (moto), and a gate before it that spoils requests and answers on purpose."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import boto3
import requests
from moto.server import ThreadedMotoServer

from bridgehead.records import StoreSpec
from vm_daemons.storage.s3_store import S3Store

BUCKET = "checkpoints"
KEYS = {"access_key_id": "AKIDTEST", "secret_access_key": "hidden-secret", "session_token": "hidden-token"}
DEADLINE_S = 30.0
_HOP = {"connection", "transfer-encoding", "server", "date"}


@contextlib.contextmanager
def s3_endpoint() -> Iterator[str]:
    """A fresh endpoint with one empty bucket; yields its address."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"
    try:
        requests.post(f"{url}/moto-api/reset", timeout=DEADLINE_S)
        requests.put(f"{url}/{BUCKET}", timeout=DEADLINE_S).raise_for_status()
        yield url
    finally:
        server.stop()


def boto(url: str, service: str = "s3", access_key_id: str = "x", secret: str = "x") -> Any:
    """AWS's own client, for what ours has no call for."""
    return boto3.client(
        service,
        endpoint_url=url,
        region_name="us-east-1",
        aws_access_key_id=access_key_id,
        aws_secret_access_key=secret,
    )


def store_at(url: str, *, prefix: str = "", bucket: str = BUCKET, tries: int = 4) -> S3Store:
    return S3Store(StoreSpec("s3", bucket=bucket, prefix=prefix, endpoint=url), KEYS, tries=tries, first_pause_s=0.01)


@dataclass
class Exchange:
    """One request at the gate. A spoiler answers it, or changes it and lets it through with `forward`."""

    handler: http.server.BaseHTTPRequestHandler
    upstream: str
    method: str
    path: str  # with the query
    headers: dict[str, str]
    body: bytes

    def forward(self) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection(self.upstream, timeout=DEADLINE_S)
        try:
            connection.request(self.method, self.path, body=self.body, headers=self.headers)
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()
        finally:
            connection.close()

    def pass_on(self) -> None:
        status, headers, body = self.forward()
        self.reply(status, body, headers)

    def refuse(self, status: int, code: str, headers: dict[str, str] | None = None, more: str = "") -> None:
        body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>hidden-secret</Message>{more}</Error>"
        self.reply(status, b"" if self.method == "HEAD" or not code else body.encode(), headers or {})

    def reply(self, status: int, body: bytes, headers: dict[str, str], *, cut_after: int | None = None) -> None:
        """With `cut_after` the connection ends after that many bytes of the body."""
        self.handler.send_response_only(status)
        kept = {name: value for name, value in headers.items() if name.lower() not in _HOP}
        if self.method != "HEAD":
            kept = {name: value for name, value in kept.items() if name.lower() != "content-length"}
            kept["Content-Length"] = str(len(body))
        kept.update({name: value for name, value in headers.items() if name == "Date"})
        for name, value in kept.items():
            self.handler.send_header(name, value)
        self.handler.end_headers()
        if self.method != "HEAD":
            self.handler.wfile.write(body[:cut_after])
        if cut_after is not None:
            self.drop()

    def drop(self) -> None:
        self.handler.close_connection = True


Spoiler = Callable[[Exchange], None]


@dataclass
class Gate:
    """Stands between a store and the endpoint. `log` holds what came: method and path with its query."""

    url: str = ""
    log: list[tuple[str, str]] = field(default_factory=list)
    _plan: list[tuple[str, str, Spoiler, int]] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def spoil(self, method: str, part_of_path: str, spoiler: Spoiler, *, times: int = 1) -> None:
        """The next `times` requests of that method whose path or query has that part go to `spoiler`."""
        self._plan.append((method, part_of_path, spoiler, times))

    def stop_spoiling(self) -> None:
        with self._lock:
            self._plan.clear()

    def count(self, method: str, part_of_path: str = "") -> int:
        return sum(1 for seen, path in self.log if seen == method and part_of_path in path)

    def take(self, exchange: Exchange) -> Spoiler:
        with self._lock:
            self.log.append((exchange.method, exchange.path))
            for at, (method, part, spoiler, times) in enumerate(self._plan):
                if method == exchange.method and part in exchange.path:
                    self._plan[at : at + 1] = [(method, part, spoiler, times - 1)] if times > 1 else []
                    return spoiler
        return Exchange.pass_on


@contextlib.contextmanager
def gate_before(url: str) -> Iterator[Gate]:
    gate = Gate()
    upstream = urlsplit(url).netloc

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # head and body go out apart; else each answer waits 40 ms

        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
            exchange = Exchange(self, upstream, self.command, self.path, dict(self.headers.items()), body)
            gate.take(exchange)(exchange)

        do_PUT = do_POST = do_HEAD = do_DELETE = do_GET

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    gate.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield gate
    finally:
        server.shutdown()
        server.server_close()
        thread.join(100)
