"""`python -m vm_daemons.uploader`: all work for the durable store, in a process of its own.

So a store that is slow, hangs or is dead holds up no step, no log and no command. Each kind of work has a thread and
an ObjectStore of its own; the main thread never touches the store and writes down how it is. A checkpoint that becomes
stale while it waits is skipped: the newest one wins.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

from bridgehead import files, names
from bridgehead.errors import BridgeheadError, StoreDenied, StoreGone
from bridgehead.names import StoreKind
from bridgehead.records import VmRules
from vm_daemons.address import LOOK_EVERY_S, SILENT_AFTER_S, Addresses, Silence
from vm_daemons.home import VmHome
from vm_daemons.storage import publish, store_choice
from vm_daemons.storage.confirm import SecondLook
from vm_daemons.storage.objects import ObjectStore
from vm_daemons.storage.pace import Backoff, Bucket, PacedStore
from vm_daemons.storage.run_uploads import RunUploads
from vm_daemons.storage.store import Store
from vm_daemons.storage.store_progress import Stamp, stamp_of
from vm_daemons.storage.store_state import Health, Writer

STATE_EVERY_S = 0.5
MIRROR_EVERY_S = 1.0
CONFIRM_EVERY_S = 5.0
CANARY_EVERY_S = 60.0
CANARY_AGAIN_S = 5.0  # at the soonest, however much trouble there is
ILL_CANARY_S = 15.0
PUBLISH_EVERY_S = 0.25  # between two looks at the journal: a stat call
SHIPMENTS_EVERY_S = 5.0
LOST_PAUSE_MAX = 256  # canaries that came back well: some hours
SILENCE_EVERY_S = 1.0
NICE = 10
_REQUESTS = {  # a second, and at once: bursts of small writes are refused as if the quota were used up
    StoreKind.MOUNT: (20.0, 400.0),
    StoreKind.DRIVE: (10.0, 200.0),
    StoreKind.S3: (50.0, 500.0),
}

log = logging.getLogger("uploader")


class Uploader:
    """`run()` returns once `stop()` was called. `choose` and `second` make a store for each thread that asks."""

    def __init__(
        self,
        home: VmHome,
        *,
        choose: Callable[[], ObjectStore | None] | None = None,
        second: Callable[[], ObjectStore | None] | None = None,
    ) -> None:
        self._home = home
        self._choose = choose or (lambda: store_choice.choose(home))
        self._second = second or (lambda: store_choice.second_look(home))
        self._stopping = threading.Event()
        self._canary = threading.Event()  # a look at the store is wanted now
        self._looked = threading.Event()  # whose store it is was found out before anything was written there
        self.health = Health(home)
        self._writer = Writer(home)
        self._requests, self._upload = self._buckets()
        self._store = Store(home, self._paced)
        self.runs = RunUploads(home, self._store, self._store_says)
        self._confirmer: SecondLook | None = None
        self._next_quota = 0.0  # monotonic
        self._told: dict[str, Any] = {"payload": "", "note": "", "confirm_trouble": "", "address_note": ""}
        self._beat_number = _beat_number_before(home)
        self._lost: dict[str, tuple[int, int]] = {}  # what was: for how many canaries it is let alone, and since when
        self._well = 0  # canaries that came back well; with each, what was published is looked for again

    def run(self) -> None:
        steps: dict[str, Callable[[], float]] = {
            "mirror": self._mirror_step,
            "confirm": self._confirm_step,
            "canary": self._canary_step,
            "publish": self._publisher(),
            "shipments": self._shipments(),
            "address": self._address(),
        }
        # Daemon threads: one that hangs in a dead mount must not keep the process from ending.
        for name, step in steps.items():
            threading.Thread(target=self._loop, args=(name, step), name=name, daemon=True).start()
        self._loop("state", self._state_step)

    def stop(self) -> None:
        self._stopping.set()
        self._canary.set()

    def _loop(self, name: str, step: Callable[[], float]) -> None:
        """Do `step` for ever with the pause that it returns; trouble is told once and tried again, ever slower."""
        backoff, told = Backoff(0.5), ""
        while not self._stopping.is_set():
            try:
                pause_s = step()
                backoff.reset()
                told = ""
            except (BridgeheadError, OSError) as error:
                if told != (told := error.in_one_line() if isinstance(error, BridgeheadError) else str(error)):
                    log.warning("%s: %s", name, told)
                pause_s = backoff.next_s()
            except Exception:  # process edge: a fault of ours in one thread must not end the others
                log.exception("%s: unexpected", name)
                pause_s = max(5.0, backoff.next_s())
            self._stopping.wait(pause_s)

    # --- main thread: never touches the store ------------------------------------------------------------

    def _state_step(self) -> float:
        configured = store_choice.is_configured(self._home)
        seen = self.health.look()
        kind = str(seen.get("kind") or self._kind()) if configured else "none"
        self.runs.tell(kind, str(seen.get("path", "")), self._confirmed_by(kind), hangs=self.health.hangs)
        self._writer.write(
            {
                **seen,
                **self._told,
                "kind": kind,
                "where": seen.get("path", ""),
                "vm_id": self._home.record()["vm_id"],
                "trouble": self.runs.trouble,
                "warning": self.runs.warning,
                "beat_number": self._beat_number,
                "superseded": self.runs.superseded(),
            }
        )
        if configured:
            self.health.ask_for_remount(kind)
        return STATE_EVERY_S

    def _kind(self) -> str:
        with contextlib.suppress(BridgeheadError):
            return store_choice.spec_of(self._home).kind
        return "unknown"

    def _confirmed_by(self, kind: str) -> str:
        """What can confirm here. Who has no credentials can not, and then nobody waits for it."""
        if kind in (StoreKind.FOLDER, StoreKind.DRIVE, StoreKind.S3):
            return kind
        return self._confirmer.name if self._confirmer is not None else ""

    # --- threads with a store of their own ---------------------------------------------------------------

    def _paced(self) -> ObjectStore | None:
        chosen = self._choose()
        return PacedStore(chosen, self._requests, self._upload) if chosen is not None else None

    def _buckets(self) -> tuple[Bucket, Bucket]:
        try:
            spec = store_choice.spec_of(self._home)
        except BridgeheadError:
            return Bucket(0, 0), Bucket(0, 0)
        rate, burst = _REQUESTS.get(StoreKind(spec.kind), (0.0, 0.0)) if spec.kind in set(StoreKind) else (0.0, 0.0)
        # The Drive API's own uploader keeps to the rate by itself, part by part.
        bytes_s = 0.0 if spec.kind == StoreKind.DRIVE else spec.upload_mb_s * 1e6
        wait = self._stopping.wait
        return Bucket(rate, burst, sleep=wait), Bucket(bytes_s, bytes_s, sleep=wait)

    def _mirror_step(self) -> float:
        available = self._may_write()
        self.runs.step(available=available)
        return MIRROR_EVERY_S if available else STATE_EVERY_S

    def _may_write(self) -> bool:
        return self._looked.is_set() and store_choice.is_configured(self._home)

    def _store_says(self, trouble: str) -> None:
        self.health.trouble = trouble
        if trouble:
            self._canary.set()

    def _confirm_step(self) -> float:
        try:
            if self._confirmer is None:
                second = self._second()
                if second is None:
                    self.runs.nothing_confirms()
                    return CANARY_EVERY_S
                self._confirmer = SecondLook(second)
            self.runs.confirm(self._confirmer)
            self._ask_for_quota(self._confirmer)
        except StoreDenied as error:
            self._confirmer = None  # and what is mounted is not waited for until somebody signs in
            self._told["confirm_trouble"] = f"nothing can be confirmed: {error.in_one_line()}"
            self.runs.nothing_confirms()
            return CANARY_EVERY_S
        except BridgeheadError as error:
            self.runs.nothing_confirms()
            self._told["confirm_trouble"] = f"nothing is confirmed just now: {error.in_one_line()}"
            raise
        self._told["confirm_trouble"] = ""
        return CONFIRM_EVERY_S

    def _ask_for_quota(self, second: SecondLook) -> None:
        """A mount tells of this VM's disk; the account itself says what is left and what its trash takes."""
        if time.monotonic() >= self._next_quota:
            self._next_quota = time.monotonic() + CANARY_EVERY_S
            with contextlib.suppress(BridgeheadError):  # told when it can't confirm; this alone is no trouble
                self.health.account = second.quota()

    def _canary_step(self) -> float:
        if not store_choice.is_configured(self._home):
            self.health.probed, self.health.gone = {}, False
            self._stopping.wait(MIRROR_EVERY_S)
            return 0.0
        was_ok = self.health.ok
        self.health.canary_since = time.monotonic()
        try:
            probed = self._store.probe()
            gone = not probed["ok"] and self._is_gone()
            if probed["ok"] and not was_ok:
                self._recognise()
        finally:
            self.health.canary_since = 0.0
        self.health.probed, self.health.gone = probed, gone
        self._looked.set()
        self._well += self.health.ok
        if self.health.ok and not was_ok:
            self.runs.catch_up()
        self._stopping.wait(CANARY_AGAIN_S)
        self._canary.wait(max(0.0, (CANARY_EVERY_S if self.health.ok else ILL_CANARY_S) - CANARY_AGAIN_S))
        self._canary.clear()
        return 0.0

    def _recognise(self) -> None:
        self._told["note"] = self._store.recognise()
        if self._told["note"]:
            log.info("%s", self._told["note"])

    def _is_gone(self) -> bool:
        try:
            self._store.objects().list("")
        except StoreGone:
            return True
        except BridgeheadError:
            return False
        return False

    def _publisher(self) -> Callable[[], float]:
        """Beat and journal."""
        store = Store(self._home, self._paced)
        journal: Stamp | None = None
        released, next_beat, looked = False, 0.0, 0

        def step() -> float:
            nonlocal journal, released, next_beat, looked
            stamp = stamp_of(self._home.journal)
            goodbye = publish.is_released(self._home)
            due = time.monotonic() >= next_beat or goodbye != released
            if (stamp == journal and not due and self._well == looked) or not self._may_write():
                return PUBLISH_EVERY_S
            if self._well != looked:
                well = self._well
                if journal is not None and not publish.has_journal(store.objects(), self._home):
                    journal = None
                looked = well
            if stamp is not None and stamp != journal:
                publish.journal(store.objects(), self._home)
                journal = stamp
            if due:
                publish.beat(store.objects(), self._home, self._beat_number + 1)
                self._beat_number += 1
                next_beat, released = time.monotonic() + self._beat_every_s(), goodbye
            return PUBLISH_EVERY_S

        return step

    def _beat_every_s(self) -> float:
        rules = VmRules.from_json(self._home.record().get("vm_rules") or {})
        return min(60.0, max(1.0, rules.lost_after_s / 3))

    def _shipments(self) -> Callable[[], float]:
        """The boot archive and the payload: big, and once."""
        store = Store(self._home, self._paced)
        done: dict[str, str] = {}
        looked = 0

        def step() -> float:
            nonlocal looked
            if not self._may_write():
                return SHIPMENTS_EVERY_S
            if self._well != looked:
                well = self._well
                self._forget_what_is_gone(done, store.objects())
                looked = well
            record = self._home.record()
            ship = str(record.get("ship_sha256"))
            payload = f"{record.get('payload_sha256')} {stamp_of(self._home.state / names.PAYLOAD_MANIFEST)}"
            if done.get("ship") != ship and publish.ship(store.objects(), self._home):
                done["ship"] = ship
            if done.get("payload") != payload:
                self._told["payload"] = publish.payload(store.objects(), self._home)
                if not self._told["payload"]:
                    done["payload"] = payload
            return SHIPMENTS_EVERY_S if done.get("payload") == payload else CANARY_EVERY_S

        return step

    def _address(self) -> Callable[[], float]:
        """While the bridge is silent: has the laptop left a new address? A mount may be late: its far end is asked."""
        store, silence = Store(self._home, self._paced), Silence(self._home)
        addresses = Addresses(self._home, log.warning)
        second: list[ObjectStore] = []

        def step() -> float:
            if silence.lasts_s() < SILENT_AFTER_S or not store_choice.is_configured(self._home):
                return SILENCE_EVERY_S
            if not second:
                with contextlib.suppress(BridgeheadError):  # nobody has signed in, or there is none
                    second.extend(filter(None, [self._second()]))
            try:
                addresses.look([store.objects(), *second])
            except BridgeheadError:
                second.clear()  # somebody may sign in anew
                raise
            finally:
                self._told["address_note"] = addresses.note
            return LOOK_EVERY_S

        return step

    def _forget_what_is_gone(self, done: dict[str, str], objects: ObjectStore) -> None:
        """Somebody may have tidied the store: then it is published anew, or the next VM can't boot from it."""
        for name, is_whole in {"ship": publish.has_ship, "payload": publish.has_payload}.items():
            pause, since = self._lost.get(name, (0, 0))
            if name not in done or self._well < since + pause:
                continue
            if is_whole(objects, self._home):
                self._lost.pop(name, None)
                continue
            del done[name]
            # Where a store shows it damaged as soon as it was sent, it is not sent each minute for ever.
            self._lost[name] = (min(LOST_PAUSE_MAX, max(1, 2 * pause)), self._well)
            log.warning("the store has lost or damaged the %s", name)


def _beat_number_before(home: VmHome) -> int:
    before = files.read_json(home.state / names.VM_STORE_STATE)
    return int(before.get("beat_number") or 0) if isinstance(before, dict) else 0


def main() -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    home = VmHome.from_environment()
    home.create()
    with contextlib.suppress(OSError):
        os.nice(NICE)
    uploader = Uploader(home)
    signal.signal(signal.SIGTERM, lambda *_: uploader.stop())
    log.info("started, pid %d", os.getpid())
    uploader.run()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
