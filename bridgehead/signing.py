"""Signed requests (RFC 9421, hmac-sha256) and signed documents (commands, manifests, hints).

A pairing key never signs anything itself: each use has a key of its own derived from it, so a signed document
can't pass for a request, nor what the VM signs for what the laptop signs.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from bridgehead import names
from bridgehead.errors import PairingError
from bridgehead.files import canonical_json

SKEW_S: Final = 120  # a request is good this long either side of its `created`
LABEL: Final = "bh"
REQUESTS: Final = "requests v1"  # the two uses of a pairing key
DOCUMENTS: Final = "documents v1"
_ALWAYS = ("@method", "@path", "@query", "content-digest")
# Headers that change what a request does; whoever sends one must sign it.
COVERED_HEADERS: Final = tuple(
    header.lower()
    for header in (
        names.HEADER_OFFSET,
        names.HEADER_COMPLETE,
        names.HEADER_LENGTH,
        names.HEADER_GENERATION,
        names.HEADER_REPR_DIGEST,
        names.HEADER_PART_SIZE,
    )
)
_INPUT = re.compile(rf"{LABEL}=(?P<params>\((?P<items>[^)]*)\)(?P<rest>(?:;[a-z]+=(?:\"[^\"]*\"|\d+))*))\Z")
_CREATED = re.compile(r"[0-9]{1,12}\Z")
_PARAM = re.compile(r';([a-z]+)=(?:"([^"]*)"|(\d+))')
_SIGNATURE = re.compile(rf"{LABEL}=:([A-Za-z0-9+/=]{{1,200}}):\Z")


@dataclass(frozen=True)
class Signed:
    """What the headers of a request claim, before the signature has been compared."""

    key_id: str
    nonce: str
    created: int
    components: tuple[str, ...]
    params: str
    signature: bytes


def derive(key: bytes, use: str) -> bytes:
    """The 32-byte key for one use (REQUESTS or DOCUMENTS) of a pairing key."""
    return hmac.digest(key, f"bridgehead {use}".encode(), "sha256")


def content_digest(body: bytes) -> str:
    """RFC 9530 Content-Digest of a body: `sha-256=:base64:`."""
    return digest_header(hashlib.sha256(body).digest())


def digest_header(sha256: bytes) -> str:
    return f"sha-256=:{base64.b64encode(sha256).decode()}:"


def parse_digest(header: str) -> bytes | None:
    """The 32 raw bytes of a `sha-256=:…:` header, or None when it holds none."""
    match = re.search(r"(?:^|,\s*)sha-256=:([A-Za-z0-9+/=]{44}):", header)
    if match is None:
        return None
    try:
        raw = base64.b64decode(match.group(1), validate=True)
    except ValueError:
        return None
    return raw if len(raw) == 32 else None


def sign_request(
    key: bytes,
    key_id: str,
    method: str,
    path: str,
    query: str,
    headers: Mapping[str, str],
    *,
    body_sha256: bytes | None = None,
    created: int | None = None,
    nonce: str | None = None,
) -> dict[str, str]:
    """The headers to add to a request: Content-Digest, Signature-Input and Signature.

    `path` and `query` are as they go on the wire (percent-encoded; no leading `?`). `headers` are those the
    caller sends; the ones in COVERED_HEADERS get signed. `body_sha256` defaults to that of an empty body.
    """
    digest = digest_header(body_sha256 if body_sha256 is not None else hashlib.sha256().digest())
    values = {name.lower(): value for name, value in headers.items()}
    values["content-digest"] = digest
    components = _ALWAYS + tuple(name for name in COVERED_HEADERS if name in values)
    items = " ".join(f'"{name}"' for name in components)
    params = (
        f"({items});created={int(time.time()) if created is None else created}"
        f';nonce="{nonce or secrets.token_urlsafe(16)}";keyid="{key_id}";alg="hmac-sha256"'
    )
    base = _signature_base(components, params, method, path, query, values)
    signature = base64.b64encode(hmac.digest(derive(key, REQUESTS), base, "sha256")).decode()
    return {
        names.HEADER_DIGEST: digest,
        "Signature-Input": f"{LABEL}={params}",
        "Signature": f"{LABEL}=:{signature}:",
    }


def parse_signature(headers: Mapping[str, str]) -> Signed:
    """Read the signature headers (names lower-case). Raises PairingError without saying much to a stranger."""
    match = _INPUT.match(headers.get("signature-input", "")[:2048])
    signature = _SIGNATURE.match(headers.get("signature", "")[:512])
    if match is None or signature is None:
        raise PairingError("unsigned request")
    params = {name: text or number for name, text, number in _PARAM.findall(match["rest"])}
    components = tuple(item.strip('"') for item in match["items"].split())
    if params.get("alg", "hmac-sha256") != "hmac-sha256" or not _CREATED.match(params.get("created", "")):
        raise PairingError("unsigned request")
    try:
        raw = base64.b64decode(signature.group(1), validate=True)
    except ValueError:
        raise PairingError("unsigned request") from None
    return Signed(
        key_id=params.get("keyid", ""),
        nonce=params.get("nonce", ""),
        created=int(params["created"]),
        components=components,
        params=match["params"],
        signature=raw,
    )


def verify_request(
    signed: Signed,
    key: bytes,
    method: str,
    path: str,
    query: str,
    headers: Mapping[str, str],
    *,
    now_s: float,
) -> None:
    """Check coverage, skew and signature (constant time). The caller checks the nonce and, later, the body.

    `headers` have lower-case names. Raises PairingError.
    """
    sent = {name for name in COVERED_HEADERS if name in headers}
    if not set(_ALWAYS) | sent <= set(signed.components) or len(signed.nonce) < 16:
        raise PairingError("signature does not cover the request")
    if abs(now_s - signed.created) > SKEW_S:
        raise PairingError("stale signature", hint="check the clock of this machine")
    try:
        base = _signature_base(signed.components, signed.params, method, path, query, headers)
    except UnicodeEncodeError:  # a server hands on bytes that are no text as lone surrogates; we sign none
        raise PairingError("what was signed is no text") from None
    if not hmac.compare_digest(hmac.digest(derive(key, REQUESTS), base, "sha256"), signed.signature):
        raise PairingError("wrong signature")


def _signature_base(
    components: tuple[str, ...], params: str, method: str, path: str, query: str, headers: Mapping[str, str]
) -> bytes:
    derived = {"@method": method.upper(), "@path": path or "/", "@query": "?" + query}
    lines = []
    for name in components:
        value = derived[name] if name in derived else headers.get(name)
        if value is None:
            raise PairingError("signature covers a header that is not there")
        lines.append(f'"{name}": {value.strip()}')
    lines.append(f'"@signature-params": {params}')
    return "\n".join(lines).encode()


def sign_document(key: bytes, kind: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """`{"kind", "body", "sig"}`: whoever holds the tunnel can read it and can't change or make one."""
    return {"kind": kind, "body": body, "sig": _document_signature(key, kind, body)}


