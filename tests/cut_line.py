"""A TCP line between two ends that a test cuts and mends: refused and reset, or silent as behind a dead router."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

_CHUNK_BYTES = 65_536


class CutLine:
    """Listens on `port` of loopback and passes everything on to `target_port`."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._flows = threading.Event()  # cleared: bytes stay where they are
        self._flows.set()
        self._open = True
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        threading.Thread(target=self._accept, name="cut-line", daemon=True).start()

    def silence(self) -> None:
        """Nothing comes through any more, and neither end hears of it."""
        self._flows.clear()

    def cut(self) -> None:
        """Every connection is reset, and new ones are closed at once."""
        with self._lock:
            self._open = False
            sockets, self._sockets = self._sockets, set()
        for one in sockets:
            _reset(one)
        self._flows.set()  # threads that waited end at their closed sockets

    def mend(self) -> None:
        """New connections come through again."""
        with self._lock:
            self._open = True
        self._flows.set()

    def close(self) -> None:
        self.cut()
        self._listener.close()

    # --- inside ------------------------------------------------------------------------------------

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                if not self._open:
                    _reset(near)
                    continue
                try:
                    far = socket.create_connection(("127.0.0.1", self._target_port), timeout=10)
                    far.settimeout(None)
                except OSError:
                    _reset(near)
                    continue
                with self._lock:
                    self._sockets |= {near, far}
                for source, target in ((near, far), (far, near)):
                    threading.Thread(target=self._pass_on, args=(source, target), daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(_CHUNK_BYTES):
                self._flows.wait()
                target.sendall(data)
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
            with self._lock:
                self._sockets.discard(one)


def _reset(one: socket.socket) -> None:
    """RST in place of FIN: what is still under way is lost with it."""
    with contextlib.suppress(OSError):
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
        one.shutdown(socket.SHUT_RDWR)
    one.close()


@contextlib.contextmanager
def cut_line(target_port: int) -> Iterator[CutLine]:
    line = CutLine(target_port)
    try:
        yield line
    finally:
        line.close()
