"""`python -m vm_daemons.status_daemon`: what happens in the run folders becomes known to the laptop.

One thread composes the statuses, one ships logs and state files, two ship what an ended run made (one of them only what
is small) and one sends heartbeats. So a big artefact or a laptop that is away holds up none of the others. The store is
the uploader's; what it found out is read from its files, so that no mount can hang this process.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import platform
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bridgehead import announcement, files, names, processes
from bridgehead.errors import BridgeheadError, PairingError, TransferError, UsageError
from bridgehead.records import Heartbeat, Pins, RunRecord, Status
from vm_daemons import address, beats, daemons, export_trial, key_rotation, lifetime, run_meter, run_price
from vm_daemons.address import Patience
from vm_daemons.artefacts import Artefacts
from vm_daemons.client import Backoff, BridgeClient
from vm_daemons.gauges import Gauges, age_s
from vm_daemons.home import VmHome
from vm_daemons.run_mirror import RunMirror
from vm_daemons.storage import store_choice
from vm_daemons.storage.store_state import Reader
from vm_daemons.upload_pace import UploadPace

SHIP_EVERY_S = 0.1  # between two looks at the logs of live runs: a few stat calls
COMPOSE_EVERY_S = 0.25
IDLE_S = 0.5  # between two looks for a new run, where the system can't tell us of one
WATCHED_IDLE_S = 2.0
FRESH_S = 0.05  # between two looks at a folder that has just been made
FRESH_FOR_S = 5.0
STORE_DEAD_AFTER_S = 60.0
REFUSED_PAUSE_S = 15.0
SMALL_BYTES = 64 * 2**20  # what a run made, that is not kept waiting by what a bigger one made
UNSETTLED_FOR_S = 1800.0  # after its end, for checkpoints that are still to be confirmed

log = logging.getLogger("status_daemon")


class StatusDaemon:
    """`run()` returns once `stop()` was called, from a signal handler for example."""

    def __init__(self, home: VmHome, client: BridgeClient) -> None:
        self._home = home
        self._client = client
        self._pace = UploadPace()
        self._artefacts = Artefacts(client, self._pace)
        self._uploads_noted: dict[str, Any] | None = None
        self._store = Reader(home)
        self._gauges = Gauges(home.root)
        self._runs: dict[str, RunMirror] = {}
        self._settled: dict[str, int] = {}  # run folders with nothing left to do → mtime at which that was seen
        self._stopping = threading.Event()
        self._wake = threading.Event()
        self._busy = threading.Event()  # set while there are live runs
        self._idle_s = IDLE_S
        self._heartbeat_s = 5.0
        self._dead_store_told: set[str] = set()
        self._addresses = address.Addresses(home, log.warning)

    def run(self) -> None:
        self._gauges.start()
        steps: dict[str, Callable[[], float]] = {
            "ship": self._ship_step,
            "outputs": functools.partial(self._outputs_step, self._artefacts),
            # A run that has ended must not look like one that goes on because another one has made gigabytes.
            "small outputs": functools.partial(self._outputs_step, Artefacts(self._client, self._pace), SMALL_BYTES),
            "heartbeat": self._heartbeat_step,
        }
        with contextlib.suppress(BridgeheadError, OSError):  # so that the first heartbeat already names the runs
            self._compose_step()
        # Daemon threads: one that hangs in a dead mount must not keep the process from ending.
        for name, step in steps.items():
            threading.Thread(target=self._loop, args=(name, step), name=name, daemon=True).start()
        with _watching(self._home.runs, self._wake) as watched:
            self._idle_s = WATCHED_IDLE_S if watched else IDLE_S
            self._loop("compose", self._compose_step)
        self._gauges.stop()

    def stop(self) -> None:
        self._stopping.set()
        self._wake.set()

    def _loop(self, name: str, step: Callable[[], float]) -> None:
        """Do `step` for ever with the pause that it returns; trouble is told once and tried again, ever slower."""
        backoff, told, patience = Backoff(0.5), "", Patience(self._home)
        while not self._stopping.is_set():
            if name == "compose":  # the main thread; the cell starts a daemon anew that gives no sign for minutes
                beats.beat(self._home, names.STATUS_DAEMON)
            try:
                pause_s = step()
                backoff.reset()
                told = ""
            except (BridgeheadError, OSError) as error:
                told = self._tell_once(name, f"{error}", told)
                pause_s = backoff.next_s()
            except Exception:  # process edge: a fault of ours in one thread must not end log shipping or heartbeats
                log.exception("%s: unexpected", name)
                pause_s = max(5.0, backoff.next_s())
            waiter = self._wake if name == "compose" else self._stopping
            patience.wait(waiter, pause_s)
            if waiter is self._wake:
                self._wake.clear()

    def _tell_once(self, name: str, text: str, told: str) -> str:
        if text != told:
            log.warning("%s: %s", name, text)
        return text

    # --- statuses (main thread) --------------------------------------------------------------------------

    def _compose_step(self) -> float:
        self._store.look()
        self._heed_the_store()
        being_made = self._discover()
        waits = address.waits(self._home) if self._runs else ""
        for name, mirror in list(self._runs.items()):
            if mirror.not_before <= time.monotonic():
                self._guarded(mirror, functools.partial(self._compose, name, mirror, waits))
        if not self._runs:
            self._busy.clear()
            return FRESH_S if being_made else self._idle_s
        self._busy.set()
        return COMPOSE_EVERY_S

    def _compose(self, name: str, mirror: RunMirror, waits: str) -> None:
        if not mirror.abandoned:
            mirror.compose(time.time(), waits)
            mirror.relieve_log(self._home.rules().log_max_mb * 2**20)
        self._settle(name, mirror)

    def _discover(self) -> bool:
        """Take up new run folders, new attempts in known ones, and leave what has been mirrored.

        True when a folder is so fresh that its run.json is still to come.
        """
        being_made = False
        with contextlib.suppress(FileNotFoundError), os.scandir(self._home.runs) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    stat = entry.stat()
                    if not (Path(entry.path) / names.RUN_RECORD).exists():
                        being_made |= abs(time.time() - stat.st_mtime) < FRESH_FOR_S
                    elif self._settled.get(entry.name) != stat.st_mtime_ns:
                        self._take_up(entry.name, Path(entry.path), stat.st_mtime_ns)
        return being_made

    def _take_up(self, name: str, run_dir: Path, mtime_ns: int) -> None:
        try:
            record = RunRecord.from_json(files.read_json(run_dir / names.RUN_RECORD))
        except UsageError as error:
            log.warning("%s: %s", name, error.message)
            self._settled[name] = mtime_ns
            return
        known = self._runs.get(name)
        if known is not None and known.record == record:
            return
        mirrored = files.read_json(run_dir / names.MIRRORED)
        if isinstance(mirrored, dict) and mirrored.get("attempt") == record.attempt:
            if mirrored.get("store") != "dead":
                self._settled[name] = mtime_ns
                return
        mirror = RunMirror(self._client, run_dir, record, self._artefacts)
        mirror.abandoned = {"run_id": record.run_id, "attempt": record.attempt} in read_revoked(self._home)
        self._runs[name] = mirror
        self._busy.set()

    def _settle(self, name: str, mirror: RunMirror) -> None:
        """Write mirrored.json when all has left; forget the run when nothing is left to do for it."""
        if mirror.abandoned:
            self._forget(name, mirror)
            return
        if not (mirror.ended and mirror.shipped):
            return
        stored = store_choice.is_configured(self._home)
        if mirror.store_complete or not stored:
            if mirror.mirrored_at == 0.0:
                mirror.write_mirrored("complete" if mirror.store_complete else "none")
            if not stored or mirror.is_settled or time.monotonic() - mirror.mirrored_at > UNSETTLED_FOR_S:
                self._forget(name, mirror)
        elif self._store_is_dead_for(mirror) and name not in self._dead_store_told:
            self._dead_store_told.add(name)
            log.warning("%s: the store is dead; what this run made is on the laptop only", name)
            mirror.write_mirrored("dead")

    def _store_is_dead_for(self, mirror: RunMirror) -> bool:
        """It does not answer, or (full, read-only) it answers and takes nothing of this run."""
        return max(self._store.ill_s, time.monotonic() - mirror.store_took_at) > STORE_DEAD_AFTER_S

    def _forget(self, name: str, mirror: RunMirror) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._settled[name] = mirror.run_dir.stat().st_mtime_ns
        self._runs.pop(name, None)

    # --- towards the laptop ------------------------------------------------------------------------------

    def _ship_step(self) -> float:
        if not self._busy.wait(1.0):
            return 0.0
        return 0.0 if self._pace.logs_first(self._ship_all) else SHIP_EVERY_S

    def _ship_all(self) -> bool:
        more = False
        for mirror in self._reachable():
            more = self._guarded(mirror, mirror.ship) or more
        return more

    def _outputs_step(self, artefacts: Artefacts, most_bytes: float = float("inf")) -> float:
        if not self._busy.wait(5.0):
            return 0.0
        for mirror in self._reachable():
            if mirror.logs_shipped and not mirror.shipped:  # also when exit.json was written anew since
                if self._guarded(mirror, functools.partial(mirror.ship_outputs, artefacts, most_bytes)):
                    self._wake.set()
        return SHIP_EVERY_S

    def _reachable(self) -> list[RunMirror]:
        now = time.monotonic()
        return [mirror for mirror in list(self._runs.values()) if not mirror.abandoned and mirror.not_before <= now]

    def _guarded(self, mirror: RunMirror, action: Callable[[], bool | None]) -> bool:
        """A refusal, or a file that can't be used, concerns this run alone; trouble with the network concerns all.

        A refusal is unsigned, so it only makes us wait: the signed hints decide.
        """
        try:
            return bool(action())
        except (TransferError, PairingError):
            raise
        except (BridgeheadError, OSError) as error:
            log.warning("%s: %s", mirror.record.run_id, error)
            mirror.not_before = time.monotonic() + REFUSED_PAUSE_S
            return False

    def _note_uploads(self) -> None:
        """For the cell's line; a sick disk is no reason to fail."""
        told = self._pace.told()
        if told != self._uploads_noted:
            with contextlib.suppress(OSError):
                files.write_json(self._home.state / names.VM_UPLOADS, told)
                self._uploads_noted = told

    def _heartbeat_step(self) -> float:
        self._note_uploads()
        beat = self._beat()
        hints = self._client.heartbeat(beat)
        key_rotation.heed(self._home, hints, self._client.signed_with().key_id)
        (self._home.state / daemons.CONTACT_MARK).touch()
        if beat.lifetime.get("released"):
            (self._home.state / daemons.GOODBYE_MARK).touch()
        self._heartbeat_s = min(60.0, max(0.5, float(hints.get("heartbeat_s", 5))))
        self._pace.heed(hints.get("uploads"))
        if announcement.KIND in hints:
            self._addresses.take(hints[announcement.KIND], "the bridge itself")
        revoked = hints.get("revoked", [])
        if revoked:
            self._revoke([{"run_id": str(item["run_id"]), "attempt": int(item["attempt"])} for item in revoked])
        return self._heartbeat_s

    def _beat(self) -> Heartbeat:
        record = self._home.record()
        now, mirrors = time.time(), list(self._runs.values())
        return Heartbeat(
            vm_id=self._client.vm_id,
            boot_id=processes.boot_id(),
            at=now,
            ship_sha256=str(record.get("ship_sha256", "")),
            started=float(record.get("started", 0.0)),
            hostname=socket.gethostname(),
            python=platform.python_version(),
            store=self._store.told(),
            cell_age_s=age_s(self._home.state / daemons.CELL_MARK),
            lifetime=lifetime.snapshot(self._home),
            address_seq=self._home.pairing().seq,
            address_note=str(self._addresses.note or self._store.record.get("address_note") or ""),
            runs=[_in_beat(one.status, one.record.spec.pins, now) for one in mirrors if one.status is not None],
            uploads=self._pace.told(),
            export_trial=export_trial.told(self._home),
            **self._gauges.snapshot(),
        )

    # --- from the store ------------------------------------------------------------------------------------

    def _heed_the_store(self) -> None:
        """A higher attempt holds the lease of a run there."""
        told = self._store.record.get("superseded")
        taken = [item for item in told if isinstance(item, dict)] if isinstance(told, list) else []
        if taken:
            self._revoke([{"run_id": str(item["run_id"]), "attempt": int(item["attempt"])} for item in taken])

    def _revoke(self, runs: list[dict[str, Any]]) -> None:
        """Write them down for the command daemon, which kills them, and stop mirroring them."""
        known = read_revoked(self._home)
        fresh = [run for run in runs if run not in known]
        if fresh:
            files.write_json(self._home.state / names.VM_REVOKED, known + fresh)
        for mirror in list(self._runs.values()):
            if {"run_id": mirror.record.run_id, "attempt": mirror.record.attempt} in runs:
                mirror.abandoned = True


