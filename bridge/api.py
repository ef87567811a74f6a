"""Every request of docs/wire.md, from the raw bytes of its address to an answer. One door: `Api.handle`."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import logging
import re
import sqlite3
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from aiohttp import web

from bridge import bodies, raw_body, sqlite_faults, uploads
from bridge.address_record import AddressRecord
from bridge.addresses import Address, count, read_address, vm_id
from bridge.answers import ALWAYS, Refused, answer_empty, answer_json, answer_refusal, refusal_of, stranger
from bridge.auth import Caller, names_a_known_key
from bridge.boot_archive import BootArchive
from bridge.deliveries import Deliveries
from bridge.keys import KeyStore
from bridge.ledger import Ledger
from bridge.payload import Payload
from bridge.permits import Permits
from bridge.polls import WaitingPolls
from bridge.serving import content_of_bytes, serve
from bridge.uploads import Uploads
from bridgehead import announcement, names, paths, signing
from bridgehead.errors import BridgeheadError, NotFoundError, SupersededError, UsageError
from bridgehead.os_errors import means_full
from bridgehead.records import AckRecord, Heartbeat

log = logging.getLogger(__name__)
T = TypeVar("T")
HEARTBEAT_S = 5
_ACK_PATH = re.compile(re.escape(names.QUEUE_PATH) + r"/([0-9a-f]{32})/ack\Z")
_BEAT_PATH = re.compile(re.escape(names.VMS_PREFIX) + r"([^/]+)/heartbeat\Z")
_PACK_PATH = re.compile(f"({re.escape(names.SERVE_PREFIX + names.SERVE_PACK)})\\Z")
_POLLS_AS = re.compile(r"[?&]vm=([A-Za-z0-9_-]{1,64})(?:&|\Z)")
_NOTE_EVERY_S = 0.5  # whoever is refused must not keep the disk busy
_METHODS = "GET, HEAD, POST"


@dataclass(frozen=True)
class Parts:
    """What the requests work on."""

    queue: Path
    ledger: Ledger
    keys: KeyStore
    permits: Permits
    address: AddressRecord
    payload: Payload
    boot: BootArchive
    uploads: Uploads
    long_poll_max_s: float


class Api:
    """Lives on one event loop; whatever may touch a disk runs on a thread."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._deliveries = Deliveries(parts.payload)
        self._polls = WaitingPolls(lambda asks: self._with_ledger(parts.ledger.news_of, asks))
        self._ledger_thread = ThreadPoolExecutor(1, thread_name_prefix="ledger")  # not behind bodies on a slow disk
        self._closing = False
        self._refused_at = float("-inf")
        loop = asyncio.get_running_loop()
        parts.ledger.on_change(lambda: _call_on(loop, self._polls.changed))

    def close(self) -> None:
        """Answer the waiting polls now."""
        self._closing = True
        self._polls.wake_all()

    def wake(self) -> None:
        """Have the waiting polls look again: a key may have been revoked."""
        self._polls.wake_all()

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer, and close the connection when its body did not go through aiohttp."""
        answer = await self._answer(request)
        if raw_body.was_taken(request):
            answer.force_close()
        return answer

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """The edge: every error becomes an answer, and none of them tells a stranger anything."""
        try:
            return await self._route(request)
        except Refused as refused:
            return answer_refusal(refused)
        except BridgeheadError as error:
            return answer_refusal(refusal_of(error))
        except ConnectionError:
            raise  # the client went away; the server closes the connection
        except OSError as error:
            return answer_refusal(_refusal_of_os_error(error))
        except Exception as error:  # a bug must not take the bridge down; its traceback belongs into the log alone
            if isinstance(error, sqlite3.OperationalError) and sqlite_faults.means_full(error):
                return answer_refusal(uploads.no_room())
            log.exception("%s failed", request.method)
            return answer_refusal(refusal_of(BridgeheadError("the bridge made a mistake", hint="see its log")))

    async def _route(self, request: web.BaseRequest) -> web.StreamResponse:
        self._parts.permits.check_host(request)
        if request.method in ("GET", "HEAD") and request.raw_path == names.HEALTH_PATH:
            return _healthy()
        try:
            caller = self._parts.permits.admit(request)
        except Refused as refused:
            if refused.status == 401:
                await self._note_unpaired(request)
            raise
        address = read_address(request.raw_path)
        if address.path.startswith(names.IN_PREFIX):
            return await self._in(request, caller, address)
        if request.method in ("GET", "HEAD"):
            await bodies.read_small(request, caller.body_sha256, 0)
            return await self._get(request, caller, address)
        if request.method == "POST":
            return await self._post(request, caller, address)
        raise Refused(405, UsageError("not a method of this bridge"), headers={"Allow": _METHODS}, close=True)

    async def _note_unpaired(self, request: web.BaseRequest) -> None:
        """A VM whose clock or pairing code is wrong is not dead: its runs stay with it."""
        match = _BEAT_PATH.match(request.path) or _POLLS_AS.search(request.raw_path[:300])
        now = time.monotonic()
        if match is None or now - self._refused_at < _NOTE_EVERY_S:
            return
        with contextlib.suppress(UsageError):
            vm = vm_id(match[1])
            if names_a_known_key(request, self._parts.keys):
                self._refused_at = now
                await self._with_ledger(self._parts.ledger.refused, vm)

    # --- /in/ ----------------------------------------------------------------------------------

    async def _in(self, request: web.BaseRequest, caller: Caller, address: Address) -> web.StreamResponse:
        if request.method not in uploads.METHODS:
            raise Refused(405, UsageError("not a method of an upload"), headers={"Allow": ", ".join(uploads.METHODS)})
        path = address.path.removeprefix(names.IN_PREFIX)
        is_batch = request.method == "POST" and path.endswith("/") and path.count("/") == 1
        paths.check_relative(path.removesuffix("/") if is_batch else path)
        run_id, slash, _ = path.partition("/")
        if not slash or not paths.is_run_id(run_id):
            raise UsageError("an upload goes to a file below a run's folder")
        vm, attempt = vm_id(address.query.get("vm")), count("attempt", address.query.get("attempt"))
        await self._check_vm(caller, vm)
        if not await self._with_ledger(self._parts.ledger.owns, run_id, vm, attempt):
            await self._with_ledger(self._parts.ledger.find_run, run_id)  # NotFoundError: there is no such run
            raise SupersededError(f"{run_id} has been given to another VM or attempt")
        if is_batch:
            return await self._parts.uploads.batch(request, caller, run_id, ask=address.query.get("ask") == "1")
        return await self._parts.uploads.handle(request, caller, path)

    # --- GET and HEAD ----------------------------------------------------------------------------

    async def _get(self, request: web.BaseRequest, caller: Caller, address: Address) -> web.StreamResponse:
        path = address.path
        if (answer := await self._deliveries.get(request, caller, path)) is not None:
            return answer
        if path == names.SERVE_PREFIX + names.BOOT_ARCHIVE:
            return await serve(request, content_of_bytes(self._parts.boot.data, self._parts.boot.sha256))
        if path == names.SERVE_PREFIX + names.PAYLOAD_MANIFEST:
            return await self._manifest(caller)
        if path == names.QUEUE_TEXT_PATH:
            return await self._queue_text()
        if path == names.PROBE_PATH:
            return answer_json(signing.sign_document(caller.key, "probe", {"reply_to": caller.nonce}))
        if path == names.QUEUE_PATH and request.method == "GET":
            return await self._poll(request, caller, address)
        raise _no_such(address)

    async def _manifest(self, caller: Caller) -> web.Response:
        body = {
            "v": names.PROTOCOL,
            "reply_to": caller.nonce,
            "ship_sha256": self._parts.boot.sha256,
            **await asyncio.to_thread(self._parts.payload.manifest),
        }
        return answer_json(signing.sign_document(caller.key, "manifest", body))

    async def _queue_text(self) -> web.Response:
        try:
            data = await asyncio.to_thread(self._parts.queue.read_bytes)
        except FileNotFoundError:
            data = b""
        return web.Response(body=data, content_type="text/plain", charset="utf-8", headers=ALWAYS)

    async def _poll(self, request: web.BaseRequest, caller: Caller, address: Address) -> web.Response:
        vm, after = vm_id(address.query.get("vm")), count("after", address.query.get("after", "0"))
        wait_s = min(float(count("wait", address.query.get("wait", "0"))), self._parts.long_poll_max_s)
        await self._check_vm(caller, vm)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_s
        while True:
            mark = self._polls.mark()
            if not self._parts.permits.is_good(caller):
                raise stranger()
            commands = await self._with_ledger(self._parts.ledger.deliver, vm, after)
            if commands or self._closing or loop.time() >= deadline:
                break
            try:
                await self._polls.wait((vm, after), mark, deadline)
            except TimeoutError:
                break
            if request.transport is None:  # a VM that has hung up must not be given anything
                break
        documents = [signing.sign_document(caller.key, "command", command.to_json()) for command in commands]
        return answer_json({"commands": documents})

    # --- POST ----------------------------------------------------------------------------------------

    async def _post(self, request: web.BaseRequest, caller: Caller, address: Address) -> web.StreamResponse:
        handlers: tuple[tuple[re.Pattern[str], Callable[[str, Caller, Any], Awaitable[web.StreamResponse]]], ...] = (
            (_ACK_PATH, self._ack),
            (_BEAT_PATH, self._heartbeat),
            (_PACK_PATH, lambda _, __, document: self._deliveries.pack(request, document)),
        )
        for pattern, handler in handlers:
            if match := pattern.match(address.path):
                body = await bodies.read_small(request, caller.body_sha256)
                try:
                    document = json.loads(body)
                    # A lone surrogate can't be stored, and strict readers of `status --json` know no NaN.
                    json.dumps(document, ensure_ascii=False, allow_nan=False).encode()
                except (ValueError, RecursionError):
                    raise UsageError("the body is not JSON") from None
                return await handler(match[1], caller, document)
        raise _no_such(address)

    async def _ack(self, command_id: str, caller: Caller, document: Any) -> web.Response:
        record = AckRecord.from_json(document)
        await self._check_vm(caller, vm_id(record.vm_id))
        await self._with_ledger(self._parts.ledger.ack, command_id, record)
        return answer_empty()

    async def _heartbeat(self, vm: str, caller: Caller, document: Any) -> web.Response:
        beat = Heartbeat.from_json(document)
        if vm_id(beat.vm_id) != vm:
            raise UsageError("the heartbeat is of another VM than its path")
        await self._check_vm(caller, vm)
        revoked = await self._with_ledger(self._parts.ledger.heartbeat, beat)
        body = {
            "v": names.PROTOCOL,
            "reply_to": caller.nonce,
            "revoked": [{"run_id": run_id, "attempt": attempt} for run_id, attempt in revoked],
            "heartbeat_s": HEARTBEAT_S,
            "allow_sh": self._parts.permits.project_allows_sh,
            "uploads": await asyncio.to_thread(self._parts.uploads.rules.hints),
        }
        rotate = self._parts.permits.next_key(caller)
        if rotate is not None:
            body["rotate"] = rotate
        address = await asyncio.to_thread(self._parts.address.hint, caller.key, beat.address_seq)
        if address is not None:  # it came in by an older way, which may end
            body[announcement.KIND] = address
        return answer_json(signing.sign_document(caller.key, "hints", body))

    # --- whose VM it is --------------------------------------------------------------------------------

    async def _check_vm(self, caller: Caller, vm: str) -> None:
        """Raises Refused(403) when the VM belongs to another pairing. The first request of a VM decides."""
        if not self._parts.permits.is_bound(caller, vm):
            await self._with_ledger(self._parts.permits.bind, caller, vm)

    # --- the ledger ------------------------------------------------------------------------------------

    async def _with_ledger(self, function: Callable[..., T], *arguments: Any) -> T:
        """On a thread, since it may fsync, and on one alone, since SQLite has one writer."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._ledger_thread, functools.partial(function, *arguments))


def _call_on(loop: asyncio.AbstractEventLoop, function: Callable[[], None]) -> None:
    try:
        loop.call_soon_threadsafe(function)
    except RuntimeError:
        log.debug("the ledger changed after the bridge had stopped")


def _healthy() -> web.Response:
    """All that a stranger gets; the connection ends, so that no stranger ever holds one for longer than a head."""
    response = web.Response(text="ok", headers=ALWAYS)
    response.force_close()
    return response


def _no_such(address: Address) -> NotFoundError:
    return NotFoundError(f"the bridge has no {address.path[:80]!r} for this method")


def _refusal_of_os_error(error: OSError) -> Refused:
    if means_full(error):
        return uploads.no_room()
    if isinstance(error, FileNotFoundError):
        return refusal_of(NotFoundError("no such file"))
    log.error("a file operation failed: %s", error.strerror or type(error).__name__)
    return refusal_of(BridgeheadError("a file of the laptop can't be used", hint="see the bridge's log"))
