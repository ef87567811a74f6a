"""Faults that give the bridge another address, of which VMs have to hear; two of them need a relay in the path."""

from __future__ import annotations

import signal

from chaos import relay
from chaos.fault import Fault, Missed, kill
from chaos.world import SSH


class _Relayed(Fault):
    tunnel = SSH

    @classmethod
    def missing(cls) -> str:
        return relay.missing()


class UrlChange(_Relayed):
    """The relay drops the connection; the next one gets another port."""

    kind = "url-change"

    def strike(self) -> None:
        assert self.world.relay is not None
        if not self.world.relay.signal_sessions(signal.SIGKILL):
            raise Missed("nobody is connected to the relay")


class UrlChangeBridge(Fault):
    """The bridge dies, and the user starts it again at another port."""

    kind = "url-change-bridge"

    def strike(self) -> None:
        self.world.move_bridge()
        kill(self.world.bridge_pid(), "bridge")


class RelayDown(_Relayed):
    """The relay restarts: for a while there is no way at all."""

    kind = "relay-down"
    hold_range_s = (2.0, 8.0)

    def strike(self) -> None:
        assert self.world.relay is not None
        self.world.relay.stop()

    def heal(self) -> None:
        assert self.world.relay is not None
        self.world.relay.start()


ALL: tuple[type[Fault], ...] = (UrlChange, UrlChangeBridge, RelayDown)
