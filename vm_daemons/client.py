"""The VM's side of the wire: signed requests to the bridge on the laptop.

Each call reads the pairing anew, so a cell that was run again with a new code is picked up at once. A client may be
used from several threads: each gets a connection of its own. Nothing is retried in here; who calls knows best what to
do while the laptop is away, and has `Backoff` for it.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import random
import re
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import requests

from bridgehead import names, packs, signing
from bridgehead.errors import (
    BridgeheadError,
    NotFoundError,
    PairingError,
    SupersededError,
    TransferError,
    UsageError,
)
from bridgehead.pairing import Pairing
from bridgehead.records import AckRecord, Command, Heartbeat
from vm_daemons.home import VmHome
from vm_daemons.storage.pace import Backoff as Backoff
from vm_daemons.upload_requests import FilePart, Limits

CONNECT_TIMEOUT_S = 10.0
ANSWER_TIMEOUT_S = 20.0
BODY_TIMEOUT_S = 90.0  # a part of 16 MiB through a slow tunnel, and the fsync at its end
_WAITS_MAX = 5  # times that one request is told 429 before it fails
_WAIT_MAX_S = 30.0
_OFFSET = re.compile(r"[0-9]{1,15}\Z")


class OffsetConflict(TransferError):
    """The server holds another number of bytes than we thought; `offset` is the truth."""

    def __init__(self, offset: int) -> None:
        super().__init__(f"the laptop holds {offset} bytes of this upload")
        self.offset = offset


class Rejected(TransferError):
    """The laptop says that the request makes no sense, for its name for example: no use in repeating it."""


@dataclass(frozen=True)
class Upload:
    """Where a resumable upload stands on the laptop."""

    offset: int
    complete: bool
    limits: Limits = Limits()


class BridgeClient:
    """Raises TransferError (network; try again), PairingError (401), SupersededError and NotFoundError."""

    def __init__(self, home: VmHome) -> None:
        self._home = home
        self._local = threading.local()
        self.vm_id: str = home.record()["vm_id"]

    # --- queue and heartbeat ------------------------------------------------------------------------

    def poll(self, after: int, wait_s: float) -> list[Command]:
        """Commands newer than delivery `after`, waiting up to `wait_s` for one. Each is checked on its own."""
        query = urlencode({"vm": self.vm_id, "after": after, "wait": f"{wait_s:g}"})
        answer = self._call("GET", names.QUEUE_PATH, query, answer_s=wait_s + ANSWER_TIMEOUT_S)
        documents = _json_object(answer).get("commands")
        if not isinstance(documents, list):
            raise TransferError("the bridge's answer holds no list of commands")
        key = self.signed_with().key  # not the newest: it may have been rotated while the poll waited
        opened = [Command.from_json(signing.open_document(key, "command", document)) for document in documents]
        return [command for command in opened if command.vm_id == self.vm_id]

    def ack(self, command_id: str, record: AckRecord) -> None:
        self._call("POST", f"{names.QUEUE_PATH}/{quote(command_id, safe='')}/ack", body=_dump(record.to_json()))

    def heartbeat(self, beat: Heartbeat) -> dict[str, Any]:
        """Say how this VM is; return the hints, proven to be the answer to this very request."""
        nonce = secrets.token_urlsafe(16)
        path = f"{names.VMS_PREFIX}{self.vm_id}/heartbeat"
        answer = self._call("POST", path, body=_dump(beat.to_json()), nonce=nonce)
        return self._open_reply("hints", _json_object(answer), nonce)

    # --- payload ---------------------------------------------------------------------------------------

    def manifest_document(self) -> dict[str, Any]:
        """What the payload consists of: the signed document, proven to be the answer to this very request."""
        nonce = secrets.token_urlsafe(16)
        # The laptop may have to hash first what has changed.
        answer = self._call("GET", names.SERVE_PREFIX + names.PAYLOAD_MANIFEST, nonce=nonce, answer_s=BODY_TIMEOUT_S)
        document = _json_object(answer)
        self._open_reply("manifest", document, nonce)
        return document

    def blocks(self, sha256: str) -> tuple[int, bytes]:
        """Size of a content of the payload, and the SHA-256 of each of its blocks in one string.

        Raises NotFoundError when the laptop has it no more.
        """
        nonce = secrets.token_urlsafe(16)
        path = f"{names.SERVE_PREFIX}{names.SERVE_BLOCKS}/{sha256}"
        told = self._open_reply("blocks", _json_object(self._call("GET", path, nonce=nonce)), nonce)
        size, listed = told.get("size"), told.get("blocks")
        if told.get("sha256") != sha256 or type(size) is not int or not isinstance(listed, str):
            raise PairingError("signed blocks that are none of this file", hint="run the bootstrap cell again")
        return size, base64.b64decode(listed)

    def content(self, sha256: str, start: int, end: int) -> requests.Response:
        """A content of the payload from `start` up to `end`, not read yet; NotFoundError as in `blocks`."""
        headers = {"Range": f"bytes={start}-{end - 1}", "If-Range": f'"{sha256}"'}
        path = f"{names.SERVE_PREFIX}{names.SERVE_CONTENT}/{sha256}"
        return self._call("GET", path, headers=headers, answer_s=ANSWER_TIMEOUT_S, stream=True)

    def pack(self, parts: list[packs.Part], *, deflate: bool) -> requests.Response:
        """Many parts of payload files in one answer, not read yet: see bridgehead.packs."""
        body = _dump(packs.make_request(parts, deflate=deflate))
        return self._call("POST", names.SERVE_PREFIX + names.SERVE_PACK, body=body, stream=True)

    # --- uploads ------------------------------------------------------------------------------------

    def put(self, run_id: str, relative: str, path: Path, attempt: int) -> None:
        """Send one whole file (up to names.PUT_MAX_BYTES)."""
        self.send_in("PUT", run_id, relative, attempt, body=path.read_bytes())

    def offset(self, run_id: str, relative: str, attempt: int, generation: str) -> Upload | None:
        """How much of this upload the laptop has; None when it knows of none."""
        try:
            return _upload(
                self.send_in("HEAD", run_id, relative, attempt, headers={names.HEADER_GENERATION: generation})
            )
        except NotFoundError:
            return None

    def open_upload(
        self,
        run_id: str,
        relative: str,
        attempt: int,
        generation: str,
        *,
        length: int | None = None,
        sha256: str = "",
    ) -> Upload:
        """Begin an upload, or find out where this same one stands. Without `length` it is a growing file."""
        headers = {names.HEADER_COMPLETE: "?0", names.HEADER_GENERATION: generation}
        if length is not None:
            headers[names.HEADER_LENGTH] = str(length)
        if sha256:
            headers[names.HEADER_REPR_DIGEST] = signing.digest_header(bytes.fromhex(sha256))
        return _upload(self.send_in("POST", run_id, relative, attempt, headers=headers))

    def append(
        self,
        run_id: str,
        relative: str,
        attempt: int,
        generation: str,
        offset: int,
        data: bytes,
        *,
        complete: bool = False,
    ) -> int:
        """Send the bytes from `offset` on; return the new offset. Raises OffsetConflict with the real one."""
        headers = {
            "Content-Type": names.PARTIAL_UPLOAD,
            names.HEADER_OFFSET: str(offset),
            names.HEADER_COMPLETE: "?1" if complete else "?0",
            names.HEADER_GENERATION: generation,
        }
        return _upload(self.send_in("PATCH", run_id, relative, attempt, headers=headers, body=data)).offset

    def forget_upload(self, run_id: str, relative: str, attempt: int, generation: str) -> None:
        """Drop an upload that is not complete."""
        self.send_in("DELETE", run_id, relative, attempt, headers={names.HEADER_GENERATION: generation})

    def send_in(
        self,
        method: str,
        run_id: str,
        relative: str,
        attempt: int,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes | FilePart = b"",
        query: Mapping[str, str] | None = None,
    ) -> requests.Response:
        """One request below /in/; an empty `relative` is the run's folder itself."""
        words = urlencode({"vm": self.vm_id, "attempt": attempt, **(query or {})})
        path = f"{names.IN_PREFIX}{run_id}/{quote(relative)}"
        return self._call(method, path, words, headers=headers, body=body, answer_s=BODY_TIMEOUT_S)

    # --- one request ----------------------------------------------------------------------------------

    def signed_with(self) -> Pairing:
        """The pairing that this thread's last request was signed with; its answer is signed with the same."""
        pairing: Pairing = self._local.pairing
        return pairing

    def _call(
        self,
        method: str,
        path: str,
        query: str = "",
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes | FilePart = b"",
        nonce: str | None = None,
        answer_s: float = ANSWER_TIMEOUT_S,
        stream: bool = False,
    ) -> requests.Response:
        """One request; again when it is told to wait, and when its key was rotated while it was under way."""
        waits = 0
        while True:
            answer = self._send(method, path, query, headers or {}, body, nonce, answer_s, stream)
            if 200 <= answer.status_code < 300:
                return answer
            with answer:
                error = _error(answer)
            if answer.status_code == 429 and waits < _WAITS_MAX:
                waits += 1
                time.sleep(_retry_after_s(answer))
            elif answer.status_code != 401 or self._home.pairing().key_id == self.signed_with().key_id:
                raise error

    def _send(
        self,
        method: str,
        path: str,
        query: str,
        headers: Mapping[str, str],
        body: bytes | FilePart,
        nonce: str | None,
        answer_s: float,
        stream: bool,
    ) -> requests.Response:
        pairing = self._local.pairing = self._home.pairing()
        session = self._session()
        url = pairing.url.rstrip("/") + path + (f"?{query}" if query else "")
        sent = {"Accept-Encoding": "identity", "User-Agent": "bridgehead", **headers}
        # As a file, so that the timeout holds for each 16 KiB that is sent and not for all of them on a slow line.
        data = body.open() if isinstance(body, FilePart) else io.BytesIO(body) if body else None
        prepared = session.prepare_request(requests.Request(method, url, headers=sent, data=data))
        # What is signed is what goes on the wire: the library may have re-quoted the URL.
        wire_path, _, wire_query = prepared.path_url.partition("?")
        digest = body.sha256 if isinstance(body, FilePart) else hashlib.sha256(body).digest()
        prepared.headers.update(
            signing.sign_request(
                pairing.key, pairing.key_id, method, wire_path, wire_query, sent, body_sha256=digest, nonce=nonce
            )
        )
        settings = session.merge_environment_settings(url, {}, stream, None, None)
        try:
            return session.send(prepared, timeout=(CONNECT_TIMEOUT_S, answer_s), allow_redirects=False, **settings)
        except requests.RequestException as error:
            raise TransferError(
                f"the bridge at {urlsplit(pairing.url).netloc} does not answer ({type(error).__name__})"
            ) from None

    def _session(self) -> requests.Session:
        session: requests.Session | None = getattr(self._local, "session", None)
        if session is None:
            session = self._local.session = requests.Session()
        return session

    def _open_reply(self, kind: str, document: dict[str, Any], nonce: str) -> dict[str, Any]:
        body = signing.open_document(self.signed_with().key, kind, document)
        if body.get("reply_to") != nonce:
            raise PairingError(f"signed {kind} that answer another request", hint="somebody replays old answers")
        return body


