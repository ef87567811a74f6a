"""The project's pairing keys: one small file that only its owner can read, made on first use.

Each pairing has a key of its own. The file is the one truth for every process: a bridge that runs sees at its next
request what the command line has changed. Secrets leave through `key`, `current`, `active` and `pairing` alone.
"""

from __future__ import annotations

import dataclasses
import logging
import secrets
import threading
import time
from collections.abc import Callable
from pathlib import Path

from bridge import file_lock, key_records
from bridge.key_records import KeyFile, KeyState, PairingKey
from bridge.ledger_pairings import PairingState
from bridgehead import rotation
from bridgehead.errors import NotFoundError, PairingError, UsageError
from bridgehead.pairing import FORMER_MAX, Pairing
from bridgehead.queue_lines import nearest
from bridgehead.rotation import KEY_BYTES as KEY_BYTES

GRACE_S = 24 * 3600.0  # for a VM that does not reach the bridge while its key is rotated
_LOCK_SUFFIX = ".lock"
MADE, REVOKED, ROTATES = "key made", "key revoked", "key rotates"  # in the audit file
Tell = Callable[[list[tuple[str, PairingKey]]], None]
_log = logging.getLogger(__name__)


def _nobody(told: list[tuple[str, PairingKey]]) -> None: ...


class KeyStore:
    """Safe from several threads and processes. Changes are written before the call returns."""

    def __init__(self, path: Path) -> None:
        """Read the file, or make it with one new key. Raises PairingError when it is damaged."""
        self._path = path
        self._lock = threading.Lock()
        self.is_new = not path.exists()
        """Whether this very call has made the file."""
        if self.is_new:
            self.is_new = key_records.create(path)
        self._stamp = _stamp(path)
        self._content = key_records.read(path)

    # --- what is good now -----------------------------------------------------------------------

    def key(self, key_id: str) -> bytes | None:
        """The key when requests may be signed with it."""
        found = self._now().keys.get(key_id)
        return found.key if found is not None and found.usable else None

    def current(self) -> tuple[str, bytes]:
        """(key id, key) that new pairing codes carry."""
        content = self._now()
        return content.current, content.keys[content.current].key

    def active(self) -> list[tuple[str, bytes]]:
        """(key id, key) of every key that is good now: what is announced to all VMs is signed once for each."""
        return [(item.id, item.key) for item in self.all() if item.usable]

    def get(self, key_id: str) -> PairingKey | None:
        return self._now().keys.get(key_id)

    def all(self) -> list[PairingKey]:
        """Every key ever made, oldest first."""
        return sorted(self._now().keys.values(), key=lambda item: item.made)

    def find(self, text: str) -> PairingKey:
        """By id, name (the newest of that name) or the beginning of one id alone; "" is the current one.

        Raises NotFoundError with the nearest, UsageError when several ids begin so.
        """
        content = self._now()
        text = text or content.current
        named = [item for item in self.all() if item.name == text or item.id == text]
        found = named[-1:] or [item for item in self.all() if item.id.startswith(text)]
        if len(found) > 1:
            raise UsageError(f"{len(found)} keys begin with {text[:40]!r}", hint="say which: bridgehead keys list")
        if not found:
            known = {word for item in self.all() for word in (item.id, item.name) if word}
            raise NotFoundError(f"no key {text[:40]!r}", hint=nearest(text, known))
        return found[0]

    def pairing(self, url: str, boot_sha256: str, *, store: str = "", key_id: str = "") -> Pairing:
        """The content of a pairing code for this key. Raises PairingError when it is not good any more."""
        content = self._now()
        item = content.keys.get(key_id or content.current)
        if item is None or not item.usable:
            raise PairingError(f"key {key_id} is not good any more", hint="bridgehead keys new")
        former = tuple(key.key for key in _ancestors(content, item) if key.key)[:FORMER_MAX]
        return Pairing(url, item.id, item.key, boot_sha256, store=store, allow_sh=item.allow_sh, former=former)

    def next_of(self, key_id: str) -> PairingKey | None:
        """What a VM that still uses this key is to derive, when it is being rotated."""
        followers = (item for item in self._now().keys.values() if item.after == key_id and item.usable)
        return next(followers, None)

    def shell_allowed(self) -> bool:
        """Whether any pairing that is good now runs shell commands."""
        return any(item.allow_sh for item in self._now().keys.values() if item.usable)

    def pairings(self) -> list[PairingState]:
        """Every pairing ever made, oldest first, as the ledger has to know it."""
        families: dict[str, list[PairingKey]] = {}
        for item in self.all():
            families.setdefault(item.family, []).append(item)
        return sorted((_pairing_state(family, items) for family, items in families.items()), key=_by_age)

    def may_follow(self, family: str, other: PairingKey) -> bool:
        """Whether a VM of pairing `family` may speak with `other`: its own key rotated, or paired anew when revoked.

        A pairing that was made before the revocation may not: else it could take over the VMs of another.
        """
        if other.family == family:
            return True
        content = self._now()
        members = [item for item in content.keys.values() if item.family == family]
        made = content.keys[other.family].made if other.family in content.keys else other.made
        return all(not item.usable and made >= item.ended for item in members)

    # --- changes ------------------------------------------------------------------------------------

    def make(self, name: str = "", *, allow_sh: bool = True, tell: Tell = _nobody) -> PairingKey:
        """One more pairing. Raises UsageError when a key that is good bears the name, and OSError.

        `tell` hears of this change, as of the others, before it is made: when it raises, nothing has changed.
        """
        if name and (not name.isprintable() or len(name) > 64 or name != name.strip()):
            raise UsageError("a name has 1 to 64 printable characters")
        made = key_records.fresh(name, allow_sh=allow_sh)

        def change(content: KeyFile) -> KeyFile:
            if name and any(item.name == name and item.usable for item in content.keys.values()):
                raise UsageError(f"a key is called {name!r} already", hint="bridgehead keys list")
            return content.with_key(made)

        self._change(change, lambda: tell([(MADE, made)]))
        return made

    def revoke(self, key_id: str, *, tell: Tell = _nobody) -> tuple[list[PairingKey], PairingKey | None]:
        """End this key and all that were derived from it or it from; their bytes leave the file.

        Returns them, and the key that is current from now on when the current one was among them.
        Raises UsageError when it is revoked already.
        """
        ended: list[PairingKey] = []
        heir: list[PairingKey] = []

        def change(content: KeyFile) -> KeyFile:
            family = content.keys[key_id].family
            ended[:] = [item for item in content.keys.values() if item.family == family]
            if content.keys[key_id].state is KeyState.REVOKED:
                raise UsageError(f"key {key_id} is revoked already", hint="bridgehead keys list")
            now = time.time()
            gone = [dataclasses.replace(item, key=b"", state=KeyState.REVOKED, ended=now) for item in ended]
            current = content.keys[content.current]
            if current.family != family:
                return content.with_key(*gone)
            heir[:] = [key_records.fresh(current.name, allow_sh=current.allow_sh)]
            return content.with_key(*gone, heir[0], current=heir[0].id)

        self._change(change, lambda: tell([*((REVOKED, item) for item in ended), *((MADE, item) for item in heir)]))
        return ended, (heir[0] if heir else None)

    def rotate(self, key_id: str, *, grace_s: float = GRACE_S, tell: Tell = _nobody) -> PairingKey:
        """Begin to replace a key by one derived from it; both are good until `end`, or until the grace is over.

        Raises UsageError when the key is not active.
        """
        made: list[PairingKey] = []

        def change(content: KeyFile) -> KeyFile:
            old = content.keys[key_id]
            if old.state is not KeyState.ACTIVE:
                raise UsageError(f"key {key_id} is {old.state}", hint="bridgehead keys list")
            now, salt, new_id = time.time(), secrets.token_bytes(rotation.SALT_BYTES), key_records.new_id()
            key = rotation.successor(old.key, salt, old.id, new_id)
            new = PairingKey(new_id, key, old.name, now, old.allow_sh, KeyState.ACTIVE, old.family, old.id, salt)
            made[:] = [new]
            fading = dataclasses.replace(old, state=KeyState.ROTATING, until=now + grace_s)
            return content.with_key(fading, new, current=new_id if content.current == key_id else "")

        self._change(change, lambda: tell([(ROTATES, item) for item in made]))
        return made[0]

    def end(self, key_id: str) -> bool:
        """A rotated key is needed no more. False when it was not being rotated."""
        done: list[bool] = []

        def change(content: KeyFile) -> KeyFile:
            item = content.keys[key_id]
            if item.state is not KeyState.ROTATING:
                return content
            done.append(True)
            return content.with_key(dataclasses.replace(item, state=KeyState.ENDED, ended=time.time()))

        self._change(change)
        return bool(done)

    # --- inside ------------------------------------------------------------------------------------

    def _change(self, change: Callable[[KeyFile], KeyFile], tell: Callable[[], None] = lambda: None) -> None:
        with file_lock.held(self._path.with_name(self._path.name + _LOCK_SUFFIX)):
            content = self._now()
            changed = change(content)
            if changed is not content:
                tell()
                try:
                    key_records.write(self._path, changed)
                except OSError:
                    if key_records.read(self._path) != changed:
                        raise  # else only what comes after the rename went wrong
                self._now()

    def _now(self) -> KeyFile:
        """The content of the file; read again when it is another one. One that can't be read changes nothing."""
        with self._lock:
            stamp = _stamp(self._path)
            if stamp is not None and stamp != self._stamp:
                try:
                    self._content = key_records.read(self._path)
                except PairingError as error:
                    _log.error("%s; the keys of before stay good", error.message)
                self._stamp = stamp
            return self._content


def _pairing_state(family: str, items: list[PairingKey]) -> PairingState:
    """`items`: all keys of the pairing, oldest first."""
    good = [item for item in items if item.usable]
    ended = 0.0 if good else max(item.ended or item.until for item in items)
    return PairingState(family, items[0].made, ended, any(item.allow_sh for item in good))


def _by_age(item: PairingState) -> tuple[float, str]:
    return item.made, item.family


def _ancestors(content: KeyFile, item: PairingKey) -> list[PairingKey]:
    """What it was rotated from, newest first."""
    found: list[PairingKey] = []
    while item.after in content.keys and len(found) < FORMER_MAX:
        item = content.keys[item.after]
        found.append(item)
    return found


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        info = path.stat()
    except OSError:
        return None
    return info.st_mtime_ns, info.st_size, info.st_ino
