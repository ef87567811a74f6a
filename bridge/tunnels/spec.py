"""[tunnel] of bridgehead.toml: which way leads from the internet to the bridge, and what it needs to know."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class TunnelSpec:
    """Secrets are never in it: a token is named by the file that holds it."""

    kind: str = "none"  # none, cloudflared, ssh, command
    url: str = ""  # none (LAN), ssh, command: a public address that is known beforehand; {port} is the remote port
    # cloudflared
    hostname: str = ""  # of a named tunnel; empty: a quick one, with another name at each start
    token_file: str = ""  # of a named tunnel
    protocol: str = "http2"  # auto, http2 or quic
    # ssh
    host: str = ""  # user@relay, or a name from ~/.ssh/config
    remote_port: int = 0  # 0: the relay chooses
    bind: str = "127.0.0.1"  # where the relay listens
    options: tuple[str, ...] = field(default=())  # more of ssh's own -o options
    # command
    command: tuple[str, ...] = field(default=())  # {port} stands for the bridge's port
    url_pattern: str = ""  # a regular expression for the address in what the program prints
    url_file: str = ""  # or the file that the program writes it into