def with_retries(action: Callable[[], Any], *, give_up_after_s: float, on_retry: Callable[[str], None]) -> Any:
    """`action()`, tried again while the network is at fault; raises the last TransferError after the deadline."""
    deadline = time.monotonic() + give_up_after_s
    backoff = Backoff()
    while True:
        try:
            return action()
        except TransferError as error:
            if time.monotonic() > deadline:
                raise
            on_retry(error.message)
            time.sleep(backoff.next_s())


def _error(answer: requests.Response) -> BridgeheadError:
    """The exception for an answer that is not 2xx. Its text may come from anybody between here and the laptop."""
    status = answer.status_code
    told = _error_member(answer)
    message = str(told.get("message") or f"the bridge answered {status}")[:300]
    hint = str(told.get("hint") or "")[:300]
    if status == 401:
        return PairingError(
            "the laptop does not accept this VM's signature",
            hint="run the bootstrap cell again with a new code; also check that both clocks are right",
        )
    if status == 403 and told.get("code") == PairingError.code:  # not the 403 of somebody on the way
        return PairingError(message, hint=hint)
    if status == 409 and told.get("code") == SupersededError.code:
        return SupersededError(message, hint=hint)
    if status == 409 and _OFFSET.match(answer.headers.get(names.HEADER_OFFSET, "")):
        return OffsetConflict(int(answer.headers[names.HEADER_OFFSET]))
    if status == 404:
        return NotFoundError(message, hint=hint)
    if status == 413:
        return UsageError(message, hint=hint)
    if status == 400 and told.get("code") == UsageError.code:
        return Rejected(message, hint=hint)
    return TransferError(message, hint=hint)


