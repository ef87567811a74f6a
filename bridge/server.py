"""The bridge of one project: everything on the laptop that answers the VM, started and stopped as one."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import errno
import functools
import logging
import os
import socket
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from bridge import boot_archive, key_audit
from bridge.address_record import AddressRecord
from bridge.api import Api, Parts
from bridge.audit import Audit
from bridge.audit_feed import AuditFeed
from bridge.doorkeeper import DoorkeepingServer
from bridge.keys import KeyStore
from bridge.known_content import CONTENT_FILE, KnownContent
from bridge.ledger import Ledger
from bridge.ledger_audit import TAKEN
from bridge.nonces import NonceStore
from bridge.part_store import PARTS_FILE, PartStore
from bridge.payload import Payload
from bridge.permits import Permits
from bridge.project import LoadProject, ProjectView
from bridge.queue_file import QueueWatcher
from bridge.shortages import Shortages
from bridge.upload_rules import UploadRules
from bridge.upload_store import UPLOADS_FILE, UploadStore
from bridge.uploads import Uploads
from bridgehead import files, names
from bridgehead.errors import BridgeDownError, BridgeheadError, ProjectError, VerificationError
from bridgehead.pairing import Pairing
from bridgehead.records import VmRules

log = logging.getLogger(__name__)
# aiohttp logs a traceback for each malformed request of a stranger; our own faults are logged by Api.
logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)
_SWEEPS_PER_LOAD = 10  # the project file is read anew every ten seconds
KEEP_ALIVE_S = 120.0  # longer than the 90 s for which cloudflared keeps idle connections; ours must not end first
_LINGER_S = 2.0  # how long a refused body is read away so that its sender sees the refusal
_READ_BUFFER_BYTES = 1 << 20


@dataclass(frozen=True)
class BridgeSettings:
    root: Path  # the project folder
    load_project: LoadProject
    host: str = "127.0.0.1"
    port: int = names.DEFAULT_PORT  # 0: any free one
    also_host: str = ""  # an address of the local network to listen on with the same port
    long_poll_max_s: float = names.LONG_POLL_S


class Bridge:
    """`await start()`, then its parts, `port`, `boot_sha256` and `pairing` are there until `await stop()`."""

    port: int
    ledger: Ledger
    keys: KeyStore
    address: AddressRecord
    boot_sha256: str

    def __init__(self, settings: BridgeSettings) -> None:
        self.settings = settings
        self._running = contextlib.AsyncExitStack()

    async def start(self) -> None:
        """Raises BridgeDownError when the port is taken; nothing is left running then."""
        async with contextlib.AsyncExitStack() as stack:
            listener = stack.enter_context(_listen(self.settings.host, self.settings.port))
            self.port = int(listener.getsockname()[1])
            api = Api(await asyncio.to_thread(self._open_parts, stack))
            server = DoorkeepingServer(
                api.handle,
                access_log=None,
                auto_decompress=False,
                keepalive_timeout=KEEP_ALIVE_S,
                lingering_time=_LINGER_S,
                read_bufsize=_READ_BUFFER_BYTES,
            )
            runner = web.ServerRunner(server, shutdown_timeout=2.0)
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            stack.callback(api.close)
            watcher = QueueWatcher(self.settings.root / names.QUEUE_FILE, self.ledger, self._load_for_queue)
            watcher.start()
            stack.push_async_callback(asyncio.to_thread, watcher.stop)
            sweeper = asyncio.create_task(self._sweep(api))
            stack.push_async_callback(_end, sweeper)
            await web.SockSite(runner, listener).start()
            also = _listen_also(self.settings.also_host, self.port)
            if also is not None:
                await web.SockSite(runner, also).start()  # closes it, too
            self._running = stack.pop_all()

    async def stop(self) -> None:
        """Answer what is under way and close everything. Does nothing the second time."""
        await self._running.pop_all().aclose()

    def pairing(self, url: str) -> Pairing:
        """What goes into the pairing code of a VM that reaches this bridge at `url`; it answers to that name then."""
        self.announce_host(url)
        store = ""
        with contextlib.suppress(ProjectError):  # a code without it is good while the laptop is on
            store = self.settings.load_project().store.folder
        pairing = self.keys.pairing(url, self.boot_sha256, store=store)
        return dataclasses.replace(pairing, seq=self.address.seq_of(url))

    def announce_host(self, host: str) -> None:
        """Answer requests for this name too: `host`, `host:port` or a URL. Others get 421."""
        self._permits.hosts.announce(host)

    async def _sweep(self, api: Api) -> None:
        """What is to be done about once a second, for as long as the bridge lives."""
        lost_after_s = VmRules().lost_after_s
        keys = self.keys.active()
        while True:
            with contextlib.suppress(ProjectError):  # a mistake in the file: go on with what it said before
                view = await asyncio.to_thread(self.settings.load_project)
                lost_after_s, self._permits.project_allows_sh = view.vm.lost_after_s, view.allow_sh
            for _ in range(_SWEEPS_PER_LOAD):
                await asyncio.to_thread(self._chores, lost_after_s)
                if keys != (now := self.keys.active()):
                    keys = now
                    api.wake()
                await asyncio.sleep(1.0)

    def _chores(self, lost_after_s: float) -> None:
        """Find VMs that fell silent, end keys that are needed no more, and bring what happened to the audit file."""
        lost = functools.partial(self.ledger.sweep_lost, lost_after_s)
        for chore in (lost, self._permits.settle, self._feed.drain, self._shortages.flush):
            try:
                chore()
            except Exception:  # the task's edge: whatever is wrong with one of them, the others must go on
                log.exception("a chore of the bridge failed")

    def _close_audit(self) -> None:
        with contextlib.suppress(OSError, BridgeheadError):
            self._permits.refusals.flush(now=True)
            self._feed.drain()

    def _load_for_queue(self) -> ProjectView:
        """The project, whether any pairing runs shell commands, and what its runs are pinned to as of now."""
        view = self.settings.load_project()
        pin = view.prepare_pin(self.boot_sha256) if view.prepare_pin is not None else None
        return dataclasses.replace(view, pairings_allow_sh=self.keys.shell_allowed(), pin=pin)

    def _open_parts(self, stack: contextlib.AsyncExitStack) -> Parts:
        root = self.settings.root
        private, arrivals = root / names.PRIVATE_FOLDER, root / names.IN_FOLDER
        private.mkdir(mode=0o700, exist_ok=True)
        arrivals.mkdir(exist_ok=True)
        boot = boot_archive.build()
        self.boot_sha256 = boot.sha256
        self.keys = key_audit.open_keys(private, {"via": "bridge"})
        self.address = AddressRecord(private / names.ADDRESS)
        audit = Audit(private)
        key_audit.tell_unknown(self.keys, audit)
        _refuse_lost_ledger(private / names.LEDGER_FILE, audit, root / names.QUEUE_FILE)
        self.ledger = Ledger(private / names.LEDGER_FILE)
        stack.callback(self.ledger.close)
        rules = UploadRules(private, self.settings.load_project)
        store = UploadStore(private / UPLOADS_FILE, arrivals, rules.log_max_bytes)
        stack.callback(store.close)
        known = KnownContent(private / CONTENT_FILE, arrivals)
        stack.callback(known.close)
        parts = PartStore(private / PARTS_FILE, arrivals, known)
        stack.callback(parts.close)
        store.sweep(parts.temps())
        nonces = NonceStore(private)
        stack.callback(nonces.close)
        self._permits = Permits(self.keys, self.ledger, nonces, audit)
        self.ledger.heed_pairings(self.keys.pairings())
        self._shortages = Shortages(self.ledger)
        self._permits.hosts.announce(f"{self.settings.host}:{self.port}")
        self._feed = AuditFeed(self.ledger, audit)
        stack.callback(self._close_audit)
        return Parts(
            queue=root / names.QUEUE_FILE,
            ledger=self.ledger,
            keys=self.keys,
            permits=self._permits,
            address=self.address,
            payload=Payload(root, self.settings.load_project),
            boot=boot,
            uploads=Uploads(arrivals, store, parts, known, rules, self._shortages),
            long_poll_max_s=self.settings.long_poll_max_s,
        )


def _refuse_lost_ledger(ledger: Path, audit: Audit, queue: Path) -> None:
    """A new ledger would take every line of the queue again. Raises VerificationError where the old one is gone."""
    found = files.plain_stat(ledger)
    if (found is not None and found.st_size) or not _has_lines(queue):
        return
    taken = sum(event.get("event") == TAKEN for event in audit.read())
    if taken:
        raise VerificationError(
            f"{ledger.name} is gone, and the audit file has {taken} lines of {names.QUEUE_FILE} that were taken:"
            " all of them would be run once more",
            hint=f"empty {names.QUEUE_FILE} and start again; then add what is still to be run",
        )


def _has_lines(queue: Path) -> bool:
    try:
        lines = queue.read_bytes().splitlines()
    except OSError:
        return False
    return any(line.strip() and not line.strip().startswith(b"#") for line in lines)


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


def _listen_also(host: str, port: int) -> socket.socket | None:
    """None where that is not ours to take: another machine's address, or one where a reverse proxy listens."""
    if not host:
        return None
    try:
        return _listen(host, port)
    except BridgeDownError as error:
        log.warning("only 127.0.0.1 is served: %s", error.message)
        return None


def _listen(host: str, port: int) -> socket.socket:
    """Bind before anything else is opened. Raises BridgeDownError."""
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        if os.name == "posix":  # else a restarted bridge waits a minute for its port; on Windows it would share it
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(128)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise BridgeDownError(
                f"port {port} of {host} is taken",
                hint="another bridge may be running there: bridgehead down, or bridgehead up --port 0",
            ) from None
        raise BridgeDownError(f"can't listen on {host}:{port}: {error.strerror}") from None
    return listener
