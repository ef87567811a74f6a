"""Silent and many connections: neither may keep a paired VM out."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path

import pytest

from bridge import doorkeeper
from bridge_client import TIMEOUT_S, live_bridge


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
            busy.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            assert busy.recv(1000).startswith(b"HTTP/1.1 200")
            with contextlib.suppress(ConnectionResetError):
                assert quiet.recv(100) == b""  # its time is over; that of the other one, too, had it not asked


def test_one_connection_too_many_is_refused_and_the_others_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doorkeeper, "CONNECTIONS_MAX", 3)
    with live_bridge(tmp_path) as live, contextlib.ExitStack() as stack:
        held = [_connect(stack, live.bridge.port) for _ in range(3)]
        for sock in held:
            sock.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            assert sock.recv(1000).startswith(b"HTTP/1.1 200")
        with contextlib.suppress(ConnectionResetError):
            assert _connect(stack, live.bridge.port).recv(100) == b""
        held[0].sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert held[0].recv(1000).startswith(b"HTTP/1.1 200")
