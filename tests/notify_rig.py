"""A receiver of notifications on loopback that answers as it is told, and remembers what it got."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Receiver:
    """`answers`: the statuses of the next answers, then 200. A 0 hangs until `let_go`."""

    url: str = ""
    answers: list[int] = field(default_factory=list)
    got: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)  # path, headers, body
    let_go: threading.Event = field(default_factory=threading.Event)


@contextlib.contextmanager
def receiver(*answers: int) -> Iterator[Receiver]:
    known = Receiver(answers=list(answers))

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            known.got.append((self.path, {name.lower(): value for name, value in self.headers.items()}, body))
            status = known.answers.pop(0) if known.answers else 200
            if not status:
                known.let_go.wait(60)
                return
            self.send_response(status)
            if 300 <= status < 400:
                self.send_header("Location", "/elsewhere")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    known.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield known
    finally:
        known.let_go.set()
        server.shutdown()
        server.server_close()
        thread.join(100)
