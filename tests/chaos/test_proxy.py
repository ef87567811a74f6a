"""The campaign's tunnel: it lets through, cuts, and holds an answer to the queue until it is told to go on."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

from chaos.proxy import AWAY, Mode, Proxy
from support import wait_until


@contextlib.contextmanager
def _echo() -> Iterator[int]:
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                peer, _ = server.accept()
                threading.Thread(target=_answer, args=(peer,), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield server.getsockname()[1]
    finally:
        server.close()


def _answer(peer: socket.socket) -> None:
    with peer, contextlib.suppress(OSError):
        while data := peer.recv(65536):
            peer.sendall(data)


@pytest.fixture
def port() -> Iterator[int]:
    with _echo() as port:
        yield port


@pytest.fixture
def proxy(port: int) -> Iterator[Proxy]:
    made = Proxy()
    made.start()
    made.stand_before(port)
    made.stand_before(port)
    wait_until(lambda: _stands(port), 20)
    yield made
    made.stop()


def _stands(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((AWAY, port), timeout=5):
        return True
    return False


def _ask(port: int, text: bytes = b"hello", timeout_s: float = 5.0) -> bytes:
    with socket.create_connection((AWAY, port), timeout=timeout_s) as peer:
        peer.sendall(text)
        return peer.recv(65536)


def test_open_and_slow_let_everything_through(proxy: Proxy, port: int) -> None:
    assert _ask(port) == b"hello"
    proxy.set_mode(Mode.SLOW)
    assert _ask(port) == b"hello"


def test_a_cut_breaks_what_was_under_way_and_is_over_once_it_is_opened(proxy: Proxy, port: int) -> None:
    with socket.create_connection((AWAY, port), timeout=5) as peer:
        peer.sendall(b"hello")
        assert peer.recv(10) == b"hello"
        proxy.set_mode(Mode.CUT)
        with contextlib.suppress(ConnectionResetError):
            assert peer.recv(10) == b""
    with contextlib.suppress(ConnectionResetError, BrokenPipeError):
        assert _ask(port) == b""
    proxy.set_mode(Mode.OPEN)
    assert _ask(port) == b"hello"


@pytest.mark.parametrize("side", ["request", "answer"])
def test_an_answer_to_the_queue_waits_for_the_fault(proxy: Proxy, port: int, side: str) -> None:
    seen, go_on = threading.Event(), threading.Event()

    def hold(_number: int, asked: str) -> threading.Event | None:
        if asked != side:
            return None
        seen.set()
        return go_on

    proxy.hold_ack = hold
    got: list[bytes] = []
    asking = threading.Thread(target=lambda: got.append(_ask(port, b"POST /queue/1/ack HTTP/1.1\r\n")))
    asking.start()
    assert seen.wait(100)
    assert got == []
    go_on.set()
    asking.join(100)
    assert got and proxy.acks == 1
