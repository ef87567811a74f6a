"""What cloudflared's last lines and exit codes mean, in plain words with a next step.

The lines are those of cloudflared 2026.8: of its source, and as seen without a network.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from bridge.tunnels.ingress import Route
from bridgehead.errors import BridgeDownError


class RateLimited(BridgeDownError):
    """Cloudflare wants fewer quick tunnels from this address; asking again at once makes it worse."""


class MetricsPortTaken(BridgeDownError):
    """Another program was faster; with another port it will start."""


class NoTokenFile(BridgeDownError):
    """A cloudflared of before April 2025: it takes the token from its environment."""


_NO_NETWORK = "check the network of this machine, or start with --tunnel none"
_LATER = "try again in a few minutes; see www.cloudflarestatus.com"
_FIREWALL = "outgoing connections to port 7844 must be allowed; try another network"
_TOKEN = "copy the token again: dashboard, Zero Trust, Networks, Tunnels, your tunnel, “Add a replica”"
_OPTION = r"flag provided but not defined: (\S+)"
# Looked for in this order, each over the whole tail: the last line alone often hides the cause.
_KNOWN = [
    (re.compile(pattern), kind, message, hint)
    for pattern, kind, message, hint in (
        (
            r"flag provided but not defined: -token-file",
            NoTokenFile,
            "this cloudflared does not know the option -token-file",
            "update cloudflared",
        ),
        (_OPTION, BridgeDownError, "this cloudflared does not know the option {0}", "update cloudflared"),
        (
            r"error code: 1015|429 Too Many Requests",
            RateLimited,
            "Cloudflare makes no new quick tunnel for this address now: too many were asked for",
            "wait ten minutes before you start again, or use a named tunnel: [tunnel] hostname and token_file",
        ),
        (
            r"failed to request quick Tunnel: .*lookup",
            BridgeDownError,
            "cloudflared can't find api.trycloudflare.com: no network, or DNS does not answer",
            _NO_NETWORK,
        ),
        (
            r"failed to request quick Tunnel",
            BridgeDownError,
            "cloudflared can't reach api.trycloudflare.com",
            _NO_NETWORK,
        ),
        (
            r"failed to (?:unmarshal quick Tunnel|read quick-tunnel response)",
            BridgeDownError,
            "Cloudflare's quick tunnel service answered with something that is not a tunnel",
            _LATER,
        ),
        (
            r"failed to parse quick Tunnel ID",
            BridgeDownError,
            "Cloudflare refused to make a quick tunnel and did not say why",
            _LATER,
        ),
        (
            r"Failed to read token file: (.*)",
            BridgeDownError,
            "cloudflared can't read the token file: {0}",
            "[tunnel] token_file must name a file that you can read",
        ),
        (
            r"Provided Tunnel token is not valid",
            BridgeDownError,
            "cloudflared says that what is in the token file is no token",
            _TOKEN,
        ),
        (
            r"Unauthorized: (?:Invalid tunnel secret|Tunnel not found|Failed to get tunnel)",
            BridgeDownError,
            "Cloudflare does not accept the token: the tunnel was deleted, or its token was changed",
            _TOKEN,
        ),
        (
            r"edge discovery|looking up Cloudflare edge IPs",
            BridgeDownError,
            "the addresses of Cloudflare's edge can't be looked up",
            "DNS must answer SRV queries for argotunnel.com; try another DNS server",
        ),
        (
            r"failed to bind to address",
            MetricsPortTaken,
            "another program took the port that cloudflared's metrics server was to use",
            "start again",
        ),
        (
            r"error parsing YAML in config file",
            BridgeDownError,
            "cloudflared can't read its configuration file",
            "update cloudflared",
        ),
        (
            r"ERROR: (Ensure your DNS resolver can resolve '[^']*')",
            BridgeDownError,
            "cloudflared's own check found no way out: DNS does not know Cloudflare's edge",
            "try another DNS server, or another network",
        ),
        (
            r"SUMMARY: Environment has critical failures",
            BridgeDownError,
            "cloudflared's own check found no way out to Cloudflare's edge",
            _FIREWALL,
        ),
        (
            r"Failed to dial a quic connection|failed to dial to edge with quic|UDP to port 7844",
            BridgeDownError,
            "cloudflared can't connect to Cloudflare's edge over QUIC",
            'UDP to port 7844 must be allowed, or set protocol = "http2" in [tunnel]',
        ),
        (
            r"Unable to establish connection with Cloudflare edge|Failed to dial|DialContext error",
            BridgeDownError,
            "cloudflared can't connect to Cloudflare's edge",
            "outgoing TCP to port 7844 must be allowed; try another network",
        ),
        (
            r"Register tunnel error from server side error=\"([^\"]{1,200})\"",
            BridgeDownError,
            "Cloudflare does not accept the tunnel: {0}",
            _LATER,
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


def explain_route(route: Route | None, host: str, target: str, *, quick: bool) -> str:
    """One sentence on a tunnel that leads elsewhere; "" when it leads to the bridge."""
    service = route.service if route is not None else ""
    if route is not None and route.ours:
        return ""
    if quick:
        return f"cloudflared leads to {service or 'nowhere that it tells of'}, not to the bridge at {target}"
    if not service or not (route and route.told):
        return f"the tunnel is connected, but Cloudflare's dashboard has no route for {host}"
    return f"Cloudflare's dashboard sends {host} to {service}, and the bridge is at {target}"


def route_error(sentence: str, host: str, target: str, *, quick: bool) -> BridgeDownError:
    port = target.rpartition(":")[2]
    hint = (
        "a cloudflared configuration on this machine takes over; move ~/.cloudflared/config.yml away"
        if quick
        else f"Zero Trust, Networks, Tunnels, your tunnel, “Public hostname”: {host} must lead to http://localhost:{port}"
    )
    return BridgeDownError(sentence, hint=hint)


def _known(lines: Sequence[str]) -> BridgeDownError | None:
    text = "\n".join(lines)
    for pattern, kind, message, hint in _KNOWN:
        match = pattern.search(text)
        if match is not None:
            return kind(message.format(*match.groups()), hint=hint)
    return None
