"""What the durable store stands on: whole objects under keys. One file per kind of storage implements it.

A key is a relative path in our own safe characters (bridgehead.paths.check_relative), such as
`demo/runs/pretrain-0001-ab12cd/checkpoints/slot-a/COMMIT.json`. Objects are written whole and replaced whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable


@dataclass(frozen=True)
class Stored:
    """One object as the store itself describes it. A digest is empty where the store does not tell."""

    key: str
    size: int
    md5: str = ""
    sha256: str = ""


@dataclass(frozen=True)
class Room:
    """How the store is. Bytes; None where it does not tell."""

    free_bytes: int | None = None
    trash_bytes: int | None = None
    error: str = ""  # empty: it took a canary, gave it back and removed it
    denied: bool = False  # the error is about credentials: they are missing, expired or revoked


@runtime_checkable
class PutsMany(Protocol):
    """A store that takes many small files for less than each of them costs alone."""

    def put_many(self, items: Sequence[tuple[str, Path]]) -> list[Stored]:
        """As `put` for each (key, source), in order. After an error each key holds what it held, or the new whole."""
        ...


@runtime_checkable
class Empties(Protocol):
    """A store whose removed objects lie in a trash that counts, with what the far end last had of them."""

    def empty(self, key: str) -> bool:
        """Cut the object to nothing and leave it, so that the far end hears of that; False when it may be deleted."""
        ...


class ObjectStore(Protocol):
    """Methods may raise StoreError (StoreFull, StoreDenied, StoreGone) and hang as long as the storage does.

    None leaves half an object under its key.
    """

    kind: str
    where: str  # for people: a path, a bucket; never a secret
    proves: bool  # a `put` that returns, or a `find`, tells what the far end really holds: level "confirmed"

    def put(self, key: str, source: Path) -> Stored:
        """Store a whole file, replacing what was there; returns size and both digests of what was sent."""
        ...

    def put_bytes(self, key: str, data: bytes) -> None:
        """The same for a small record."""
        ...

    def get(self, key: str, target: Path) -> Stored:
        """Write the object to `target`, fsynced; size and sha256 are of what was received. NotFoundError."""
        ...

    def read(self, key: str, max_bytes: int) -> bytes | None:
        """A small object, None when there is none. VerificationError when it is larger than `max_bytes`."""
        ...

    def find(self, key: str) -> list[Stored]:
        """What lies under exactly this key: usually one, none, or several on a drive that allows equal names."""
        ...

    def look(self, key: str) -> list[Stored]:
        """The same without reading the object: with a digest only where the store keeps one beside it."""
        ...

    def list(self, prefix: str) -> list[str]:
        """The names directly below `prefix` (folders and objects), sorted; empty when there is nothing."""
        ...

    def delete(self, key: str) -> None:
        """Remove for good, past any trash that counts against the quota; nothing when it is not there."""
        ...

    def probe(self) -> Room:
        """Write, read back and remove a canary. Never raises."""
        ...
