"""Does the public address lead to this very bridge? The bridge asks itself from outside, as a VM would.

A name that exists and a tunnel that says "connected" prove nothing: a fresh name is not known everywhere yet, a route
may lead elsewhere, and a stranger may answer. Here a signed request has to come back as a document that the
pairing key has signed, with the request's nonce in it.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import aiohttp

from bridge.probe_words import Answered, not_asked, not_ours
from bridge.tunnels.public_url import is_loopback
from bridgehead import names, signing
from bridgehead.errors import BridgeDownError, PairingError

ASK_TIMEOUT_S = 10.0
SETTLE_S = 60.0  # a fresh name may take so long to be known everywhere (530, 1033, 502, no DNS)
_BODY_MAX_BYTES = 1 << 16
_SURE_AFTER = 3  # as many equal answers in a row that waiting can't change
_PAUSE_S = (0.3, 5.0)  # between two tries: at first, at most


class ProbeFailed(BridgeDownError):
    """`settles`: of the kind that is normal just after a start and goes away by itself."""

    def __init__(self, message: str, *, hint: str = "", settles: bool = True) -> None:
        super().__init__(message, hint=hint)
        self.settles = settles


@dataclass(frozen=True)
class Probe:
    """Asks as the holder of the current pairing key; `current` gives (key id, 32 bytes), anew for each request."""

    current: Callable[[], tuple[str, bytes]] = field(repr=False)
    announce: Callable[[str], None] = field(default=lambda url: None, repr=False)  # ours has to know by which name
    timeout_s: float = ASK_TIMEOUT_S

    async def ask(self, url: str) -> None:
        """Return when the bridge at `url` has proven to be ours. Raises ProbeFailed that says what answered instead."""
        self.announce(url)
        nonce = secrets.token_urlsafe(16)
        key_id, key = self.current()
        answered = await self._get(url, key_id, key, nonce)
        if answered.status == 200:
            with contextlib.suppress(PairingError):
                body = signing.open_document(key, "probe", answered.document)
                if body.get("reply_to") == nonce:
                    return
        message, hint, settles = not_ours(url, answered)
        raise ProbeFailed(message, hint=hint, settles=settles)

    async def until_it_answers(
        self, url: str, *, deadline_s: float = SETTLE_S, told: Callable[[ProbeFailed], None] | None = None
    ) -> None:
        """Ask until it is ours. Raises the last ProbeFailed after `deadline_s`, or sooner when it is certain.

        `told` hears of each try that failed.
        """
        clock = asyncio.get_running_loop().time
        deadline, pause_s = clock() + deadline_s, _PAUSE_S[0]
        certain = 0
        while True:
            try:
                return await self.ask(url)
            except ProbeFailed as failed:
                if told is not None:
                    told(failed)
                certain = 0 if failed.settles else certain + 1
                if certain >= _SURE_AFTER or clock() + pause_s > deadline:
                    raise
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 1.5, _PAUSE_S[1])

    async def _get(self, url: str, key_id: str, key: bytes, nonce: str) -> Answered:
        headers = {"Accept": "application/json", "Accept-Encoding": "identity", "User-Agent": "bridgehead"}
        headers |= signing.sign_request(key, key_id, "GET", names.PROBE_PATH, "", headers, nonce=nonce)
        timeout = aiohttp.ClientTimeout(total=self.timeout_s)
        # A new connection each time: one that was kept would not see that the name has moved. What the user's
        # environment says of proxies holds, but not for this very machine, which no proxy leads back to.
        connector = aiohttp.TCPConnector(force_close=True, use_dns_cache=False)
        try:
            async with (
                aiohttp.ClientSession(
                    connector=connector, timeout=timeout, trust_env=not is_loopback(urlsplit(url).hostname or "")
                ) as session,
                session.get(url + names.PROBE_PATH, headers=headers, allow_redirects=False) as response,
            ):
                body = await response.content.read(_BODY_MAX_BYTES)
                while len(body) < _BODY_MAX_BYTES and (more := await response.content.read(_BODY_MAX_BYTES)):
                    body += more
                return Answered(response.status, dict(response.headers), body[:_BODY_MAX_BYTES])
        except (aiohttp.ClientError, OSError, TimeoutError, ssl.SSLError, ValueError) as error:
            message, hint, settles = not_asked(url, error)
            raise ProbeFailed(message, hint=hint, settles=settles) from None
