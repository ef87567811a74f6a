"""What answered in the bridge's place, or why nothing did, in plain words with a next step.

Cloudflare's codes: its "error responses" page; with `Accept: application/json` it answers RFC 9457 objects that hold
`cloudflare_error` and `error_code`, to others a page whose title holds the code.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import urlsplit

import aiohttp

_PAGE_CODE = re.compile(
    rb"(?:error code: |<title>[^<]{0,80}?\|? ?(?:Error )?|Error </span>\s*<span>|Error )(1\d{3}|5\d{2})"
)
_PRINTABLE_MAX = 60
_SPREADING = "a fresh name may take a minute to be known everywhere"
# Cloudflare's code -> (what it means, next step). All of these may be over in a moment.
_CLOUDFLARE = {
    1033: ("the name is known, but no tunnel is connected to it", _SPREADING),
    1016: ("Cloudflare knows the name and not where it leads", "look at the DNS entry of the host name"),
    1000: ("the host name points at Cloudflare itself", "look at the DNS entry of the host name"),
    1015: ("too many requests came from this address", "wait ten minutes"),
    502: ("the tunnel can't reach the bridge", "look at what the tunnel leads to"),
    503: ("the tunnel has no route for this host name", "add one that leads to the bridge"),
    504: ("the bridge did not answer the tunnel in time", "try again"),
    520: ("the tunnel got no proper answer from the bridge", "look at what the tunnel leads to"),
    521: ("what the host name leads to refuses the connection", "look at what the tunnel leads to"),
    522: ("what the host name leads to does not answer", "look at the DNS entry of the host name"),
    523: ("what the host name leads to can't be reached", "look at the DNS entry of the host name"),
    524: ("the bridge did not answer the tunnel in time", "try again"),
    530: ("the name is known, but no tunnel is connected to it", _SPREADING),
}
Told = tuple[str, str, bool]  # message, hint, whether it may go away by itself


@dataclass(frozen=True)
class Answered:
    """An answer of whoever it was."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def header(self, name: str) -> str:
        """As text that may be shown."""
        value = next((value for key, value in self.headers.items() if key.lower() == name), "")
        return "".join(char if char.isprintable() else "?" for char in value[:_PRINTABLE_MAX])

    @cached_property
    def document(self) -> Any:
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            return None


def not_ours(url: str, answered: Answered) -> Told:
    """Words for an answer that the bridge did not give."""
    host, status = urlsplit(url).netloc, answered.status
    code = _cloudflare_code(answered)
    if code:
        meaning, hint = _CLOUDFLARE.get(code, (f"the page of its error {code}", "see www.cloudflarestatus.com"))
        shown = f"{status}" if code == status else f"{status}, code {code}"
        return f"Cloudflare answers for {host} ({shown}): {meaning}", hint, True
    if 300 <= status < 400:
        where = urlsplit(answered.header("location")).netloc or "another page"
        login = where.endswith(".cloudflareaccess.com")
        what = "asks for a login" if login else f"sends on to {where}"
        hint = "a VM can't log in: let the host name bypass Access" if login else "the address must lead to the bridge"
        return f"{host} {what} ({status})", hint, False
    if _is_bridgehead(answered):
        return (
            f"another bridge answers at {host}: it does not have this project's key",
            "another project's bridge, or the same tunnel on another machine? stop that one",
            False,
        )
    if status == 421:
        return (
            f"what answers at {host} does not go by that name (421)",
            "another project's bridge, or a proxy before ours that changes the Host header",
            False,
        )
    server = answered.header("server")
    by = f" ({server}, {status})" if server else f" ({status})"
    retry = status in (404, 408, 429) or status >= 500
    return f"another server answers at {host}{by}, not the bridge", "the address must lead to the bridge", retry


def not_asked(url: str, error: Exception) -> Told:
    """Words for a request that got no answer at all."""
    host = urlsplit(url).netloc
    if isinstance(error, aiohttp.ClientProxyConnectionError | aiohttp.ClientHttpProxyError):
        status = f" ({error.status})" if isinstance(error, aiohttp.ClientHttpProxyError) else ""
        return f"the proxy of this machine does not lead to {host}{status}", "look at HTTPS_PROXY and NO_PROXY", True
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return f"DNS does not know {host}", f"{_SPREADING}; if it stays so, try another DNS server", True
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        reason = getattr(error.certificate_error, "verify_message", "") or "it does not fit"
        hint = "if a proxy looks into TLS here, set SSL_CERT_FILE; else look at the host name's certificate"
        return f"the certificate of {host} is not trusted: {reason}", hint, False
    if isinstance(error, aiohttp.ClientSSLError):
        return f"TLS with {host} fails", "the host name needs a certificate: one level below your domain has one", True
    if isinstance(error, TimeoutError):
        return f"{host} does not answer in time", "is the network slow, or a firewall silent?", True
    if isinstance(error, aiohttp.ClientConnectorError):
        return f"{host} can't be reached: {error.strerror or 'no connection'}", "is this machine online?", True
    return f"the answer of {host} is cut or no HTTP ({type(error).__name__})", "look at what the address leads to", True


def _cloudflare_code(answered: Answered) -> int:
    """The code of an error that Cloudflare made itself, 0 when it is not one."""
    document = answered.document
    if isinstance(document, dict) and document.get("cloudflare_error") is True:
        code = document.get("error_code")
        return code if type(code) is int else answered.status
    if answered.status < 500 and answered.status != 429 or "cloudflare" not in answered.header("server").lower():
        return 0
    match = _PAGE_CODE.search(answered.body)
    return int(match[1]) if match else answered.status


def _is_bridgehead(answered: Answered) -> bool:
    """Our own way to answer a stranger, or a document of a bridge with another key."""
    document = answered.document
    if not isinstance(document, dict):
        return False
    error = document.get("error")
    return (
        answered.header("server") == "bridgehead"
        or document.get("kind") == "probe"
        or (answered.status == 401 and isinstance(error, dict) and error.get("code") == "pairing")
    )
