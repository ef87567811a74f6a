"""Connections: how many at once, how long one may stay without sending the head of a request, and what is no request.

The server library limits neither: a few hundred silent clients would use up the descriptors and nobody could come in.
When there are too many, whoever has waited longest with the head of its first request goes first: honest clients send
it at once. What can't even be read as HTTP gets the answer of every stranger.
"""

from __future__ import annotations

import asyncio
from typing import Any

from aiohttp import HttpVersion11, web

from bridge import answers

CONNECTIONS_MAX = 512  # a quick tunnel lets 200 requests through at once
HEAD_TIMEOUT_S = 10.0


class _Connection(web.RequestHandler):
    """One connection."""

    __slots__ = ()

    def handle_error(self, request: web.BaseRequest, *_: Any, **__: Any) -> web.StreamResponse:
        """For what is not valid HTTP; the library would tell what it is and what it stumbled over."""
        if request.writer.output_size > 0:
            raise ConnectionError("the answer had begun")
        return answers.answer_refusal(answers.stranger())


class DoorkeepingServer(web.Server):
    """aiohttp's server, with a door."""

    def __init__(self, handler: Any, **settings: Any) -> None:
        super().__init__(handler, request_factory=self._hear, **settings)
        self._settings = settings
        self._waited_for: dict[web.RequestHandler, asyncio.TimerHandle] = {}

    def __call__(self) -> web.RequestHandler:
        return _Connection(self, loop=asyncio.get_running_loop(), **self._settings)

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        if len(self.connections) > CONNECTIONS_MAX:
            silent = next(iter(self._waited_for), None)
            if silent is None or silent.transport is None:
                # Not at once: the library's task for the connection would find it gone, and log a traceback of that.
                asyncio.get_running_loop().call_soon(transport.abort)
                return
            self._stop_waiting(silent)
            silent.transport.abort()
        timer = asyncio.get_running_loop().call_later(HEAD_TIMEOUT_S, transport.abort)
        self._waited_for[handler] = timer

    def connection_lost(self, handler: web.RequestHandler, exc: BaseException | None = None) -> None:
        self._stop_waiting(handler)
        super().connection_lost(handler, exc)

    def _hear(self, message: Any, payload: Any, protocol: Any, writer: Any, task: Any) -> web.BaseRequest:
        self._stop_waiting(protocol)
        if message.version < HttpVersion11:  # so are those that can't be read: the answer must not tell them apart
            message = message._replace(version=HttpVersion11)
        return web.BaseRequest(message, payload, protocol, writer, task, asyncio.get_running_loop())

    def _stop_waiting(self, handler: web.RequestHandler) -> None:
        timer = self._waited_for.pop(handler, None)
        if timer is not None:
            timer.cancel()
