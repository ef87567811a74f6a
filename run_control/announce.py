"""Beside the bridge: each new address gets a number, and is left in the durable store for VMs that lost the bridge.

A thread of its own does all work with the store, which may be slow, hang or refuse: the bridge never waits for it. What
came of it stands in .bridgehead/address.json, where `status` and `up` find it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
from collections.abc import Callable, Iterable

from bridge.address_record import AddressRecord, Published
from bridge.project import LoadProject, ProjectView
from bridge.server import Bridge
from bridgehead import announcement, files, names
from bridgehead.announcement import Announcement
from bridgehead.errors import BridgeheadError, PairingError, StoreDenied, StoreError, VerificationError
from run_control import announce_stores, project_file
from run_control.address_told import TROUBLE
from run_control.announce_stores import Target
from run_control.project import Project
from vm_daemons.storage.objects import ObjectStore
from vm_daemons.storage.pace import Backoff

FIRST_PAUSE_S = 2.0
MOST_PAUSE_S = 300.0
LOOK_AGAIN_S = 30.0  # somebody may have tidied or damaged the store, or a key was added; a VM finds it within a minute
_STOP_S = 2.0
_log = logging.getLogger(__name__)

Keys = Callable[[], list[tuple[str, bytes]]]
Targets = Callable[[Project, ProjectView, str], Iterable[Target]]


class Announcer:
    """`announce` for each new address; `stop` in the end. Neither raises, nor waits for the store."""

    def __init__(
        self,
        project: Project,
        record: AddressRecord,
        keys: Keys,
        *,
        load: LoadProject | None = None,
        targets: Targets = announce_stores.targets,
    ) -> None:
        self._project = project
        self._record = record
        self._keys = keys
        self._load = load or project_file.loader(project.root)
        self._targets = targets
        self._url = ""
        self._above = 0  # what a store knows already
        self._renewed = False  # the present address has its number
        self._news = threading.Event()
        self._stopping = False
        self.on_change: Callable[[], None] = lambda: None  # `trouble` is another one; called from our thread
        self.trouble = ""  # why VMs can't learn of the address through the store, with the next step
        self._thread = threading.Thread(target=self._run, name="announcer", daemon=True)

    def announce(self, url: str) -> None:
        """Number this address and have it published. Returns when the number is on disk, if the disk takes it."""
        if url == self._url:
            return
        self._url, self._renewed = url, False
        try:
            self._renew()
        except (BridgeheadError, OSError) as error:
            _log.warning("%s: %s", TROUBLE, _words(error))  # the thread tries again
        if not self._thread.is_alive():
            self._thread.start()
        self._news.set()

    def stop(self) -> None:
        """A store that hangs is left behind."""
        self._stopping = True
        self._news.set()
        if self._thread.is_alive():
            self._thread.join(_STOP_S)

    def _renew(self) -> None:
        self._record.renew(self._view().name, self._url, above=self._above)
        self._renewed = True

    def _view(self) -> ProjectView:
        """The project file as it is now. Raises ProjectError."""
        return self._load()

    # --- the thread --------------------------------------------------------------------------------------

    def _run(self) -> None:
        backoff = Backoff(FIRST_PAUSE_S, MOST_PAUSE_S)
        while not self._stopping:
            self._news.clear()
            try:
                well = self._publish_or_tell()
            except Exception:  # noqa: BLE001 - the thread's edge: the bridge serves, and the next try comes
                _log.exception("the announcer: unexpected")
                well = False
            if well:
                backoff.reset()
            if self._news.wait(LOOK_AGAIN_S if well else backoff.next_s()):
                backoff.reset()

    def _publish_or_tell(self) -> bool:
        try:
            return self._publish()
        except (BridgeheadError, OSError) as error:
            self._set_trouble(_words(error), _hint(error))
            with contextlib.suppress(OSError):  # the laptop's own disk may be the trouble
                self._tell(Published(self._seq(), [], _words(error), _hint(error)))
            return False

    def _publish(self) -> bool:
        """Bring every store up to date; whether all tell of the present address now."""
        if not self._renewed:
            self._renew()
        mine = self._record.newest()
        if mine is None or mine.url != self._url:  # a newer bridge of this project has taken over the record
            return True
        known = self._record.published()
        told: list[str] = []
        trouble: list[BridgeheadError | OSError] = []
        for target in self._targets(self._project, self._view(), mine.url):
            try:
                self._bring(target, mine)
                told.append(target.name)
            except _Outnumbered as higher:
                if known.seq == mine.seq and known.told:  # it was the newest once, so somebody else came after it
                    trouble.append(_another_bridge(higher))
                    continue
                self._above, self._renewed = higher.seq, False
                self._news.set()  # and once more, above it
                return False
            except StoreDenied as error:
                trouble.append(StoreDenied(error.message, hint=target.when_denied or error.hint))
            except (BridgeheadError, OSError) as error:
                trouble.append(error)
        first = trouble[0] if trouble else None
        return self._tell(Published(mine.seq, told, _words(first) if first else "", _hint(first) if first else ""))

    def _bring(self, target: Target, mine: Announcement) -> None:
        store = target.open()
        for key_id, key in self._keys():
            name = f"{mine.project}/{names.STORE_ADDRESS}/{key_id}.json"
            there = _there(store, name, key)
            if there is not None and there.seq > mine.seq and there.url != mine.url:
                raise _Outnumbered(there)
            if there is None or there.seq < mine.seq:
                store.put_bytes(name, files.canonical_json(mine.signed(key)))
                _log.info("%s is announced in %s", mine.host, target.name)

    def _tell(self, published: Published) -> bool:
        self._set_trouble(published.trouble, published.hint)
        if published != self._record.published():
            self._record.note(published)
            if published.trouble:
                _log.warning("%s: %s", TROUBLE, self.trouble)
        return not published.trouble

    def _set_trouble(self, words: str, hint: str) -> None:
        before, self.trouble = self.trouble, f"{words}. next: {hint}" if words else ""
        if before != self.trouble:
            self.on_change()

    def _seq(self) -> int:
        newest = self._record.newest()
        return newest.seq if newest is not None else 0


class _Outnumbered(StoreError):
    """The store holds a higher number at another address: our private folder was restored, or we are not alone."""

    def __init__(self, there: Announcement) -> None:
        super().__init__(f"the store tells of {there.host}")
        self.seq, self.host = there.seq, there.host


def announcer(project: Project, bridge: Bridge) -> Announcer:
    """The one of a started bridge."""
    return Announcer(project, bridge.address, lambda: bridge.keys.active())


def _there(store: ObjectStore, name: str, key: bytes) -> Announcement | None:
    """What the store tells by now. None also for what we did not sign: it is replaced."""
    try:
        data = store.read(name, announcement.MAX_BYTES)
        return announcement.opened([key], json.loads(data)) if data is not None else None
    except (VerificationError, PairingError, ValueError, RecursionError):
        return None


def _another_bridge(higher: _Outnumbered) -> StoreError:
    return StoreError(
        f"another bridge of this project has been announced since, at {higher.host}",
        hint="run one bridge alone; bridgehead down, then bridgehead up makes this one the newest",
    )


def _words(error: BridgeheadError | OSError) -> str:
    return error.message if isinstance(error, BridgeheadError) else error.strerror or type(error).__name__


def _hint(error: BridgeheadError | OSError) -> str:
    return (error.hint if isinstance(error, BridgeheadError) else "") or "it is tried again"
