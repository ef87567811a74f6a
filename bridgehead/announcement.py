"""Where the bridge is now, signed and numbered, so that its address may change at any time.

The laptop signs it with the pairing's key, so nobody else can move a VM to another bridge. The number only grows, so an
old one can't be replayed. A pairing code holds a number too: of the two the higher one counts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from bridgehead import names, signing
from bridgehead.errors import PairingError
from bridgehead.pairing import Pairing, is_usable_url
from bridgehead.records import is_number

KIND: Final = "address"
MAX_BYTES: Final = 4096  # of one as it lies in the store
_SEQ_MAX: Final = 2**53  # what JSON holds exactly everywhere


@dataclass(frozen=True)
class Announcement:
    """`seq` grows with each one of a laptop; `at` is in seconds since 1970 and for people alone."""

    project: str
    url: str
    seq: int
    at: float

    @property
    def host(self) -> str:
        return host_of(self.url)

    def body(self) -> dict[str, Any]:
        return {"v": names.RECORD_VERSION, **dataclasses.asdict(self)}

    def signed(self, key: bytes) -> dict[str, Any]:
        """The document for VMs that were paired with this key."""
        return signing.sign_document(key, KIND, self.body())


def read(body: object) -> Announcement:
    """The announcement in a document's body. Raises PairingError for one that makes no sense or is unsafe to follow."""
    if not isinstance(body, dict) or body.get("v") != names.RECORD_VERSION:
        raise PairingError("an address of another version", hint="run the bootstrap cell again")
    project, url, seq, at = (body.get(name) for name in ("project", "url", "seq", "at"))
    if not isinstance(project, str) or type(seq) is not int or not 0 < seq < _SEQ_MAX:
        raise PairingError("an address without project or number")
    if not isinstance(url, str) or not is_usable_url(url):
        raise PairingError("an address that is no usable one")
    moment = float(at) if is_number(at) else 0.0
    return Announcement(project, url, seq, moment)


def opened(keys: Sequence[bytes], document: object) -> Announcement:
    """The announcement in a document that one of these keys signed. Raises PairingError when none did."""
    try:
        return read(signing.open_document_of_any(keys, KIND, document))
    except RecursionError:
        raise PairingError("an address that is nested without end") from None


def next_seq(last: int, now_s: float) -> int:
    """The number after `last`. At least the time, so a laptop whose private folder was restored does not go back."""
    return max(last + 1, int(now_s))


def applied(pairing: Pairing, record: object) -> Pairing:
    """The pairing at the announced address, when `record` ({"document"}) holds a newer one of its laptop.

    A key that was rotated since still counts: the number guards against what is old.
    """
    if not isinstance(record, dict):
        return pairing
    try:
        told = opened(pairing.document_keys, record.get("document"))
    except PairingError:
        return pairing
    return dataclasses.replace(pairing, url=told.url, seq=told.seq) if told.seq > pairing.seq else pairing


def host_of(url: str) -> str:
    """For people: host and port."""
    return urlsplit(url).netloc
