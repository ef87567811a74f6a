"""An address that leads to the bridge: what may be one, and where one stands in a line of text."""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import urlsplit

from bridgehead.errors import UsageError

URL_MAX = 300
_URL = re.compile(r"https?://(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\])(?::\d{1,5})?\Z", re.A)
_END = re.compile(r"[\s\"'<>|\\`{}]")  # no character of an address
_MARKS = ".,;:!?)]"  # end a sentence, not an address


def check(url: str, what: str) -> str:
    """The same without a slash at its end. Raises UsageError that names it as `what`."""
    bare = url.strip().rstrip("/")
    if len(bare) > URL_MAX or not _URL.match(bare) or not _port_is_good(bare):
        raise UsageError(
            f"{what} is not an address like https://name.example: {bare[:80]!r}",
            hint="http or https, a host, and perhaps a port. No path: signatures cover the path that a VM asks for",
        )
    return bare


def is_address(text: str) -> bool:
    try:
        check(text, "")
    except UsageError:
        return False
    return True


def whole_in(line: str, start: int, end: int) -> str:
    """The address at line[start:end], or "" when the line has there a longer one, or none.

    A pattern like `https://[a-z-]+\\.example\\.com` also matches inside of https://api.example.com/tunnel, which a
    program writes when it could not reach that: what is cut out of a longer address is never the tunnel's.
    """
    if start and line[start - 1].isalnum():
        return ""
    rest = line[start:]
    stop = _END.search(rest)
    stands = rest[: stop.start()] if stop else rest
    found, stands = line[start:end].rstrip(_MARKS).rstrip("/"), stands.rstrip(_MARKS).rstrip("/")
    return found if found == stands and is_address(found) else ""


def is_loopback(host: str) -> bool:
    """Whether a name or number means the machine itself."""
    if host.rstrip(".").lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def leads_here(url: str, port: int) -> bool:
    """Whether it is the bridge's own address, which programs print beside the public one."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    return (is_loopback(host) or host in ("0.0.0.0", "::")) and parts.port == port


def _port_is_good(url: str) -> bool:
    try:
        port = urlsplit(url).port
    except ValueError:
        return False
    return port is None or 0 < port < 65536
