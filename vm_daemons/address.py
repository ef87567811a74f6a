"""Where the bridge is, as this VM knows it: announcements taken up or refused, and what it waits for without one.

state/address.json: {"v", "document"}, the newest announcement of the pairing's laptop as it was signed. The pairing
(VmHome.pairing) follows it. It comes with the bridge's hints, or out of the store.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator

from bridgehead import announcement, files, names
from bridgehead.announcement import Announcement
from bridgehead.errors import BridgeheadError, NotFoundError, PairingError, VerificationError
from bridgehead.pairing import Pairing
from vm_daemons import daemons
from vm_daemons.gauges import age_s
from vm_daemons.home import VmHome
from vm_daemons.storage import store_choice
from vm_daemons.storage.objects import ObjectStore

SILENT_AFTER_S = 10.0  # without an answer: then the store is looked into
LOOK_EVERY_S = 15.0
WAITS_AFTER_S = 20.0  # without an answer: then people are told
STEP_S = 1.0  # between two looks whether the bridge has moved, in a pause that is longer
_LOCK = "address.lock"  # daemons and cell may hear of two addresses at once
_TOLD_MAX = 100


class Addresses:
    """Takes up what is newer and of this pairing's laptop, and refuses all else, saying so once to `say`."""

    def __init__(self, home: VmHome, say: Callable[[str], object]) -> None:
        self._home = home
        self._say = say
        self._told: list[str] = []
        self.note = ""  # the last refusal, until an announcement was taken

    def take(self, document: object, source: str) -> Announcement | None:
        """Follow the announcement from now on, also after a restart. None when it is refused or nothing new.

        Raises PairingError when this VM is not paired, and OSError.
        """
        try:
            told = announcement.opened(self._home.pairing().document_keys, document)
        except PairingError as error:
            self._refuse(f"an address from {source} is refused: {error.message}")
            return None
        project = self._home.record().get("project")
        if project and told.project != project:
            self._refuse(f"an address from {source} is refused: it is of another project")
            return None
        with _locked(self._home):
            now = self._home.pairing()
            if told.seq <= now.seq:
                if told.url != now.url:
                    self._refuse(f"an address from {source} is refused: {told.host} is older than {_host(now)}")
                return None
            record = {"v": names.RECORD_VERSION, "document": document}
            files.write_json(self._home.state / names.ADDRESS, record, mode=0o600)
        self.note = ""
        if told.url != now.url:
            self._say(f"the bridge moved to {told.host} (told by {source})")
        return told

    def look(self, stores: Iterable[ObjectStore]) -> Announcement | None:
        """The newest that these stores hold, if it is news. Raises StoreError of the last one, and OSError."""
        trouble: BridgeheadError | None = None
        found = None
        for store in stores:
            try:
                for data in self._read(store):
                    found = self.take(_parse(data), "the store") or found
            except (NotFoundError, VerificationError) as error:
                self._refuse(f"an address from the store is refused: {error.message}")
            except BridgeheadError as error:
                trouble = error
        if trouble is not None and found is None:
            raise trouble
        return found

    def _read(self, store: ObjectStore) -> Iterator[bytes]:
        """A VM that no laptop has booted yet does not know its project's name: the signature tells the right one."""
        project, key_id = self._home.record().get("project"), self._home.pairing().key_id
        for name in [str(project)] if project else store.list(""):
            data = store.read(f"{name}/{names.STORE_ADDRESS}/{key_id}.json", announcement.MAX_BYTES)
            if data is not None:
                yield data

    def _refuse(self, text: str) -> None:
        self.note = text
        if text not in self._told:
            self._told = [*self._told[-_TOLD_MAX:], text]
            self._say(text)


class Silence:
    """How long the bridge has not answered, by this process's own clock: file times jump with the time of day."""

    def __init__(self, home: VmHome, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = home.state / daemons.CONTACT_MARK
        self._clock = clock
        self._stamp: int | None = None
        self._since = clock()

    def lasts_s(self) -> float:
        found = files.plain_stat(self._path)
        stamp = found.st_mtime_ns if found is not None else None
        if stamp != self._stamp:
            self._stamp, self._since = stamp, self._clock()
        return self._clock() - self._since


class Patience:
    """For one thread: pauses that end as soon as the bridge has moved: none is sat out that an old address earned."""

    def __init__(self, home: VmHome) -> None:
        self._home = home
        self._stamp = _stamp(home)

    def wait(self, event: threading.Event, pause_s: float) -> None:
        """`event.wait(pause_s)`, or less."""
        deadline = time.monotonic() + pause_s
        while (left_s := deadline - time.monotonic()) > 0:
            if pause_s >= STEP_S and self._moved():
                return
            if event.wait(min(STEP_S, left_s)):
                return

    def _moved(self) -> bool:
        before, self._stamp = self._stamp, _stamp(self._home)
        return self._stamp != before


def newest(home: VmHome, pasted: Pairing) -> Pairing:
    """What to keep of a code that a cell brought: an open tab still holds one from before the bridge moved."""
    try:
        known = home.pairing()
    except PairingError:
        return pasted
    if known.seq <= pasted.seq or set(known.document_keys).isdisjoint(pasted.document_keys):
        return pasted
    return dataclasses.replace(pasted, url=known.url, seq=known.seq)


def waits(home: VmHome) -> str:
    """What this VM waits for, once the bridge has been silent for WAITS_AFTER_S; "" while it answers."""
    silent_s = age_s(home.state / daemons.CONTACT_MARK)
    if silent_s is not None and silent_s < WAITS_AFTER_S:
        return ""
    try:
        host = _host(home.pairing())
    except PairingError:
        return ""
    since = "yet" if silent_s is None else f"since {time.strftime('%H:%M', time.localtime(time.time() - silent_s))}"
    looks = f"looks into the store for a new address every {LOOK_EVERY_S:.0f} s"
    if not store_choice.is_configured(home):
        looks = "there is no store to look into for a new address: if it has moved, run the cell with the newest code"
    return f"waits for the laptop: no answer from {host} {since}; {looks}"


def _host(pairing: Pairing) -> str:
    return announcement.host_of(pairing.url)


def _parse(data: bytes) -> object:
    try:
        parsed: object = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return parsed


def _stamp(home: VmHome) -> tuple[int, ...]:
    found = [files.plain_stat(home.state / name) for name in (names.VM_PAIRING, names.ADDRESS)]
    return tuple(item.st_mtime_ns if item is not None else 0 for item in found)


@contextlib.contextmanager
def _locked(home: VmHome) -> Iterator[None]:
    fd = os.open(home.state / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)
