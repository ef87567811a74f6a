"""One POST that can't hang: every step and the whole are bounded. No redirect is followed: the address is a secret."""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
import threading
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from urllib.parse import urlsplit

CONNECT_S = 10.0  # and for each wait after that
TOTAL_S = 30.0  # from the connection on; a server that answers a byte at a time gets no longer


def post(url: str, body: bytes, headers: Mapping[str, str], committed: Callable[[], None]) -> int:
    """The status of the answer. `committed` is called once connected, before the first byte of the request.

    Raises OSError that names no part of the URL but its host. https is checked against the system's authorities.
    """
    parts = urlsplit(url)
    connection = _connection(parts.scheme, parts.hostname or "", parts.port)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    with contextlib.closing(connection):
        try:
            connection.connect()
            committed()
            with _deadline(connection.sock):
                connection.request("POST", target, body, dict(headers))
                return connection.getresponse().status
        except http.client.HTTPException as error:
            raise OSError(f"{parts.hostname} gave no HTTP answer ({type(error).__name__})") from None
        except TimeoutError:
            raise OSError(f"{parts.hostname} did not answer in time") from None
        except ssl.SSLError as error:
            raise OSError(f"{parts.hostname}: {error.reason or 'TLS failed'}") from None
        except OSError as error:
            raise OSError(f"{parts.hostname}: {error.strerror or type(error).__name__}") from None


def _connection(scheme: str, host: str, port: int | None) -> http.client.HTTPConnection:
    """Straight, or through the proxy that the environment names for an https address."""
    if scheme == "http":
        return http.client.HTTPConnection(host, port, timeout=CONNECT_S)
    context = ssl.create_default_context()
    proxy = urllib.request.getproxies().get("https", "")
    if not proxy or urllib.request.proxy_bypass(host):
        return http.client.HTTPSConnection(host, port, timeout=CONNECT_S, context=context)
    through = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    made = http.client.HTTPSConnection(through.hostname or "", through.port, timeout=CONNECT_S, context=context)
    made.set_tunnel(host, port)
    return made


@contextlib.contextmanager
def _deadline(sock: socket.socket) -> Iterator[None]:
    """Cut the connection after TOTAL_S: whoever reads from it then gets an error."""

    def cut() -> None:
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(TOTAL_S, cut)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
