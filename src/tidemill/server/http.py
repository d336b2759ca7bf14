"""uvicorn around the application, with bounds on request heads and signals left to its owner."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from tidemill.server.app import build_app
from tidemill.server.context import ServerContext

MAX_HEAD_BYTES = 64 * 2**10
HEAD_SECONDS = 30.0
"""A connection that has sent no whole request head by then is closed."""


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's protocol, with heads bounded in size and time.

    The parser beneath keeps what it is sent until a head is complete, however long that takes.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_bytes: int | None = 0  # None while a body or an answer is under way
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the clock for the first head."""
        super().connection_made(transport)
        self._start_clock()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the clock."""
        self._stop_clock()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Count what comes before a head is complete."""
        if self._head_bytes is not None:
            self._head_bytes += len(data)
        super().data_received(data)
        # Looked at afterwards: what completed a head may have had a body behind it.
        if (
            self._head_bytes is not None
            and self._head_bytes > MAX_HEAD_BYTES
            and not self.transport.is_closing()
        ):
            self.send_400_response("The request's head is too long.")

    def on_message_begin(self) -> None:
        """A head begins."""
        if self._head_bytes is None:
            self._head_bytes = 0
            self._start_clock()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """The head is complete."""
        self._head_bytes = None
        self._stop_clock()
        super().on_headers_complete()

    def _start_clock(self) -> None:
        self._stop_clock()
        self._head_timer = self.loop.call_later(HEAD_SECONDS, self._too_slow)

    def _stop_clock(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _too_slow(self) -> None:
        # An earlier request of the connection may still be answered (pipelining): let it.
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()


class HttpServer(uvicorn.Server):
    """uvicorn without its own signal handling: `server.run` has an engine to end as well."""

    def capture_signals(self) -> contextlib.AbstractContextManager[None]:  # type: ignore[override]
        """Nothing."""
        return contextlib.nullcontext()


def make_server(context: ServerContext, *, drain_seconds: int) -> HttpServer:
    """A server for `context`; requests in flight have `drain_seconds` after `should_exit`."""
    config = uvicorn.Config(
        build_app(context),
        http=BoundedProtocol,
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="error",
        access_log=False,
        server_header=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=drain_seconds,
    )
    return HttpServer(config)
