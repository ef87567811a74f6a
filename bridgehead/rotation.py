"""The next key of a pairing, derived on both sides so that nothing secret crosses the wire.

The laptop picks a random salt and sends it in its signed hints; both sides then derive the same key from the old one
(HKDF, RFC 5869, with SHA-256). Who has the old key and saw the salt can do the same: a rotation ends the life of a key
that was used for long, it does not heal one that leaked. For that, revoke and pair anew.
"""

from __future__ import annotations

import hmac
from typing import Final

KEY_BYTES: Final = 32  # of a pairing key, and of the hash: one block of HKDF's output
SALT_BYTES: Final = 32
_USE: Final = "bridgehead key rotation v1"


def successor(key: bytes, salt: bytes, old_id: str, new_id: str) -> bytes:
    """The 32-byte key that comes after `key`. The ids are part of it, so a salt is good for one rotation alone."""
    if len(key) != KEY_BYTES or len(salt) != SALT_BYTES:
        raise ValueError(f"a key of {KEY_BYTES} bytes and a salt of {SALT_BYTES}")
    return hkdf_sha256(key, salt, f"{_USE}\0{old_id}\0{new_id}".encode())


def hkdf_sha256(secret: bytes, salt: bytes, info: bytes, length: int = KEY_BYTES) -> bytes:
    """HKDF-SHA256 of RFC 5869, for up to 8160 bytes."""
    prk = hmac.digest(salt, secret, "sha256")
    okm = block = b""
    for number in range(1, -(-length // 32) + 1):
        block = hmac.digest(prk, block + info + bytes([number]), "sha256")
        okm += block
    return okm[:length]
