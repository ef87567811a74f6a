"""What the bridge needs of a tunnel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

OnNewUrl = Callable[[str], None]


class Tunnel(Protocol):
    """start → wait_url → … → stop. `stop` may be called at any time, more than once, and leaves no process."""

    name: str

    def start(self, local_port: int) -> None:
        """Begin to lead to 127.0.0.1:local_port. Raises BridgeDownError when that can't even begin."""

    def wait_url(self, timeout_s: float) -> str:
        """The public address, once it works. Raises BridgeDownError that says in plain words what is wrong."""

    def healthy(self) -> bool:
        """Whether requests get through now, as far as this end can tell."""

    def stop(self) -> None: ...

    def log_tail(self) -> list[str]:
        """The last lines of its own output, oldest first."""


@runtime_checkable
class Restartable(Protocol):
    """A tunnel that is worth a fresh start when it says that all is well and nothing gets through."""

    def restart(self) -> None:
        """Begin anew soon, from a thread of its own; a new address is told as ever. Returns at once."""


@runtime_checkable
class SaysWhy(Protocol):
    def trouble(self) -> str:
        """One sentence on what this end knows to be wrong; "" when it knows of nothing."""
