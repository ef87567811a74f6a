"""What the bridge answers besides file contents: JSON, nothing, and refusals that help no stranger."""

from __future__ import annotations

import base64
from collections.abc import Mapping

from aiohttp import web

from bridgehead import errors, files
from bridgehead.errors import BridgeheadError

_STATUS: tuple[tuple[type[BridgeheadError], int], ...] = (  # the first class that fits
    (errors.SupersededError, 409),
    (errors.NotFoundError, 404),
    (errors.PairingError, 401),
    (errors.ProjectError, 503),
    (errors.UsageError, 400),
    (errors.VerificationError, 400),
    (errors.TransferError, 503),
)
ALWAYS = {
    "Server": "bridgehead",
    "Cache-Control": "private, no-store, no-transform",
    "X-Content-Type-Options": "nosniff",
}


class Refused(Exception):
    """Answer `status` with this error, or nothing. `close`: the body was not read, so the connection has to end."""

    def __init__(
        self,
        status: int,
        error: BridgeheadError | None,
        *,
        headers: Mapping[str, str] | None = None,
        close: bool = False,
    ) -> None:
        super().__init__(error.message if error is not None else status)
        self.status = status
        self.error = error
        self.headers = dict(headers or {})
        self.close = close


def answer_json(value: object, *, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    return web.Response(
        body=files.canonical_json(value),
        status=status,
        content_type="application/json",
        headers={**ALWAYS, **(headers or {})},
    )


def answer_empty(status: int = 204, headers: Mapping[str, str] | None = None) -> web.Response:
    return web.Response(status=status, headers={**ALWAYS, **(headers or {})})


def answer_refusal(refused: Refused) -> web.Response:
    if refused.error is None:
        response = answer_empty(refused.status, refused.headers)
    else:
        response = answer_json({"error": refused.error.to_json()}, status=refused.status, headers=refused.headers)
    if refused.close:
        response.force_close()
    return response


def base64_text(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def stranger() -> Refused:
    """The one answer to whoever is not paired, whatever was wrong, given before the body is read."""
    return Refused(401, errors.PairingError("not paired", hint="run the bootstrap cell again"), close=True)


def refusal_of(error: BridgeheadError) -> Refused:
    status = next((status for cls, status in _STATUS if isinstance(error, cls)), 500)
    return Refused(status, error)
