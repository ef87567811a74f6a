"""Request bodies: limits before the first byte is read, a time-out for a sender that stalls, and the signed digest.

A body is read on the event loop and hashed (and written) on a thread in batches of a MiB, one batch ahead of the
other, so that neither a slow disk nor a big hash ever holds up a long poll. A big one never touches the loop: raw_body.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from typing import Final

from aiohttp import web

from bridge import raw_body
from bridge.answers import Refused
from bridgehead.errors import TransferError, UsageError, VerificationError

STALL_S: Final = 30.0
SMALL_MAX_BYTES: Final = 2**20
_BATCH_BYTES: Final = 2**20  # of each body that is under way; 200 slow senders hold so much at most


def check_head(request: web.BaseRequest, limit_bytes: int) -> int | None:
    """What the headers alone tell: 413, 415 and 417 are answered before any of the body is read.

    Returns the announced length, None for a chunked body.
    """
    if request.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise Refused(415, UsageError("a body must come without Content-Encoding"), close=True)
    expect = request.headers.get("Expect")
    if expect is not None and expect.lower() != "100-continue":
        raise Refused(417, UsageError("Expect: only 100-continue is understood"), close=True)
    if request.content_length is not None and request.content_length > limit_bytes:
        raise _too_big(limit_bytes)
    return request.content_length


async def read_small(request: web.BaseRequest, body_sha256: bytes, limit_bytes: int = SMALL_MAX_BYTES) -> bytes:
    """A whole small body, checked against its signed digest."""
    check_head(request, limit_bytes)
    pieces = [piece async for batch in _batches(request, limit_bytes) for piece in batch]
    body = b"".join(pieces)
    if hashlib.sha256(body).digest() != body_sha256:
        raise _wrong_digest()
    return body


async def receive(request: web.BaseRequest, body_sha256: bytes, limit_bytes: int, take: raw_body.Take) -> None:
    """Hand a body to `take`, piece by piece on a thread; each is lent, and overwritten once the call has returned.

    The digest is known at the end only: `take` must not make anything visible before this returns. No call of
    `take` is under way any more once this has returned or raised.
    """
    check_head(request, limit_bytes)
    digest = hashlib.sha256()
    if raw_body.may_take(request):
        _send_continue(request)
        try:
            await raw_body.take_body(request, digest, take, stall_s=STALL_S)
        except raw_body.Stalled:
            raise _stalled() from None
    else:
        await _take_batches(request, limit_bytes, digest, take)
    if digest.digest() != body_sha256:
        raise _wrong_digest()


async def _take_batches(request: web.BaseRequest, limit_bytes: int, digest: hashlib._Hash, take: raw_body.Take) -> None:
    def work(batch: list[bytes]) -> None:
        for piece in batch:
            digest.update(piece)
            take(piece)

    working: asyncio.Future[None] | None = None
    try:
        async for batch in _batches(request, limit_bytes):
            if working is not None:
                await working
            working = asyncio.get_running_loop().run_in_executor(None, work, batch)
    finally:
        if working is not None:
            await asyncio.wait([working])
    if working is not None:
        working.result()


async def _batches(request: web.BaseRequest, limit_bytes: int) -> AsyncIterator[list[bytes]]:
    """Pieces as they arrive, gathered without a copy. A cut body raises ConnectionError, never ends early."""
    _send_continue(request)
    batch: list[bytes] = []
    batch_bytes = total_bytes = 0
    deadline_s = asyncio.get_running_loop().time() + STALL_S
    while True:
        piece = await _piece(request, deadline_s + total_bytes / raw_body.MIN_BYTES_PER_S)
        if not piece:
            break
        total_bytes += len(piece)
        if total_bytes > limit_bytes:
            raise _too_big(limit_bytes)
        batch.append(piece)
        batch_bytes += len(piece)
        if batch_bytes >= _BATCH_BYTES:
            yield batch
            batch, batch_bytes = [], 0
    if batch:
        yield batch


async def _piece(request: web.BaseRequest, deadline_s: float) -> bytes:
    """The next bytes of the body, empty at its end. Refused(408) for one that stalls, or drips in."""
    try:
        async with asyncio.timeout_at(min(deadline_s, asyncio.get_running_loop().time() + STALL_S)):
            while not request.content.at_eof():
                piece, _ = await request.content.readchunk()
                if piece:
                    return piece
    except TimeoutError:
        raise _stalled() from None
    except web.RequestPayloadError:
        raise Refused(400, UsageError("the body is not valid HTTP"), close=True) from None
    return b""


def _send_continue(request: web.BaseRequest) -> None:
    if "Expect" in request.headers and request.transport is not None:
        request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")


def _stalled() -> Refused:
    return Refused(408, TransferError(f"the body stalled or came too slowly for {STALL_S:.0f} s"), close=True)


def _too_big(limit_bytes: int) -> Refused:
    return Refused(413, UsageError(f"a body of at most {limit_bytes} bytes is taken here"), close=True)


def _wrong_digest() -> Refused:
    return Refused(400, VerificationError("the body does not match its Content-Digest", hint="send it again"))
