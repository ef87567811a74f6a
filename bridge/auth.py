"""Who may ask: every request but the health check is signed with the pairing key.

The signature is checked over what was on the wire, byte for byte, before any of it is decoded and before the body is
read. A request from 127.0.0.1 is not trusted for that: everything a tunnel brings comes from there.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Protocol

from aiohttp import web

from bridge import answers
from bridge.nonces import NonceStore
from bridgehead import signing
from bridgehead.errors import PairingError

_DUMMY_KEY = bytes(32)  # an unknown key id costs the same time as a wrong signature


class Keys(Protocol):
    def key(self, key_id: str) -> bytes | None: ...


@dataclass(frozen=True)
class Caller:
    """A request whose signature holds."""

    nonce: str
    key_id: str
    key: bytes = field(repr=False)  # the one it signed with; what is signed for it takes the same
    body_sha256: bytes
    family: str = ""  # of its pairing: the same before and after a rotation


def authenticate(request: web.BaseRequest, keys: Keys, nonces: NonceStore) -> Caller:
    """Raises Refused(401) for unsigned, wrongly signed, stale and replayed requests alike."""
    path, _, query = request.raw_path.partition("?")
    try:
        headers = _single_headers(request)
        signed = signing.parse_signature(headers)
        key = keys.key(signed.key_id)
        signing.verify_request(signed, key or _DUMMY_KEY, request.method, path, query, headers, now_s=time.time())
        digest = signing.parse_digest(headers["content-digest"])
    except (PairingError, ValueError):
        raise answers.stranger() from None
    if key is None or digest is None or not nonces.use(signed.nonce):
        raise answers.stranger()
    return Caller(signed.nonce, signed.key_id, key, digest)


def names_a_known_key(request: web.BaseRequest, keys: Keys) -> bool:
    """Whether a refused request at least names a key of ours. That proves nothing: it is good for a guess alone."""
    try:
        return keys.key(signing.parse_signature(_single_headers(request)).key_id) is not None
    except PairingError:
        return False


def _single_headers(request: web.BaseRequest) -> dict[str, str]:
    """Lower-case names; a signed header that comes twice could mean one thing here and another elsewhere."""
    headers: dict[str, str] = {}
    for name, value in request.headers.items():
        lower = name.lower()
        if lower in headers and (lower in signing.COVERED_HEADERS or lower in _SIGNATURE_HEADERS):
            raise PairingError("a signed header comes twice")
        headers[lower] = value
    return headers


_SIGNATURE_HEADERS = ("signature", "signature-input", "content-digest")
