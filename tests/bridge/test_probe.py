"""The bridge asks itself through its public address: what proves it, and what is said of all else that answers."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bridge.probe import Probe, ProbeFailed
from bridge_client import Client, LiveBridge, live_bridge
from bridgehead import names, signing
from cloudflare_edge import error_1033, live_edge, response

KEY = ("k-abcd", bytes(range(32)))
Answers = Callable[[bytes], bytes]


@pytest.fixture
def serve() -> Iterator[Callable[[Answers], str]]:
    """A server that answers each request as it is told; returns its address."""
    listeners = []

    def start(answer: Answers) -> str:
        listener = socket.create_server(("127.0.0.1", 0))
        listeners.append(listener)

        def run() -> None:
            while True:
                try:
                    client, _ = listener.accept()
                except OSError:
                    return
                with client:
                    client.sendall(answer(client.recv(1 << 16)))

        threading.Thread(target=run, daemon=True).start()
        return f"http://127.0.0.1:{listener.getsockname()[1]}"

    yield start
    for listener in listeners:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def ask(url: str, key: tuple[str, bytes] = KEY) -> str:
    """What is said of the one that answers; "" when it is ours."""
    try:
        asyncio.run(Probe(lambda: key, timeout_s=10).ask(url))
    except ProbeFailed as failed:
        assert failed.hint
        return failed.message
    return ""


def test_the_bridge_knows_itself(live: LiveBridge) -> None:
    assert ask(f"http://127.0.0.1:{live.bridge.port}", live.bridge.keys.current()) == ""


def test_the_probe_is_answered_for_the_holder_of_a_key_alone_and_bound_to_its_nonce(
    live: LiveBridge, client: Client
) -> None:
    answer = client.send("GET", names.PROBE_PATH, b"", client.signed("GET", names.PROBE_PATH, nonce="n" * 22))
    assert signing.open_document(client.key, "probe", answer.json) == {"reply_to": "n" * 22}
    assert client.send("GET", names.PROBE_PATH, b"", {}).status == 401


def test_another_projects_bridge_is_told_apart(live: LiveBridge) -> None:
    told = ask(f"http://127.0.0.1:{live.bridge.port}")
    assert "another bridge answers" in told and "does not have this project's key" in told


def test_an_answer_that_was_recorded_proves_nothing(
    live: LiveBridge, client: Client, serve: Callable[[Answers], str]
) -> None:
    old = client.get(names.PROBE_PATH).body
    assert "another bridge" in ask(serve(lambda _: response("200 OK", old)), live.bridge.keys.current())


PAGE = b"<html><head><title>%s</title></head><body>Error code 502</body></html>"
CASES = {
    "a tunnel that is not connected": (
        error_1033(),
        "Cloudflare answers for {host} (530, code 1033): the name is known",
    ),
    "the same as a page": (
        response("530 <none>", PAGE % b"Cloudflare Tunnel error | demo.trycloudflare.com | Cloudflare"),
        "Cloudflare answers for {host} (530): the name is known, but no tunnel is connected",
    ),
    "the same as text": (response("530 <none>", b"error code: 1033"), "(530, code 1033): the name is known"),
    "a bad gateway": (
        response("502 Bad Gateway", PAGE % b"example | 502: Bad gateway"),
        "(502): the tunnel can't reach",
    ),
    "a limit": (response("429 Too Many Requests", b"error code: 1015"), "code 1015): too many requests"),
    "a code of tomorrow": (response("530 <none>", b"error code: 1999"), "the page of its error 1999"),
    "a login": (
        response("302 Found", b"", more="Location: https://team.cloudflareaccess.com/cdn-cgi/access/login\r\n"),
        "{host} asks for a login (302)",
    ),
    "a move": (
        response("301 Moved", b"", more="Location: https://www.example.com/\r\n"),
        "sends on to www.example.com",
    ),
    "another server": (
        response("200 OK", b"<h1>Welcome to nginx!</h1>", server="nginx/1.22.1"),
        "another server answers at {host} (nginx/1.22.1, 200), not the bridge",
    ),
    "a server that hides": (response("404 Not Found", b"", server=""), "another server answers at {host} (404)"),
    "one that repaints": (response("200 OK", b"", server="\x1b[2J"), "(?[2J, 200)"),
    "deep JSON": (response("200 OK", b"[" * 50_000), "another server answers"),
    "no HTTP": (b"SSH-2.0-OpenSSH_9.2\r\n", "is cut or no HTTP"),
    "nothing": (b"", "is cut or no HTTP"),
}


@pytest.mark.parametrize("case", CASES)
def test_what_answers_instead_is_told_in_plain_words(serve: Callable[[Answers], str], case: str) -> None:
    data, expected = CASES[case]
    url = serve(lambda _: data)
    assert expected.format(host=url.removeprefix("http://")) in ask(url)


def test_a_stranger_is_not_told_the_key_nor_taken_for_the_bridge(serve: Callable[[Answers], str]) -> None:
    heard = []

    def imitate(request: bytes) -> bytes:
        heard.append(request)
        nonce = request.partition(b';nonce="')[2].partition(b'"')[0].decode()
        document = signing.sign_document(bytes(32), "probe", {"reply_to": nonce})
        return response("200 OK", json.dumps(document).encode(), kind="application/json")

    assert "another bridge answers" in ask(serve(imitate))
    assert KEY[1] not in heard[0] and KEY[1].hex().encode() not in heard[0]


def test_a_port_where_nobody_listens_is_told() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        assert "can't be reached" in ask(url)


def test_one_that_never_answers_is_given_up(serve: Callable[[Answers], str]) -> None:
    ended = threading.Event()

    def sleep(_: bytes) -> bytes:
        ended.wait(100)
        return b""

    url = serve(sleep)
    with pytest.raises(ProbeFailed, match="does not answer in time"):
        asyncio.run(Probe(lambda: KEY, timeout_s=0.3).ask(url))
    ended.set()


def test_a_name_that_dns_does_not_know_is_told() -> None:
    told = ask("https://no-such-host.invalid")
    assert "DNS does not know no-such-host.invalid" in told


def test_a_certificate_that_nobody_trusts_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with live_edge(tmp_path, tmp_path / "ca.pem") as edge:
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{edge.port}")
        monkeypatch.delenv("SSL_CERT_FILE", raising=False)
        assert "the certificate of bridge.example.com is not trusted" in ask("https://bridge.example.com")


def test_a_proxy_that_leads_nowhere_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{unused.getsockname()[1]}")
        assert "the proxy of this machine does not lead to bridge.example.com" in ask("https://bridge.example.com")


def test_no_proxy_is_asked_for_this_very_machine(live: LiveBridge, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    assert ask(f"http://127.0.0.1:{live.bridge.port}", live.bridge.keys.current()) == ""


def test_pages_just_after_the_start_are_waited_out(live: LiveBridge, serve: Callable[[Answers], str]) -> None:
    pages = [error_1033(), response("502 Bad Gateway", b""), error_1033()]
    told: list[str] = []

    def settle(request: bytes) -> bytes:
        if pages:
            return pages.pop()
        return forward(live.bridge.port, request)

    probe = Probe(live.bridge.keys.current)
    asyncio.run(probe.until_it_answers(serve(settle), deadline_s=60, told=lambda failed: told.append(failed.message)))
    assert len(told) == 3 and pages == []


def test_pages_that_stay_are_given_up_with_their_reason(serve: Callable[[Answers], str]) -> None:
    with pytest.raises(ProbeFailed, match="code 1033"):
        asyncio.run(Probe(lambda: KEY).until_it_answers(serve(lambda _: error_1033()), deadline_s=0.5))


def test_what_waiting_cant_change_is_told_soon(serve: Callable[[Answers], str]) -> None:
    asked: list[bytes] = []

    def foreign(request: bytes) -> bytes:
        asked.append(request)
        return response("200 OK", b"hello", server="Apache")

    with pytest.raises(ProbeFailed, match="Apache"):
        asyncio.run(Probe(lambda: KEY).until_it_answers(serve(foreign), deadline_s=600))
    assert len(asked) == 3


def test_the_bridge_listens_in_the_local_network_when_its_address_is_there(tmp_path: Path) -> None:
    with live_bridge(tmp_path, also_host="127.0.0.2") as live:
        url = f"http://127.0.0.2:{live.bridge.port}"
        assert "does not go by that name (421)" in ask(url, live.bridge.keys.current())
        live.bridge.announce_host(url)
        assert ask(url, live.bridge.keys.current()) == ""


def test_an_address_of_another_machine_is_left_alone(tmp_path: Path) -> None:
    with live_bridge(tmp_path, also_host="192.0.2.1") as live:
        assert ask(f"http://127.0.0.1:{live.bridge.port}", live.bridge.keys.current()) == ""


def forward(port: int, request: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port)) as bridge:
        bridge.sendall(request)
        data = b""
        while piece := bridge.recv(1 << 16):
            data += piece
        return data
