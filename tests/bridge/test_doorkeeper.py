"""Silent and many connections: neither may keep a paired VM out."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path

import pytest

from bridge import bodies, doorkeeper
from bridge_client import TIMEOUT_S, VM, live_bridge


def _connect(stack: contextlib.ExitStack, port: int) -> socket.socket:
    return stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S))


@pytest.mark.parametrize("sent", [b"", b"GET /healthz HT"], ids=["nothing", "half a head"])
def test_a_connection_without_a_head_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    monkeypatch.setattr(doorkeeper, "HEAD_TIMEOUT_S", 0.1)
    with live_bridge(tmp_path) as live, contextlib.ExitStack() as stack:
        sock = _connect(stack, live.bridge.port)
        sock.sendall(sent)
        with contextlib.suppress(ConnectionResetError):
            assert sock.recv(100) == b""
        assert live.client().get("/queue.txt").status == 200


def test_a_connection_that_has_asked_may_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doorkeeper, "HEAD_TIMEOUT_S", 0.1)
    with live_bridge(tmp_path) as live, contextlib.ExitStack() as stack:
        quiet, busy = _connect(stack, live.bridge.port), _connect(stack, live.bridge.port)
        for _ in range(2):
            busy.sendall(live.client().raw("GET", "/queue.txt"))
            assert busy.recv(1000).startswith(b"HTTP/1.1 200")
            with contextlib.suppress(ConnectionResetError):
                assert quiet.recv(100) == b""  # its time is over; that of the other one, too, had it not asked


def test_one_connection_too_many_is_refused_and_the_others_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doorkeeper, "CONNECTIONS_MAX", 3)
    with live_bridge(tmp_path) as live, contextlib.ExitStack() as stack:
        client = live.client()
        held = [_connect(stack, live.bridge.port) for _ in range(3)]
        for sock in held:
            sock.sendall(client.raw("GET", "/queue.txt"))
            assert sock.recv(1000).startswith(b"HTTP/1.1 200")
        with contextlib.suppress(ConnectionResetError):
            assert _connect(stack, live.bridge.port).recv(100) == b""
        held[0].sendall(client.raw("GET", "/queue.txt"))
        assert held[0].recv(1000).startswith(b"HTTP/1.1 200")


def test_silent_connections_make_room_for_one_that_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doorkeeper, "CONNECTIONS_MAX", 3)
    with live_bridge(tmp_path) as live, contextlib.ExitStack() as stack:
        silent = [_connect(stack, live.bridge.port) for _ in range(3)]
        paired = _connect(stack, live.bridge.port)
        paired.sendall(live.client().raw("GET", "/queue.txt"))
        assert paired.recv(1000).startswith(b"HTTP/1.1 200")
        with contextlib.suppress(ConnectionResetError):
            assert silent[0].recv(100) == b""  # the one that had waited longest


def test_a_stranger_keeps_no_connection(tmp_path: Path) -> None:
    with live_bridge(tmp_path) as live, contextlib.ExitStack() as stack:
        for target in (b"/healthz", b"/queue.txt"):
            sock = _connect(stack, live.bridge.port)
            sock.sendall(b"GET " + target + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            answer = b""
            while piece := sock.recv(1000):
                answer += piece
            assert b"connection: close" in answer.lower()


def test_a_body_that_drips_in_is_refused_though_it_never_stalls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bodies, "STALL_S", 0.5)
    with live_bridge(tmp_path) as live:
        client, target = live.client(), f"/vms/{VM}/heartbeat"
        body = b"x" * 1000
        headers = client.signed("POST", target, body) | {"Content-Length": "1000"}
        with client.half_sent("POST", target, headers, b"") as sock:
            sock.settimeout(0.05)
            answer = b""
            for byte in body:
                with contextlib.suppress(ConnectionError):
                    sock.sendall(bytes([byte]))
                with contextlib.suppress(TimeoutError):
                    answer = sock.recv(1000)
                    break
            sock.settimeout(TIMEOUT_S)
            with contextlib.suppress(ConnectionError):
                while sock.recv(1000):  # the bridge reads on for a moment, so that the answer arrives
                    pass
        assert answer.startswith(b"HTTP/1.1 408")