def open_document_of_any(keys: Sequence[bytes], kind: str, document: object) -> dict[str, Any]:
    """`open_document` for what may be older than the last rotation: the first key that fits. Raises PairingError."""
    for key in keys[:-1]:
        with contextlib.suppress(PairingError):
            return open_document(key, kind, document)
    return open_document(keys[-1], kind, document)


def open_document(key: bytes, kind: str, document: object) -> dict[str, Any]:
    """The body of a signed document of this kind. Raises PairingError when it is not ours."""
    if not isinstance(document, dict) or document.get("kind") != kind:
        raise PairingError(f"expected a signed {kind}", hint="run the bootstrap cell again")
    body, signature = document.get("body"), document.get("sig")
    if not isinstance(body, dict) or not isinstance(signature, str):
        raise PairingError(f"a signed {kind} without body or signature")
    try:
        expected = _document_signature(key, kind, body)
    except (RecursionError, ValueError):  # nested deeper than it can be written down again
        raise PairingError(f"a signed {kind} that can't be read") from None
    if not hmac.compare_digest(expected.encode(), signature.encode(errors="replace")):
        raise PairingError(f"a {kind} whose signature is wrong", hint="it did not come from your laptop")
    return body


def _document_signature(key: bytes, kind: str, body: Mapping[str, Any]) -> str:
    message = kind.encode() + b"\n" + canonical_json(body)
    return hmac.new(derive(key, DOCUMENTS), message, hashlib.sha256).hexdigest()
