"""What the registry is made of: entries that name their predecessors by digest, one immutable object each.

<store>/<project>/registry/entries/00000007-<sha256>.json    the entry, in its canonical form
<store>/<project>/registry/objects/<sha256>                  artifacts and evidence, by content
<store>/<project>/registry/claims/00000008/<token>           who is about to write number 8
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from bridgehead import files
from bridgehead.errors import UsageError, VerificationError
from bridgehead.records import Record

MAX_BYTES: Final = 2**20
_NAME = re.compile(r"(\d{8})-([0-9a-f]{64})\.json\Z")


class Kind(StrEnum):
    REGISTER = "register"  # a finished run's artifacts, RAW
    ADVANCE = "advance"  # one state up, with that step's evidence
    DEMOTE = "demote"  # down, with a reason
    ALIAS = "alias"  # a name moves to a model, or away from one


@dataclass(frozen=True)
class Entry(Record):
    """One act. `model` is the digest of the artifacts that it is about; `at` in seconds since 1970."""

    seq: int
    previous: list[str]  # digests of the entries with the number before; two only when writers collided
    kind: str
    model: str
    at: float
    by: str
    body: dict[str, Any] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.canonical()).hexdigest()

    @property
    def name(self) -> str:
        return f"{self.seq:08d}-{self.digest}.json"

    def canonical(self) -> bytes:
        return files.canonical_json(self.to_json())


def split_name(name: str) -> tuple[int, str] | None:
    """Number and digest of an entry's object; None for what is none."""
    match = _NAME.match(name)
    return (int(match[1]), match[2]) if match else None


def read(data: bytes, name: str) -> Entry:
    """The entry under this name. Raises VerificationError when it was changed or can't be read."""
    known = split_name(name)
    try:
        entry = Entry.from_json(json.loads(data))
    except (ValueError, RecursionError, UsageError) as error:
        why = error.message if isinstance(error, UsageError) else "not JSON"
        raise VerificationError(f"entry {name[:17]} of the registry can't be read: {why}") from None
    if known is None or entry.seq != known[0] or hashlib.sha256(data).hexdigest() != known[1]:
        raise VerificationError(
            f"entry {name[:17]} of the registry was changed since it was written",
            hint="restore it from another laptop's cache: remove the object, then run bridgehead models there",
        )
    return entry


def ordered(found: list[Entry]) -> list[Entry]:
    """In the one order that every reader sees, whichever way the entries came."""
    return sorted(found, key=lambda entry: (entry.seq, entry.digest))


def check_chain(found: list[Entry]) -> list[str]:
    """What is wrong with the chain, in words; empty when every entry names the ones before it."""
    by_seq: dict[int, set[str]] = {}
    for entry in found:
        by_seq.setdefault(entry.seq, set()).add(entry.digest)
    problems = []
    for entry in ordered(found):
        before = by_seq.get(entry.seq - 1, set())
        if entry.seq == 1 and not entry.previous:
            continue
        missing = [digest for digest in entry.previous if digest not in before]
        if missing or not entry.previous:
            problems.append(f"entry {entry.seq} follows one that is not there: {(missing or ['none'])[0][:12]}")
    collided = [str(seq) for seq, digests in sorted(by_seq.items()) if len(digests) > 1]
    if collided:
        problems.append(f"two writers collided at {', '.join(collided)}: both entries count, in order of their digests")
    return problems
