"""By which names this bridge may be called: a web page whose own name leads to 127.0.0.1 is turned away."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

_LOOPBACK = re.compile(r"(?:127\.0\.0\.1|localhost|\[::1\])(?::\d{1,5})?\Z", re.IGNORECASE)
_NAMES_MAX = 256
_DEFAULT_PORTS = {"http": 80, "https": 443}


class Hosts:
    """Loopback is always one of them, on any port: a forward of ssh has a port of its own."""

    def __init__(self) -> None:
        self._announced: dict[str, None] = {}

    def announce(self, host_or_url: str) -> None:
        """Answer to this name from now on: `host`, `host:port`, or a URL whose host is meant."""
        host = host_or_url.lower()
        if "://" in host:
            parts = urlsplit(host)
            host = parts.netloc
            if parts.port == _DEFAULT_PORTS.get(parts.scheme):
                host = host.rpartition(":")[0]
        self._announced.pop(host, None)
        self._announced[host] = None
        if len(self._announced) > _NAMES_MAX:  # a quick tunnel has a new name each time
            self._announced.pop(next(iter(self._announced)))

    def knows(self, host: str | None) -> bool:
        """Whether a request with this Host header is meant for us."""
        if host is None:
            return False
        name = host.lower()
        if _LOOPBACK.match(name) or name in self._announced:
            return True
        bare, colon, port = name.rpartition(":")
        return bool(colon) and port in ("80", "443") and bare in self._announced
