"""A double of Cloudflare's edge on this machine, and of the internet before it: a CONNECT proxy with a CA of its own.

Whoever has HTTPS_PROXY and SSL_CERT_FILE set to it, as people behind a company's proxy do, reaches https://<host> of
the cloudflared stub through it, or gets what Cloudflare answers when no tunnel is connected to the name.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import datetime
import json
import os
import socket
import ssl
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

STUB = Path(__file__).parent / "bridge" / "cloudflared_stub.py"
NAMED_HOST = "bridge.example.com"
TOKEN = base64.b64encode(json.dumps({"a": "account", "t": "tunnel-id", "s": "c2VjcmV0IG9mIHRoZSB0dW5uZWw="}).encode())
_END = b"\r\n\r\n"
_HOSTS = ("*.trycloudflare.com", NAMED_HOST)


@dataclass
class Edge:
    """`folder` is the stub's: it says there how it can be reached. What the edge does instead is set by the tests."""

    folder: Path
    port: int
    ca: Path
    pages: list[bytes] = field(default_factory=list)  # the next answers, one for each request, in place of the tunnel's
    asked: list[str] = field(default_factory=list)  # hosts, in the order of their requests
    foreign: bytes = b""  # the answer of a foreign server, to everything
    on_request: Callable[[], None] = lambda: None  # before each answer

    @property
    def environment(self) -> dict[str, str]:
        """For a process behind it."""
        proxy = f"http://127.0.0.1:{self.port}"
        return {
            "HTTPS_PROXY": proxy,
            "https_proxy": proxy,
            "SSL_CERT_FILE": str(self.ca),
            "NO_PROXY": "",
            "no_proxy": "",
        }

    def answer(self, host: str) -> bytes | int:
        """The port of the stub that has the host, or a whole answer of the edge's own."""
        self.asked.append(host)
        self.on_request()
        if self.pages:
            return self.pages.pop(0)
        if self.foreign:
            return self.foreign
        place = self.folder / f"public-{host}"
        if not place.exists() or (self.folder / "down").exists():
            return error_1033()
        port = int(place.read_text())
        with socket.socket() as trial:  # a stub that was killed leaves its file behind
            return port if trial.connect_ex(("127.0.0.1", port)) == 0 else error_1033()


def response(status: str, body: bytes, *, server: str = "cloudflare", kind: str = "text/html", more: str = "") -> bytes:
    head = f"HTTP/1.1 {status}\r\nServer: {server}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n{more}"
    return f"{head}Connection: close\r\n\r\n".encode() + body


def error_1033() -> bytes:
    """As Cloudflare answers who accepts application/json: RFC 9457, with its own members."""
    body = {
        "type": "https://developers.cloudflare.com/support/troubleshooting/http-status-codes/cloudflare-1xxx-errors/",
        "title": "Error 1033: Cloudflare Tunnel error",
        "status": 530,
        "cloudflare_error": True,
        "error_code": 1033,
        "error_name": "tunnel_error",
        "retryable": True,
        "retry_after": 120,
    }
    return response(
        "530 <none>", json.dumps(body).encode(), kind="application/problem+json", more="Retry-After: 120\r\n"
    )


@pytest.fixture
def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder through which the stub is told what to do; the stub comes first on PATH."""
    programs, folder = tmp_path / "bin", tmp_path / "stub"
    programs.mkdir()
    folder.mkdir()
    program = programs / "cloudflared"
    program.write_text(f"#!{sys.executable}\n" + STUB.read_text())
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("STUB_FOLDER", str(folder))
    (folder / "mode").write_text("good")
    return folder


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_bytes(TOKEN + b"\n")
    path.chmod(0o600)
    return path


@pytest.fixture
def edge(stub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Edge]:
    """An edge for the stub; processes that are started from now on lie behind it."""
    with live_edge(stub, tmp_path / "ca.pem") as made:
        for name, value in made.environment.items():
            monkeypatch.setenv(name, value)
        yield made


@contextlib.contextmanager
def live_edge(folder: Path, ca: Path) -> Iterator[Edge]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(_issue(ca))
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="edge", daemon=True)
    thread.start()
    edge = Edge(folder, 0, ca)

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError), contextlib.closing(writer):
            await _tunnelled(reader, writer, context, edge)

    async def listen() -> asyncio.Server:
        return await asyncio.start_server(connected, "127.0.0.1", 0)

    server = asyncio.run_coroutine_threadsafe(listen(), loop).result(100)
    edge.port = server.sockets[0].getsockname()[1]
    try:
        yield edge
    finally:
        asyncio.run_coroutine_threadsafe(_close(server), loop).result(100)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(100)
        loop.close()


async def _close(server: asyncio.Server) -> None:
    server.close()
    here = asyncio.current_task()
    tasks = [task for task in asyncio.all_tasks() if task is not here]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _tunnelled(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, context: ssl.SSLContext, edge: Edge
) -> None:
    """One CONNECT: the TLS of the public internet ends here, as it does at Cloudflare."""
    method, target, _ = (await reader.readuntil(_END)).split(b" ", 2)
    assert method == b"CONNECT"
    writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
    await writer.drain()
    await writer.start_tls(context)
    first = await reader.readuntil(_END)
    answer = edge.answer(target.decode().partition(":")[0])
    if isinstance(answer, bytes):
        writer.write(answer)
        await writer.drain()
        return
    origin_reader, origin_writer = await asyncio.open_connection("127.0.0.1", answer)
    with contextlib.closing(origin_writer):
        origin_writer.write(first)
        up = asyncio.create_task(_pump(reader, origin_writer))
        await _pump(origin_reader, writer)
        up.cancel()


async def _pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    while data := await source.read(1 << 16):
        target.write(data)
        await target.drain()


def _issue(ca: Path) -> Path:
    """Write the CA's certificate to `ca`, and return a file with a certificate that it gave and its key."""
    ca_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    ca_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Bridgehead's tests")])
    ca_certificate = (
        _certificate(ca_name, ca_name, ca_key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(ca_key, hashes.SHA256())
    )
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, _HOSTS[0])])
    certificate = (
        _certificate(name, ca_name, key.public_key())
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host) for host in _HOSTS]), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    ca.write_bytes(ca_certificate.public_bytes(pem))
    own = ca.with_name("edge.pem")
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    own.write_bytes(certificate.public_bytes(pem) + private)
    return own


def _certificate(
    subject: x509.Name, issuer: x509.Name, public_key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=2))
    )
