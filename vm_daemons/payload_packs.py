"""Small files, and single blocks of big ones, by the hundred in one answer. Of a cut one, what came whole is kept."""

from __future__ import annotations

import time
from collections.abc import Callable

import requests

from bridgehead import packs
from bridgehead.errors import TransferError, VerificationError
from bridgehead.packs import Part
from vm_daemons.client import Backoff, BridgeClient
from vm_daemons.payload_line import TRIES, Changed, Line, read_bytes

Take = Callable[[Part, memoryview], None]  # it raises VerificationError for other bytes than were asked for


def fetch(client: BridgeClient, parts: list[Part], take: Take, line: Line) -> None:
    """Hand each part to `take`, and ask again for what a cut has left out.

    Raises Changed, after all that is still there, when the laptop lacks one; VerificationError for an answer that holds
    something else than was asked for; TransferError after six tries without a part.
    """
    backoff, tries, changed = Backoff(), 0, ""
    left = parts
    while left:
        body, why = _ask(client, left, line, read_bytes(tries))
        came = 0
        try:
            with line.writing:
                for part, data in packs.unpack(body, left):
                    came += 1
                    if data is None or not _taken(take, part, data):
                        changed = part.sha256
        except TransferError as error:
            why = error
        left = left[came:]
        tries = 0 if came else tries + 1
        if tries >= TRIES:
            raise why
        if left and not came:
            line.ended.wait(backoff.next_s())
    if changed:
        raise Changed(changed)


def _taken(take: Take, part: Part, data: memoryview) -> bool:
    """A file that changes while it is read is no attack, and the next manifest will name what it is then."""
    try:
        take(part, data)
    except VerificationError:
        return False
    return True


def _ask(client: BridgeClient, parts: list[Part], line: Line, piece_bytes: int) -> tuple[bytes, TransferError]:
    """What came, and why it may be less than was asked for. Never more is read than an honest answer has."""
    most, deflate = packs.most_bytes(parts), line.deflate()
    body, why = bytearray(), TransferError("the laptop's answer ended early")
    began = time.monotonic()
    line.check()
    try:
        with client.pack(parts, deflate=deflate) as answer:
            for piece in answer.iter_content(piece_bytes):
                body += piece
                line.took(len(piece))
                if len(body) > most:
                    raise VerificationError("a pack holds more than was asked for")
    except requests.RequestException as error:
        why = TransferError(f"the download of a pack was cut ({type(error).__name__})")
    except TransferError as error:
        why = error
    else:
        line.measured(sum(part.length for part in parts), time.monotonic() - began, deflated=deflate)
    return bytes(body), why
