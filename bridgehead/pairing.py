"""The pairing code: the one secret, pasted into one notebook cell or kept in one notebook secret."""

from __future__ import annotations

import base64
import json
import re
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from bridgehead import names
from bridgehead.errors import PairingError

_PREFIX = "bh1."
_URL = re.compile(r"https?://[A-Za-z0-9.\-\[\]:]+(?:/[A-Za-z0-9._~\-/]*)?\Z")
FORMER_MAX = 4
_URL_MAX = 500
_HINT = "copy the whole code again: bridgehead notebook"


@dataclass(frozen=True)
class Pairing:
    """Where the bridge is, the key (32 bytes), the SHA-256 of the boot archive (hex), and where the store lies.

    `store` is the folder on the VM that the project names, to find the ship there while the laptop is off; "" when it
    names none, and in the codes of before. `allow_sh` says whether this VM runs shell commands at all. `former` are
    the keys that this one was rotated from, newest first: good for reading what lies in the store, and for no request.
    `seq` numbers the address among those that the laptop has announced: the higher one counts; 0 in codes of before.
    """

    url: str
    key_id: str
    key: bytes = field(repr=False)
    boot_sha256: str
    protocol: int = names.PROTOCOL
    store: str = ""
    allow_sh: bool = True
    former: tuple[bytes, ...] = field(default=(), repr=False)
    seq: int = 0

    @property
    def document_keys(self) -> tuple[bytes, ...]:
        """The keys that a document in the store may be signed with."""
        return (self.key, *self.former)

    def encode(self) -> str:
        body: dict[str, object] = {
            "v": self.protocol,
            "url": self.url,
            "kid": self.key_id,
            "key": _pad_off(self.key),
            "boot": self.boot_sha256,
        }
        if self.store:
            body["store"] = self.store
        if not self.allow_sh:
            body["sh"] = False
        if self.former:
            body["former"] = [_pad_off(key) for key in self.former[:FORMER_MAX]]
        if self.seq:
            body["seq"] = self.seq
        raw = json.dumps(body, separators=(",", ":")).encode()
        return _PREFIX + _pad_off(raw)


def is_usable_url(url: str) -> bool:
    """Whether `url` can be a bridge's address: http or https, a host, perhaps a port and a path, and nothing else."""
    if len(url) > _URL_MAX or _URL.match(url) is None:
        return False
    try:
        parts = urlsplit(url)
        return bool(parts.hostname) and parts.port != 0  # a port that is none raises too
    except ValueError:
        return False


def decode(code: str) -> Pairing:
    """Read a pairing code. Raises PairingError, whose text never holds any part of the code."""
    text = "".join(code.split())
    if not text.startswith(_PREFIX):
        raise PairingError("this is not a pairing code: it does not start with bh1.", hint=_HINT)
    try:
        body = json.loads(_unpad(text[len(_PREFIX) :]))
        key = _unpad(body["key"])
        store = str(body.get("store") or "")
        pairing = Pairing(
            str(body["url"]),
            str(body["kid"]),
            key,
            str(body["boot"]),
            int(body["v"]),
            store,
            allow_sh=body.get("sh", True) is True,
            former=tuple(_unpad(text) for text in body.get("former", [])[:FORMER_MAX]),
            seq=int(body.get("seq") or 0),
        )
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        raise PairingError("the pairing code is cut or damaged", hint=_HINT) from None
    if any(len(each) != 32 for each in pairing.document_keys) or not re.fullmatch(r"[0-9a-f]{64}", pairing.boot_sha256):
        raise PairingError("the pairing code is cut or damaged", hint=_HINT)
    if store and not (store.startswith("/") and store.isprintable()):
        raise PairingError("the pairing code names no usable store", hint=_HINT)
    if not is_usable_url(pairing.url) or not re.fullmatch(r"[A-Za-z0-9_-]{4,64}", pairing.key_id):
        raise PairingError("the pairing code names no usable bridge address", hint=_HINT)
    if pairing.protocol != names.PROTOCOL:
        raise PairingError(
            f"the code is for protocol {pairing.protocol}, this is {names.PROTOCOL}",
            hint="run the bootstrap cell again",
        )
    return pairing


def _pad_off(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def _unpad(text: str) -> bytes:
    return base64.b64decode(text.encode() + b"=" * (-len(text) % 4), altchars=b"-_", validate=True)
