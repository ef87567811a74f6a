"""Signs a bundle's manifest with an offline Ed25519 key, and checks such a signature; both need `cryptography`.

The manifest holds every file's SHA-256, so what is signed is the whole bundle. The private key stays on a laptop: no VM
ever sees one. Ed25519 through `cryptography` and not the package model-signing: that brings 35 packages and 69 MB, of
which all but the key mode needs a network, and its fresh install of version 1.1.1 does not import.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import stat
from pathlib import Path
from typing import Any, Final

from bridgehead import files, names
from bridgehead.errors import NotFoundError, UsageError, VerificationError

SUFFIX: Final = ".sig"  # of an archive's signature, which lies beside it
PUBLIC_SUFFIX: Final = ".pub"
ALGORITHM: Final = "ed25519"
_CONTEXT = b"bridgehead bundle manifest, version 1\n"  # so that the key's signatures on other things mean nothing here
_MAX_BYTES = 64 * 1024
_SHOWN = 64  # characters of what a signature says of itself
_AGAIN = "fetch the bundle again, or ask who signed it"
_INSTALL = "pip install 'bridgehead[sign]'"


def make_key(path: Path) -> Path:
    """Write a new private key (0600, PEM) and its public half beside it; returns the latter's path.

    Raises UsageError when something is there already.
    """
    crypto = _cryptography()
    public_path = path.with_name(path.name + PUBLIC_SUFFIX)
    for place in (path, public_path):
        if place.exists():
            raise UsageError(f"{place} is there already", hint="name a new file: a key that signed is never replaced")
    private = crypto.Ed25519PrivateKey.generate()
    serial = crypto.serialization
    secret = private.private_bytes(serial.Encoding.PEM, serial.PrivateFormat.PKCS8, serial.NoEncryption())
    public = private.public_key().public_bytes(serial.Encoding.PEM, serial.PublicFormat.SubjectPublicKeyInfo)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(fd, "wb") as handle:
            handle.write(secret)
            handle.flush()
            os.fsync(handle.fileno())
        files.write_atomic(public_path, public)
    except OSError:  # half a pair would be in the way of the next try, and has signed nothing
        path.unlink(missing_ok=True)
        raise
    return public_path


def sign(manifest: Path, target: Path, private_key: Path) -> str:
    """Write the signature of `manifest` to `target`; returns the key's id.

    Raises UsageError for a key that is none, and for one that others can read.
    """
    crypto = _cryptography()
    key = _load(private_key, lambda raw: crypto.serialization.load_pem_private_key(raw, password=None))
    if not isinstance(key, crypto.Ed25519PrivateKey):
        raise UsageError(f"{private_key} is no private Ed25519 key", hint="bridgehead bundle keygen FILE makes one")
    _refuse_open(private_key)
    data = manifest.read_bytes()
    record = {
        "v": names.RECORD_VERSION,
        "algorithm": ALGORITHM,
        "key_id": _key_id(key.public_key(), crypto),
        "manifest_sha256": hashlib.sha256(data).hexdigest(),
        "signature": base64.b64encode(key.sign(_CONTEXT + data)).decode(),
    }
    files.write_json(target, record)
    return str(record["key_id"])


def check(manifest: Path, signature: Path, public_key: Path) -> str:
    """The id of the key, when `signature` is its on these very bytes. Raises VerificationError, UsageError."""
    crypto = _cryptography()
    key = _load(public_key, crypto.serialization.load_pem_public_key)
    if not isinstance(key, crypto.Ed25519PublicKey):
        raise UsageError(f"{public_key} is no public Ed25519 key", hint=f"the file that ends in {PUBLIC_SUFFIX}")
    record = _record(signature)
    if record is None:
        raise VerificationError("the bundle is not signed", hint="bridgehead bundle sign PATH --key FILE")
    if record.get("algorithm") != ALGORITHM:
        kind = repr(record.get("algorithm"))[:_SHOWN]
        raise VerificationError(f"the signature is of kind {kind}; this checks {ALGORITHM}", hint=_AGAIN)
    mine = _key_id(key, crypto)
    if record.get("key_id") != mine:
        theirs = key_id_of(signature) or "without a name"
        hint = f"the {PUBLIC_SUFFIX} file of the key that it was signed with; of nobody you trust: do not use it"
        raise VerificationError(f"the bundle is signed with key {theirs}, and this is key {mine}", hint=hint)
    try:
        key.verify(base64.b64decode(str(record.get("signature")), validate=True), _CONTEXT + manifest.read_bytes())
    except (crypto.InvalidSignature, binascii.Error, ValueError):
        raise VerificationError(
            "the signature does not fit the manifest: the bundle was changed after it was signed", hint=_AGAIN
        ) from None
    return mine


def key_id_of(signature: Path) -> str:
    """The key's id as an unchecked signature says; empty when there is none."""
    record = _record(signature) or {}
    told = record.get("key_id")
    return told if isinstance(told, str) and len(told) <= _SHOWN and told.isprintable() else ""


def _record(path: Path) -> dict[str, Any] | None:
    found = files.plain_stat(path)
    if found is None or found.st_size > _MAX_BYTES:
        return None
    record = files.read_json(path)
    return record if isinstance(record, dict) else None


def _refuse_open(path: Path) -> None:
    """Raises UsageError for a private key that others can read: whoever copied it signs as its owner does."""
    if os.name == "posix" and stat.S_IMODE(path.stat().st_mode) & 0o077:
        raise UsageError(f"others can read {path}", hint=f"chmod 600 {path}, or a new key if somebody may have")


def _load(path: Path, read: Any) -> Any:
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise UsageError(f"{path} is too long for a key")
        return read(path.read_bytes())
    except FileNotFoundError:
        raise NotFoundError(f"no key at {path}", hint="bridgehead bundle keygen FILE makes one") from None
    except (ValueError, TypeError, _cryptography().UnsupportedAlgorithm):  # TypeError: it is encrypted
        raise UsageError(f"{path} is no key that can be read", hint="a PEM file without a password") from None


def _key_id(public: Any, crypto: Any) -> str:
    serial = crypto.serialization
    return hashlib.sha256(public.public_bytes(serial.Encoding.Raw, serial.PublicFormat.Raw)).hexdigest()[:16]


class _Cryptography:
    """What is used of the package, or the words for its absence."""

    def __init__(self) -> None:
        from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

        self.InvalidSignature = InvalidSignature
        self.UnsupportedAlgorithm = UnsupportedAlgorithm
        self.serialization = serialization
        self.Ed25519PrivateKey = Ed25519PrivateKey
        self.Ed25519PublicKey = Ed25519PublicKey


def _cryptography() -> Any:
    try:
        return _Cryptography()
    except ImportError:
        raise UsageError("signatures need the package cryptography", hint=_INSTALL) from None
