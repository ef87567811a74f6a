"""Level "confirmed": what lies on a mounted drive, seen by another path than the one that wrote it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from vm_daemons.storage.objects import ObjectStore, Stored


class Confirmer(Protocol):
    """Says whether the far end holds exactly these objects; False for "not yet". Raises StoreError."""

    name: str  # for people: who has seen it

    def confirm(self, keys: Mapping[str, Stored]) -> bool: ...


@runtime_checkable
class _TellsQuota(Protocol):
    def quota(self) -> tuple[int | None, int | None]: ...


class SecondLook:
    """Another ObjectStore onto the same things, such as the Drive API beside a mounted Drive."""

    def __init__(self, second: ObjectStore) -> None:
        self._second = second
        self.name = second.kind

    def confirm(self, keys: Mapping[str, Stored]) -> bool:
        """Only when each key has exactly one object, with the size and a digest that were sent."""
        return bool(keys) and all(self._is_there(key, sent) for key, sent in keys.items())

    def quota(self) -> tuple[int | None, int | None]:
        """Bytes that the account has free, and those in its trash; None where nobody tells. Raises StoreError."""
        return self._second.quota() if isinstance(self._second, _TellsQuota) else (None, None)

    def _is_there(self, key: str, sent: Stored) -> bool:
        found = self._second.find(key)
        return len(found) == 1 and _same(found[0], sent)


def _same(there: Stored, sent: Stored) -> bool:
    """One digest that both know has to be equal, and none may differ: a size alone proves nothing."""
    told = [(there.sha256, sent.sha256), (there.md5, sent.md5)]
    known = [(mine, theirs) for mine, theirs in told if mine and theirs]
    return there.size == sent.size and bool(known) and all(mine == theirs for mine, theirs in known)
