"""No tunnel: for a VM on this machine, or one that reaches it by other means."""

from __future__ import annotations

from bridgehead.errors import BridgeDownError


class NoTunnel:
    name = "none"

    def __init__(self) -> None:
        self._url = ""

    def start(self, local_port: int) -> None:
        self._url = f"http://127.0.0.1:{local_port}"

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
