"""What a stranger with the URL alone gets: `ok` from the health check, and one and the same refusal from all else."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator

import pytest

from bridge_client import TIMEOUT_S, VM, Client, LiveBridge, live_bridge
from bridgehead import names

DATE = re.compile(rb"\r\ndate: [^\r]*", re.IGNORECASE)
TARGETS = [
    "/", "/healthz/", "/healthz?x", "/HEALTHZ", "/probe", "/queue", "/queue.txt", "/serve/", "/serve/boot.zip",
    "/serve/manifest.json", "/serve/payload/data/file", "/serve/payload/nothing", "/in/", "/in/pretrain-0001-aaaaaa/",
    "/in/pretrain-0001-aaaaaa/log", "/in/../queue.txt", f"/vms/{VM}/heartbeat", f"/queue?vm={VM}&after=0&wait=25",
    "/queue/00000000000000000000000000000000/ack", "/favicon.ico", "/.bridgehead/keys.json", "/%00", "/%2e%2e", "//",
    "*", "http://127.0.0.1/healthz", "http://evil.example.com/queue.txt", "/" + "x" * 4000,
]  # fmt: skip
METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND", "MKCOL", "BREW"]


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveBridge]:
    root = tmp_path_factory.mktemp("project")
    (root / "data").mkdir()
    (root / "data/file").write_bytes(b"inside")
    with live_bridge(root) as bridge:
        bridge.given_run()
        yield bridge


def _raw(live: LiveBridge, data: bytes) -> bytes:
    """Everything that comes back until the bridge ends the connection, without the date."""
    with socket.create_connection(("127.0.0.1", live.bridge.port), timeout=TIMEOUT_S) as sock:
        sock.sendall(data)
        answer = b""
        while piece := sock.recv(65536):
            answer += piece
    return DATE.sub(b"", answer)


def _ask(live: LiveBridge, method: str, target: str, *headers: str) -> bytes:
    return _raw(live, "\r\n".join([f"{method} {target} HTTP/1.1", "Host: 127.0.0.1", *headers, "", ""]).encode())


@pytest.fixture(scope="module")
def refusal(live: LiveBridge) -> bytes:
    answer = _ask(live, "GET", "/queue.txt")
    assert answer.startswith(b"HTTP/1.1 401 ")
    return answer


@pytest.mark.parametrize("target", TARGETS)
def test_the_refusal_is_the_same_byte_for_byte_whatever_is_asked(live: LiveBridge, refusal: bytes, target: str) -> None:
    for method in METHODS:
        assert _ask(live, method, target) == refusal, method


@pytest.mark.parametrize(
    "headers",
    [
        ("Authorization: Bearer x",),
        ("Cookie: a=b",),
        ("Origin: https://evil.example.com", "Access-Control-Request-Method: GET"),
        ("Range: bytes=0-1",),
        ("Accept: text/html",),
        ("Expect: 100-continue", "Content-Length: 5"),
        ("Content-Length: 50000000",),
        ("Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: eA=="),
        ("X-Forwarded-For: 127.0.0.1", "CF-Connecting-IP: 127.0.0.1"),
        ("X-HTTP-Method-Override: PUT",),
        ("Signature-Input: bh=()", "Signature: bh=::"),
        ('Signature-Input: bh=("@method");created=1;keyid="k-00000000";nonce="n";alg="rsa-v1_5-sha256"',
         "Signature: bh=:AAAA:"),
    ],
)  # fmt: skip
def test_no_header_makes_a_difference(live: LiveBridge, refusal: bytes, headers: tuple[str, ...]) -> None:
    assert _ask(live, "GET", "/queue.txt", *headers) == refusal


@pytest.mark.parametrize("what", ["unknown key", "wrong key", "stale", "replayed", "another path", "no digest"])
def test_no_wrong_signature_makes_a_difference(live: LiveBridge, refusal: bytes, what: str) -> None:
    client, target = live.client(), "/queue.txt"
    if what == "unknown key":
        headers = Client(client.port, "k-00000000", client.key).signed("GET", target)
    elif what == "wrong key":
        headers = Client(client.port, client.key_id, bytes(32)).signed("GET", target)
    elif what == "stale":
        headers = client.signed("GET", target, created=1)
    elif what == "another path":
        headers = client.signed("GET", "/queue")
    else:
        headers = client.signed("GET", target)
    if what == "replayed":
        assert client.send("GET", target, b"", headers).status == 200
    if what == "no digest":
        del headers[names.HEADER_DIGEST]
    assert _ask(live, "GET", target, *(f"{name}: {value}" for name, value in headers.items())) == refusal


@pytest.mark.parametrize(
    "data",
    [
        b"hello\r\n\r\n",
        b"GET /queue.txt HTTP/9.9\r\nHost: 127.0.0.1\r\n\r\n",
        b"GET /a b HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nBad\x01Name: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\nhello",
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + b"x" * 20000 + b"\r\n\r\n",
        b"GET /" + b"x" * 20000 + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 a TLS hello\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
)
def test_what_is_no_request_gets_the_same_refusal(live: LiveBridge, refusal: bytes, data: bytes) -> None:
    assert _raw(live, data) == refusal


def test_the_refusal_tells_nothing_and_allows_no_other_site_in(refusal: bytes) -> None:
    head = refusal.partition(b"\r\n\r\n")[0].lower()
    names_of = {line.partition(b":")[0] for line in head.split(b"\r\n")[1:]}
    assert names_of == {
        b"server", b"cache-control", b"x-content-type-options", b"content-type", b"content-length", b"connection",
    }  # fmt: skip
    assert b"server: bridgehead\r\n" in head + b"\r\n"


def test_a_head_request_gets_the_same_head(live: LiveBridge, refusal: bytes) -> None:
    assert _ask(live, "HEAD", "/queue.txt") == refusal.partition(b"\r\n\r\n")[0] + b"\r\n\r\n"


def test_the_health_check_says_ok(live: LiveBridge) -> None:
    answer = _ask(live, "GET", "/healthz")
    assert answer.startswith(b"HTTP/1.1 200 ") and answer.endswith(b"\r\n\r\nok")


@pytest.mark.parametrize("method", ["OPTIONS", "TRACE", "PROPFIND"])
def test_a_paired_caller_gets_no_other_method_either(live: LiveBridge, method: str) -> None:
    answer = live.client().ask(method, "/queue.txt", b"", {"Origin": "https://evil.example.com"})
    assert answer.status == 405
    assert not [name for name in answer.headers if name.lower().startswith("access-control")]


@pytest.mark.parametrize("target", ["/in/", "/in/pretrain-0001-aaaaaa/", "/serve/", "/serve/payload/", "/vms/"])
def test_nothing_is_listed_for_a_paired_caller_either(live: LiveBridge, target: str) -> None:
    answer = live.client().get(target)
    assert answer.status in (400, 404, 405)


def test_nothing_of_a_stranger_is_in_the_log(live: LiveBridge, caplog: pytest.LogCaptureFixture) -> None:
    marker = "a-strangers-words"
    _ask(live, "GET", f"/{marker}", f"X-{marker}: {marker}", f"User-Agent: {marker}")
    _raw(live, f"{marker}\r\n\r\n".encode())
    assert marker not in caplog.text
