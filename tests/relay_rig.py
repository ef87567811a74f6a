"""The campaign's relay, a real sshd on loopback, for tests of the ssh tunnel. No file of the user's is touched."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from bridge.tunnels.spec import TunnelSpec
from chaos import relay as real
from chaos.relay import free_port as free_port

MISSING = real.missing()


class Relay(real.Relay):
    """With the keys of a stranger, whom it does not let in."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        real.make_key(folder / "stranger")

    def spec(self, *more: str, key: str = "user", host: str = "127.0.0.1", **values: object) -> TunnelSpec:
        options = self.options(*more, key=key)
        return TunnelSpec(kind="ssh", host=host, options=options, **values)  # type: ignore[arg-type]


@contextlib.contextmanager
def relay(folder: Path) -> Iterator[Relay]:
    made = Relay(folder)
    try:
        yield made
    finally:
        made.stop()
