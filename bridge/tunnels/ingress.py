"""Where cloudflared sends what comes for a host: its ingress rules, as its metrics server tells them at /config."""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass
from typing import Any

from bridgehead import names

_LOOPBACK = ("127.0.0.1", "localhost", "0.0.0.0")  # not ::1: the bridge does not listen there
# One path of each kind that a VM asks for: a rule may take some of them elsewhere.
_PATHS = (names.PROBE_PATH, names.QUEUE_PATH, f"{names.SERVE_PREFIX}x", f"{names.IN_PREFIX}x/y", f"{names.VMS_PREFIX}x")


@dataclass(frozen=True)
class Route:
    """`service` is what answers for the host; "" when no rule is known. `ours`: that is the bridge, for every path."""

    service: str
    ours: bool
    told: bool  # whether a configuration has arrived; a tunnel that is configured from outside begins with none


def route_of(answer: dict[str, Any], host: str, port: int) -> Route:
    """The route of `host` in an answer of /config: cloudflared takes the first rule that fits host and path."""
    told = answer.get("version", -1) != -1
    rules = (answer.get("config") or {}).get("ingress") if isinstance(answer.get("config"), dict) else None
    rules = [rule for rule in rules if isinstance(rule, dict)] if isinstance(rules, list) else []
    for path in _PATHS:
        service = next((str(rule.get("service", "")) for rule in rules if _fits(rule, host, path)), "")
        if service.rstrip("/") not in {f"http://{name}:{port}" for name in _LOOPBACK}:
            return Route(service, ours=False, told=told)
    return Route(f"http://127.0.0.1:{port}", ours=True, told=told)


def _fits(rule: dict[str, Any], host: str, path: str) -> bool:
    name = str(rule.get("hostname") or "").lower()
    if name.startswith("*."):
        if not host.endswith(name[1:]):
            return False
    elif name not in ("", "*", host):
        return False
    pattern = rule.get("path")
    if not isinstance(pattern, str) or not pattern:
        return True
    with contextlib.suppress(re.error):  # Go's dialect differs in corners; what can't be read may well fit
        return re.search(pattern, path) is not None
    return True