def _in_beat(status: Status, pins: Pins, now: float) -> dict[str, Any]:
    """A run as a heartbeat tells it. `running_s`: what it has been running, over all attempts; what a cap counts.

    `cost` is left out for a run that has no price.
    """
    running_s, cost = run_meter.running_s(status, now), run_price.told(pins, status, now)
    run = {"run_id": status.run_id, "state": str(status.state), "attempt": status.attempt, "running_s": running_s}
    return run | ({"cost": cost} if cost else {})


def read_revoked(home: VmHome) -> list[dict[str, Any]]:
    found = files.read_json(home.state / names.VM_REVOKED)
    return [item for item in found if isinstance(item, dict)] if isinstance(found, list) else []


@contextlib.contextmanager
def _watching(folder: Path, wake: threading.Event) -> Iterator[bool]:
    """Set `wake` when something appears in `folder`, where watchdog is installed; else yield False.

    Only the folder of runs is watched: events for each line of a log would cost more than to look at its size.
    """
    try:
        from watchdog.events import DirCreatedEvent, FileSystemEvent, FileSystemEventHandler
        from watchdog.observers import Observer
    except ImportError:
        yield False
        return

    class Handler(FileSystemEventHandler):
        def on_any_event(self, event: FileSystemEvent) -> None:
            wake.set()

    observer = Observer()
    try:
        observer.schedule(Handler(), str(folder), recursive=False, event_filter=[DirCreatedEvent])
        observer.start()
    except OSError:  # out of inotify watches: looking now and then does too
        yield False
        return
    try:
        yield True
    finally:
        observer.stop()


def main() -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    home = VmHome.from_environment()
    home.create()
    daemon = StatusDaemon(home, BridgeClient(home))
    signal.signal(signal.SIGTERM, lambda *_: daemon.stop())
    log.info("started, pid %d", os.getpid())
    daemon.run()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
