"""EngineClient: how the API side talks to an engine, in this process or over a socket.

`submit` and `cancel` return at once and are called from the client's event loop; outputs come back
through the stream that `submit` returned. If the engine dies, every open choice ends with a
retryable UNAVAILABLE error, and nothing waits for ever.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Protocol, cast

from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.base.log import get_logger
from tidemill.contract.config import EngineConfig
from tidemill.contract.request import ChoiceOutput, EngineRequest, FinishReason
from tidemill.contract.wire import (
    PROTOCOL_VERSION,
    Cancel,
    EngineInfo,
    EngineStats,
    Fatal,
    FrameReader,
    Hello,
    Outputs,
    Refused,
    Stats,
    StatsRequest,
    Submit,
    ToClient,
    Welcome,
    frame,
    to_client_decoder,
)
from tidemill.engine.build import build_id
from tidemill.engine.core import EngineCore, Message, open_core
from tidemill.engine.streams import Journal, StreamTable, engine_gone

_log = get_logger(__name__)

HANDSHAKE_SECONDS = 10.0
STATS_SECONDS = 10.0


class EngineClient(Protocol):
    """An engine, as its clients see it."""

    @property
    def info(self) -> EngineInfo:
        """What the engine resolved at its start."""

    @property
    def alive(self) -> bool:
        """The engine takes requests."""

    @property
    def last_stats(self) -> EngineStats:
        """The statistics that came with the latest outputs."""

    def on_stats(self, callback: Callable[[EngineStats], None]) -> None:
        """Call `callback` with every statistics snapshot that arrives."""

    def submit(self, request: EngineRequest) -> AsyncIterator[ChoiceOutput]:
        """Start a request. The iterator ends after every choice's terminal output; leaving it
        early does not stop the request: `cancel` does.

        Raises:
            TidemillError: UNAVAILABLE when the engine is gone, BAD_REQUEST for an id in use.
        """

    def cancel(
        self, request_id: str, choice: int | None = None, reason: str = FinishReason.CANCELLED
    ) -> None:
        """Stop a request's choice (None: all); `reason` is what its terminal output carries."""

    async def stats(self) -> EngineStats:
        """Statistics of this moment. Raises TidemillError UNAVAILABLE when the engine is gone."""

    async def close(self) -> None:
        """Leave. An engine that this client owns stops."""


class InprocClient:
    """The twin over an `EngineCore` in a thread of this process.

    Args:
        core: started.
        owner: closing the client closes the core.
    """

    def __init__(self, core: EngineCore, *, owner: bool = True) -> None:
        self._core = core
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._table = StreamTable()
        self._waiting: dict[int, asyncio.Future[EngineStats]] = {}
        self._nonce = 0
        self._closed = False
        self._id = core.connect(self._sink)

    @classmethod
    async def open(
        cls, config: EngineConfig, progress: Callable[[str], None] = lambda line: None
    ) -> InprocClient:
        """Load a model into this process and connect to its engine."""
        return cls(await asyncio.to_thread(open_core, config, progress))

    @property
    def info(self) -> EngineInfo:
        """See EngineClient."""
        return self._core.info

    @property
    def alive(self) -> bool:
        """See EngineClient."""
        return self._core.alive and not self._closed

    @property
    def last_stats(self) -> EngineStats:
        """See EngineClient."""
        return self._table.stats

    def on_stats(self, callback: Callable[[EngineStats], None]) -> None:
        """See EngineClient."""
        self._table.on_stats = callback

    def journals(self) -> list[Journal]:
        """Journals of the requests in flight."""
        return self._table.journals()

    def submit(self, request: EngineRequest) -> AsyncIterator[ChoiceOutput]:
        """See EngineClient."""
        stream = self._table.open(request)
        try:
            self._core.submit(self._id, stream.journal.request)
        except TidemillError:
            self._table.forget(request.request_id)
            raise
        return stream

    def cancel(
        self, request_id: str, choice: int | None = None, reason: str = FinishReason.CANCELLED
    ) -> None:
        """See EngineClient."""
        self._core.cancel(self._id, request_id, choice, FinishReason(reason))

    async def stats(self) -> EngineStats:
        """See EngineClient."""
        if not self.alive:
            raise _unavailable("the engine has stopped")
        self._nonce += 1
        future = self._waiting[self._nonce] = self._loop.create_future()
        self._core.request_stats(self._id, self._nonce)
        async with asyncio.timeout(STATS_SECONDS):
            stats: EngineStats = await future
        return stats

    async def close(self) -> None:
        """See EngineClient."""
        self._closed = True
        if self._owner:
            await asyncio.to_thread(self._core.close)
            await asyncio.sleep(0)
        else:
            self._core.disconnect(self._id)
        self._table.fail_all(engine_gone("the client was closed"))

    def _sink(self, message: Message) -> None:
        # Called from the engine's thread; a loop that is gone means that nobody listens.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._receive, message)

    def _receive(self, message: Message) -> None:
        if isinstance(message, Outputs):
            self._table.deliver(message)
        elif isinstance(message, Stats):
            future = self._waiting.pop(message.nonce, None)
            if future is not None and not future.done():
                future.set_result(message.stats)
        else:
            self._table.fail_all(engine_gone(message.message))