def _retry_after_s(answer: requests.Response) -> float:
    """How long to wait before the next try; with jitter, so that many who were told so don't come at once."""
    told = answer.headers.get("Retry-After", "")
    return min(float(told) if told.isdigit() else 1.0, _WAIT_MAX_S) * random.uniform(1.0, 1.5)


def _error_member(answer: requests.Response) -> dict[str, Any]:
    try:
        told = answer.json()["error"]
    except (ValueError, KeyError, TypeError, RecursionError, requests.RequestException):
        return {}
    return told if isinstance(told, dict) else {}


def _json_object(answer: requests.Response) -> dict[str, Any]:
    try:
        value = answer.json()
    except (ValueError, RecursionError):
        raise TransferError("something other than the bridge answered: not JSON") from None
    if not isinstance(value, dict):
        raise TransferError("something other than the bridge answered: not a JSON object")
    return value


def _upload(answer: requests.Response) -> Upload:
    offset = answer.headers.get(names.HEADER_OFFSET, "")
    if not _OFFSET.match(offset):
        raise TransferError(f"the bridge's answer holds no {names.HEADER_OFFSET}")
    limits = Limits.read(answer.headers.get(names.HEADER_LIMIT, ""))
    return Upload(int(offset), answer.headers.get(names.HEADER_COMPLETE) == "?1", limits)


def _dump(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
