"""The append-only journal: objects in the durable store, and a copy of all entries on this laptop.

Who wants to write number N puts a claim and then lists: where the store shows what it took, at least one of two writers
sees the other. The one with the higher token takes its claim back and tries again; the other waits until it has. An
entry that was written is never changed or withdrawn. A claim whose writer died is passed over after CLAIM_S. Should two
entries get one number all the same (a writer that slept through CLAIM_S, a drive that syncs late), both stay, every
reader puts them in the same order, and the one that no longer applies is shown as void.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bridgehead import files
from bridgehead.errors import NotFoundError, StoreError, StoreGone, VerificationError
from run_control.registry import entries
from run_control.registry.entries import Entry

if TYPE_CHECKING:
    from vm_daemons.storage.objects import ObjectStore

CLAIM_S = 10.0
WAIT_S = 60.0
_PAUSE_S = 0.05


@dataclass(frozen=True)
class Draft:
    """What is to be written; number, predecessors, time and writer come from the journal."""

    kind: str
    model: str
    body: dict[str, Any]


class Journal:
    """Entries and objects of one project. Without a store it reads the copy and writes nothing."""

    def __init__(
        self,
        cache: Path,
        store: ObjectStore | None,
        prefix: str,
        by: str,
        *,
        clock: Callable[[], float] = time.time,
        claim_s: float = CLAIM_S,
        wait_s: float = WAIT_S,
    ) -> None:
        self.store = store
        self.trouble = ""  # why the store could not be asked
        self._cache, self._prefix, self._by = cache, prefix.rstrip("/"), by
        self._clock, self._claim_s, self._wait_s = clock, claim_s, wait_s

    def entries(self) -> list[Entry]:
        """All of them, in order. With a store that can't be asked: those this laptop knows, and `trouble` says why.

        Raises VerificationError for an entry that was changed.
        """
        known = self._cached()
        if self.store is None:
            return entries.ordered(list(known.values()))
        try:
            return self._refreshed(self.store, known)
        except StoreError as error:
            self.trouble = error.in_one_line()
            return entries.ordered(list(known.values()))

    def append(self, draft: Callable[[list[Entry]], Draft | None]) -> Entry | None:
        """Write what `draft` makes of the entries so far; None when it makes nothing of them.

        `draft` is called again whenever somebody else was quicker; what it raises ends this. Raises StoreError when the
        store can't take it: then nothing was written.
        """
        store = self._need_store()
        deadline = time.monotonic() + self._wait_s
        seen: dict[str, float] = {}  # other writers' claims, and since when; each attempt of a live one has a new token
        while True:
            token = secrets.token_hex(8)
            known = self._refreshed(store, self._cached())
            seq = known[-1].seq + 1 if known else 1
            made = draft(known)
            if made is None:
                return None
            entry = self._entry(seq, known, made)
            with self._claimed(store, seq, token):
                if self._mine(store, seq, token, seen):
                    store.put_bytes(self._key("entries", entry.name), entry.canonical())
                    self._remember([entry])
                    return entry
            if time.monotonic() > deadline:
                raise StoreError(f"other writers kept the registry busy for {self._wait_s:.0f} s", hint="try again")
            time.sleep(random.uniform(_PAUSE_S, 4 * _PAUSE_S))  # two that step aside must not meet again at once

    def put_file(self, path: Path) -> tuple[str, int]:
        """Keep a file by its content; (SHA-256, bytes). One that is there already is not sent again."""
        digest, size = files.sha256_file(path), path.stat().st_size
        store = self._need_store()
        key = self._key("objects", digest)
        if [item.size for item in store.look(key)] != [size]:
            store.put(key, path)
        return digest, size

    def put_record(self, value: object) -> str:
        """The same for a JSON record; its SHA-256."""
        data = files.canonical_json(value)
        digest = hashlib.sha256(data).hexdigest()
        store = self._need_store()
        if not store.look(self._key("objects", digest)):
            store.put_bytes(self._key("objects", digest), data)
        return digest

    def record(self, digest: str) -> Any:
        """A JSON record by its digest. Raises NotFoundError when it is gone, VerificationError when it was changed."""
        data = self._need_store().read(self._key("objects", digest), 64 * 2**20)
        if data is None:
            raise NotFoundError(f"the registry holds no object {digest[:12]}", hint="was it removed from the store?")
        if hashlib.sha256(data).hexdigest() != digest:
            raise VerificationError(f"object {digest[:12]} of the registry was changed")
        return json.loads(data)

    def fetch(self, digest: str, target: Path) -> None:
        """An object by its digest into a file. Raises NotFoundError, VerificationError."""
        got = self._need_store().get(self._key("objects", digest), target)
        if got.sha256 != digest:
            target.unlink(missing_ok=True)
            raise VerificationError(f"object {digest[:12]} of the registry was changed")

    # --- inside --------------------------------------------------------------------------------------

    def _need_store(self) -> ObjectStore:
        if self.store is None:
            raise StoreGone(
                "this laptop reaches no durable store, and the registry lives there",
                hint="set [store] laptop_path, or bridgehead up --runtime local makes a store here",
            )
        return self.store

    def _key(self, *parts: str) -> str:
        return "/".join([self._prefix, *parts])

    def _entry(self, seq: int, known: list[Entry], made: Draft) -> Entry:
        previous = sorted(entry.digest for entry in known if entry.seq == seq - 1)
        return Entry(seq, previous, made.kind, made.model, round(self._clock(), 3), self._by, made.body)

    def _refreshed(self, store: ObjectStore, known: dict[str, Entry]) -> list[Entry]:
        names = [name for name in store.list(self._key("entries")) if entries.split_name(name)]
        fresh = []
        for name in names:
            if name not in known:
                data = store.read(self._key("entries", name), entries.MAX_BYTES)
                if data is not None:
                    fresh.append(entries.read(data, name))
        for name in sorted(set(known) - set(names)):  # the store lost it; this laptop has not
            store.put_bytes(self._key("entries", name), known[name].canonical())
        self._remember(fresh)
        return entries.ordered([*known.values(), *fresh])

    @contextlib.contextmanager
    def _claimed(self, store: ObjectStore, seq: int, token: str) -> Iterator[None]:
        key = self._key("claims", f"{seq:08d}", token)
        store.put_bytes(key, b"{}")
        try:
            yield
        finally:
            store.delete(key)

    def _mine(self, store: ObjectStore, seq: int, token: str, seen: dict[str, float]) -> bool:
        """Whether this writer may write number `seq`: nobody has, and none with a lower token is about to."""
        claims = self._key("claims", f"{seq:08d}")
        while True:
            others = [name for name in store.list(claims) if name != token]  # before the entries: they come in between
            if any((entries.split_name(name) or (0,))[0] == seq for name in store.list(self._key("entries"))):
                return False
            now = time.monotonic()
            for name in others:
                if now - seen.setdefault(name, now) > self._claim_s:
                    store.delete(f"{claims}/{name}")  # its writer died
                elif name < token:
                    return False
            if not others:
                return True
            time.sleep(_PAUSE_S)

    def _cached(self) -> dict[str, Entry]:
        """Name → entry. A last line that was cut is left out, and so is a line that somebody changed."""
        try:
            lines = self._cache.read_bytes().split(b"\n")
        except FileNotFoundError:
            return {}
        found = {}
        for line in lines:
            entry = _line(line)
            if entry is not None:
                found[entry.name] = entry
        return found

    def _remember(self, fresh: list[Entry]) -> None:
        """Into this laptop's copy. The store has them: a laptop without room neither hides them nor undoes one."""
        if fresh:
            with contextlib.suppress(OSError):  # `status` and `doctor` say that the disk is full
                self._note(fresh)

    def _note(self, fresh: list[Entry]) -> None:
        self._cache.parent.mkdir(parents=True, exist_ok=True)
        torn = False
        with contextlib.suppress(OSError), self._cache.open("rb") as handle:
            handle.seek(-1, os.SEEK_END)
            torn = handle.read(1) != b"\n"
        text = "\n".join(entry.canonical().decode() for entry in fresh)
        files.append_line(self._cache, ("\n" if torn else "") + text)


def _line(line: bytes) -> Entry | None:
    if not line.strip():
        return None
    with contextlib.suppress(VerificationError, ValueError, RecursionError, TypeError, KeyError):
        name = f"{int(json.loads(line)['seq']):08d}-{hashlib.sha256(line).hexdigest()}.json"
        return entries.read(line, name)
    return None
