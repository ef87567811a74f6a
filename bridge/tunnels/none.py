"""No tunnel of ours: a VM on this machine, one in the same network, or a reverse proxy that the user runs."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from bridge.tunnels.base import OnNewUrl
from bridge.tunnels.spec import TunnelSpec
from bridgehead.errors import BridgeDownError


class NoTunnel:
    name = "none"

    def __init__(self, spec: TunnelSpec, *, on_new_url: OnNewUrl | None = None) -> None:
        """`on_new_url` is never called: this address stays."""
        self._told = spec.url
        self._url = ""

    def start(self, local_port: int) -> None:
        told = self._told.replace("{port}", str(local_port)).rstrip("/")
        self._url = told or f"http://127.0.0.1:{local_port}"

    def wait_url(self, timeout_s: float) -> str:
        if not self._url:
            raise BridgeDownError("the bridge has not been started")
        return self._url

    def healthy(self) -> bool:
        return bool(self._url)

    def stop(self) -> None:
        self._url = ""

    def log_tail(self) -> list[str]:
        return []


def lan_host(spec: TunnelSpec, port: int) -> str:
    """The address of the local network that the bridge itself has to listen on for `spec.url`; "" for none.

    That is so for a plain http:// address of an interface with the bridge's own port. Everything else is led to
    127.0.0.1 by something of the user's: a reverse proxy, a forwarded port.
    """
    if spec.kind != NoTunnel.name or not spec.url.startswith("http://"):
        return ""
    parts = urlsplit(spec.url.replace("{port}", str(port or 1)))
    try:
        address = ipaddress.ip_address(parts.hostname or "")
    except ValueError:
        return ""
    same_port = "{port}" in spec.url or (parts.port or 80) == port
    return "" if address.is_loopback or not same_port else str(address)
