"""Ways from the internet to the bridge on 127.0.0.1. One file each behind one Protocol."""

from __future__ import annotations

import importlib
from typing import cast

from bridge.tunnels.base import OnNewUrl, Tunnel
from bridge.tunnels.spec import TunnelSpec
from bridgehead.errors import UsageError
from bridgehead.queue_lines import nearest

NONE = "none"
# kind -> where its class is; a bridge loads the one that it takes alone
_CLASSES = {
    NONE: ("bridge.tunnels.none", "NoTunnel"),
    "cloudflared": ("bridge.tunnels.cloudflared", "Cloudflared"),
    "ssh": ("bridge.tunnels.ssh", "SshReverse"),
    "command": ("bridge.tunnels.command", "CommandTunnel"),
}
NAMES = tuple(_CLASSES)


def make(spec: TunnelSpec, *, on_new_url: OnNewUrl | None = None) -> Tunnel:
    """The tunnel that `spec` describes, not started. `on_new_url` hears of each later address, from a thread.

    Raises UsageError: with the nearest name for an unknown kind, and for what its kind can't be started with.
    """
    if spec.kind not in _CLASSES:
        raise UsageError(f"unknown tunnel {spec.kind!r}", hint=nearest(spec.kind, NAMES))
    module, name = _CLASSES[spec.kind]
    return cast(Tunnel, getattr(importlib.import_module(module), name)(spec, on_new_url=on_new_url))