class SocketClient(asyncio.Protocol):
    """The twin over a Unix socket: one message per step in, one per call out.

    Made by `connect`.

    Args:
        config_digest: the configuration this client expects the engine to have.
        owner: the engine exits when this connection closes.
    """

    def __init__(self, config_digest: str, *, owner: bool = False) -> None:
        loop = asyncio.get_running_loop()
        self._hello = Hello(PROTOCOL_VERSION, build_id(), config_digest, owner)
        self._transport: asyncio.Transport | None = None
        self._reader = FrameReader()
        self._welcome: asyncio.Future[Welcome] = loop.create_future()
        self._lost: asyncio.Future[None] = loop.create_future()
        self._table = StreamTable()
        self._waiting: dict[int, asyncio.Future[EngineStats]] = {}
        self._nonce = 0
        self._reason = "the engine process has gone; send the request again"

    @classmethod
    async def connect(cls, path: str, config_digest: str, *, owner: bool = False) -> SocketClient:
        """Connect and shake hands.

        Raises:
            TidemillError: UNAVAILABLE when nobody listens at `path` or the engine has another
                protocol, build or configuration.
        """
        loop = asyncio.get_running_loop()
        client = cls(config_digest, owner=owner)
        try:
            await loop.create_unix_connection(lambda: client, path)
        except OSError as error:
            raise _unavailable(f"no engine listens at {path}: {error.strerror}") from error
        try:
            async with asyncio.timeout(HANDSHAKE_SECONDS):
                await asyncio.shield(client._welcome)
        except TimeoutError:
            await client.close()
            raise _unavailable("the engine did not answer the handshake") from None
        return client

    @property
    def info(self) -> EngineInfo:
        """See EngineClient."""
        return self._welcome.result().info

    @property
    def alive(self) -> bool:
        """See EngineClient."""
        return self._transport is not None and not self._lost.done()

    @property
    def last_stats(self) -> EngineStats:
        """See EngineClient."""
        return self._table.stats

    def on_stats(self, callback: Callable[[EngineStats], None]) -> None:
        """See EngineClient."""
        self._table.on_stats = callback

    def journals(self) -> list[Journal]:
        """Journals of the requests in flight: what a new engine needs to go on with them."""
        return self._table.journals()

    def submit(self, request: EngineRequest) -> AsyncIterator[ChoiceOutput]:
        """See EngineClient."""
        if not self.alive:
            raise _unavailable(self._reason)
        stream = self._table.open(request)
        self._send(Submit(stream.journal.request))
        return stream

    def cancel(
        self, request_id: str, choice: int | None = None, reason: str = FinishReason.CANCELLED
    ) -> None:
        """See EngineClient."""
        self._send(Cancel(request_id, choice, str(reason)))

    async def stats(self) -> EngineStats:
        """See EngineClient."""
        if not self.alive:
            raise _unavailable(self._reason)
        self._nonce += 1
        future = asyncio.get_running_loop().create_future()
        self._waiting[self._nonce] = future
        self._send(StatsRequest(self._nonce))
        async with asyncio.timeout(STATS_SECONDS):
            stats: EngineStats = await future
        return stats

    async def close(self) -> None:
        """See EngineClient."""
        if self._transport is not None:
            self._reason = "the server is shutting down"
            self._transport.close()
            await self._lost

    async def wait_lost(self) -> None:
        """Return when the connection is gone."""
        await asyncio.shield(self._lost)

    def _send(self, message: Submit | Cancel | StatsRequest | Hello) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(frame(message))

    # -- asyncio.Protocol --------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Speak first."""
        # uvloop's transports are transports without inheriting from asyncio's.
        self._transport = cast(asyncio.Transport, transport)
        self._send(self._hello)

    def data_received(self, data: bytes) -> None:
        """Take messages in."""
        try:
            for body in self._reader.feed(data):
                self._receive(to_client_decoder.decode(body))
        except ValueError as error:
            _log.error("the engine's messages cannot be read: %s", error)
            self._reason = "the engine sent what cannot be read"
            if self._transport is not None:
                self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """The engine is gone, or we left."""
        error = _unavailable(self._reason)
        if not self._welcome.done():
            self._welcome.set_exception(error)
            self._welcome.exception()  # looked at, even if whoever connected has given up
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(error)
        self._waiting.clear()
        self._table.fail_all(engine_gone(self._reason))
        if not self._lost.done():
            self._lost.set_result(None)

    def _receive(self, message: ToClient) -> None:
        if isinstance(message, Outputs):
            self._table.deliver(message)
        elif isinstance(message, Stats):
            future = self._waiting.pop(message.nonce, None)
            if future is not None and not future.done():
                future.set_result(message.stats)
        elif isinstance(message, Welcome):
            if not self._welcome.done():
                self._welcome.set_result(message)
        elif isinstance(message, Refused):
            self._reason = message.message
        elif isinstance(message, Fatal):
            self._reason = message.message
            self._table.fail_all(engine_gone(message.message))


def _unavailable(message: str) -> TidemillError:
    return TidemillError(ErrorKind.UNAVAILABLE, message, retryable=True)
