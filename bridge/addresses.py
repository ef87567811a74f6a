"""What a request asks for: path and query, decoded once, and refused rather than repaired.

`raw` is what was on the wire and what the signature covers. Frameworks decode, join and normalise it in ways that
differ; here it is decoded once, and what would decode into a separator is refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import parse_qsl, unquote

from bridgehead.errors import UsageError

_HIDDEN = re.compile(r"%(?:2f|5c|00)|%(?![0-9a-f]{2})|[\\\0]", re.IGNORECASE)
_VM_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}\Z")
_COUNT = re.compile(r"[0-9]{1,15}\Z")


@dataclass(frozen=True)
class Address:
    """`path` begins with a slash; names below /in/ and /serve/ still have to pass `paths.check_relative`."""

    path: str
    query: Mapping[str, str]


def read_address(raw: str) -> Address:
    """Raises UsageError for hidden separators, non-ASCII text and parameters that come twice."""
    path, _, query = raw.partition("?")
    if not path.startswith("/") or _HIDDEN.search(path):
        raise UsageError("not a path that this bridge serves")
    try:
        decoded = unquote(path, errors="strict")
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=True, max_num_fields=20) if query else []
    except ValueError:
        raise UsageError("the path or the query can't be decoded") from None
    if len({name for name, _ in pairs}) < len(pairs):
        raise UsageError("a query parameter comes twice")
    return Address(decoded, dict(pairs))


def vm_id(text: str | None) -> str:
    if text is None or not _VM_ID.match(text):
        raise UsageError("vm: not the id of a VM")
    return text


def count(name: str, text: str | None) -> int:
    """A plain non-negative number; signs, spaces and fractions are refused."""
    if text is None or not _COUNT.match(text):
        raise UsageError(f"{name}: expected a number that is not negative, of at most 15 digits")
    return int(text)
