"""Ways from the internet to the bridge on 127.0.0.1. One file each behind one Protocol."""

from __future__ import annotations

from bridge.tunnels.base import OnNewUrl, Tunnel
from bridge.tunnels.cloudflared import Cloudflared
from bridge.tunnels.none import NoTunnel
from bridgehead.errors import UsageError
from bridgehead.queue_lines import nearest

NAMES = (NoTunnel.name, Cloudflared.name)


def make(name: str, *, on_new_url: OnNewUrl | None = None) -> Tunnel:
    """The tunnel called `name`, not started. `on_new_url` hears of each later address, from a thread.

    Raises UsageError with the nearest name.
    """
    if name == NoTunnel.name:
        return NoTunnel()
    if name == Cloudflared.name:
        return Cloudflared(on_new_url=on_new_url)
    raise UsageError(f"unknown tunnel {name!r}", hint=nearest(name, NAMES))
