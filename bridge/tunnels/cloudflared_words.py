"""What cloudflared's last lines and exit codes mean, in plain words with a next step."""

from __future__ import annotations

import re
from collections.abc import Sequence

from bridgehead.errors import BridgeDownError

_NO_NETWORK = "check the network of this machine, or start with --tunnel none"
# Looked for in this order, each over the whole tail: the last line alone often hides the cause.
_KNOWN = [
    (re.compile(pattern), message, hint)
    for pattern, message, hint in (
        (
            r"flag provided but not defined: (\S+)",
            "this cloudflared does not know the option {0}",
            "update cloudflared",
        ),
        (
            r"error code: 1015|429 Too Many Requests",
            "Cloudflare makes no new quick tunnel for this address now: too many were asked for",
            "wait a few minutes and start again",
        ),
        (
            r"failed to request quick Tunnel: .*lookup",
            "cloudflared can't find api.trycloudflare.com: no network, or DNS does not answer",
            _NO_NETWORK,
        ),
        (r"failed to request quick Tunnel", "cloudflared can't reach api.trycloudflare.com", _NO_NETWORK),
        (
            r"failed to unmarshal quick Tunnel",
            "Cloudflare's quick tunnel service answered with something that is not a tunnel",
            "try again in a few minutes; see www.cloudflarestatus.com",
        ),
        (
            r"failed to parse quick Tunnel ID",
            "Cloudflare refused to make a quick tunnel and did not say why",
            "try again in a few minutes; see www.cloudflarestatus.com",
        ),
        (
            r"edge discovery|looking up Cloudflare edge IPs",
            "the tunnel got its name, but the addresses of Cloudflare's edge can't be looked up",
            "DNS must answer SRV queries for argotunnel.com; try another DNS server",
        ),
        (
            r"failed to bind to address",
            "another program took the port that cloudflared's metrics server was to use",
            "start again",
        ),
        (r"error parsing YAML in config file", "cloudflared can't read its configuration file", "update cloudflared"),
        (
            r"Unable to establish connection with Cloudflare edge|Failed to dial|DialContext error",
            "cloudflared can't connect to Cloudflare's edge",
            "outgoing TCP to port 7844 must be allowed; try another network",
        ),
    )
]


def explain_exit(code: int, lines: Sequence[str]) -> BridgeDownError:
    """Why it ended. Exit code 0 is an error too: an unknown option ends so."""
    known = _known(lines)
    if known is not None:
        return known
    last = f": {lines[-1][:200]}" if lines else " and said nothing"
    how = f"signal {-code}" if code < 0 else f"exit code {code}"
    return BridgeDownError(f"cloudflared ended with {how}{last}", hint="run `cloudflared tunnel` by hand to see more")


def explain_silence(timeout_s: float, lines: Sequence[str], *, named: bool) -> BridgeDownError:
    """Why there is no working address after `timeout_s`, though it lives."""
    known = _known(lines)
    if known is not None:
        return known
    what = "has a name but no connection to Cloudflare's edge" if named else "has got no name from Cloudflare"
    return BridgeDownError(f"after {timeout_s:g} s the tunnel {what}", hint=_NO_NETWORK)


def _known(lines: Sequence[str]) -> BridgeDownError | None:
    text = "\n".join(lines)
    for pattern, message, hint in _KNOWN:
        match = pattern.search(text)
        if match is not None:
            return BridgeDownError(message.format(*match.groups()), hint=hint)
    return None
