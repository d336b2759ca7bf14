"""EngineConnection: a connection to an engine's socket, with handshake and loss detection."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any, TypeVar, cast

from tidemill.base.build import build_id
from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.base.log import get_logger
from tidemill.contract.cache import CacheNews
from tidemill.contract.profile import EngineProfile
from tidemill.contract.request import AdapterUse, RequestError, exception_of
from tidemill.contract.wire import (
    PROTOCOL_VERSION,
    AdapterInfo,
    CacheRequest,
    CacheTold,
    CheckAdapter,
    CheckedAdapter,
    Control,
    Controlled,
    EndProfile,
    EngineInfo,
    EngineMemory,
    EngineStats,
    Fatal,
    FrameReader,
    Hello,
    Outputs,
    Profiled,
    Refused,
    StartProfile,
    Stats,
    StatsRequest,
    ToClient,
    ToEngine,
    Welcome,
    frame,
    to_client_decoder,
)

_log = get_logger(__name__)

_Answer = TypeVar("_Answer")

HANDSHAKE_SECONDS = 10.0
STATS_SECONDS = 10.0
# Weights may have to be written to a disk, or read from one.
CONTROL_SECONDS = 120.0


def unavailable(message: str) -> TidemillError:
    """A retryable UNAVAILABLE error."""
    return TidemillError(ErrorKind.UNAVAILABLE, message, retryable=True)


class EngineConnection(asyncio.Protocol):
    """A connection; made by `connect`.

    Attributes:
        reason: why the connection is lost, or the reason to report if it is lost later.
        fatal: the error that ended the engine, if it would end a new engine as well.
    """

    def __init__(
        self,
        hello: Hello,
        on_outputs: Callable[[Outputs], None],
        on_lost: Callable[[str], None],
    ) -> None:
        loop = asyncio.get_running_loop()
        self.reason = "the engine process has ended; send the request again"
        self.fatal: RequestError | None = None
        self._hello = hello
        self._on_outputs = on_outputs
        self._on_lost = on_lost
        self._transport: asyncio.Transport | None = None
        self._reader = FrameReader()
        self._welcome: asyncio.Future[Welcome] = loop.create_future()
        self._lost: asyncio.Future[None] = loop.create_future()
        self._pending_stats: dict[int, asyncio.Future[EngineStats]] = {}
        self._pending_controls: dict[int, asyncio.Future[EngineMemory]] = {}
        self._pending_adapters: dict[int, asyncio.Future[AdapterInfo]] = {}
        self._pending_profiles: dict[int, asyncio.Future[Profiled]] = {}
        self._pending_news: dict[int, asyncio.Future[CacheNews | None]] = {}
        self._nonce = 0

    @classmethod
    async def connect(
        cls,
        path: str,
        config_digest: str,
        on_outputs: Callable[[Outputs], None],
        on_lost: Callable[[str], None],
        *,
        owner: bool = False,
    ) -> EngineConnection:
        """Connect and perform the handshake.

        Args:
            path: path of the engine's socket.
            config_digest: digest of the configuration that the engine must have.
            on_outputs: called with the outputs of each step.
            on_lost: called once, with the reason, when the connection is lost.
            owner: the engine exits when this connection closes.

        Raises:
            TidemillError: UNAVAILABLE if no engine listens at `path`, or its protocol, build or
                configuration differs.
        """
        hello = Hello(PROTOCOL_VERSION, build_id(), config_digest, owner)
        connection = cls(hello, on_outputs, on_lost)
        loop = asyncio.get_running_loop()
        try:
            await loop.create_unix_connection(lambda: connection, path)
        except OSError as error:
            raise unavailable(f"no engine listens at {path}: {error.strerror}") from error
        await connection._welcomed()
        return connection

    @classmethod
    async def over(
        cls,
        found: socket.socket,
        config_digest: str,
        on_outputs: Callable[[Outputs], None],
        on_lost: Callable[[str], None],
    ) -> EngineConnection:
        """As `connect`, over a socket that is connected to an engine."""
        connection = cls(Hello(PROTOCOL_VERSION, build_id(), config_digest), on_outputs, on_lost)
        await asyncio.get_running_loop().create_connection(lambda: connection, sock=found)
        await connection._welcomed()
        return connection

    async def _welcomed(self) -> None:
        try:
            async with asyncio.timeout(HANDSHAKE_SECONDS):
                await asyncio.shield(self._welcome)
        except TimeoutError:
            await self.close("the engine did not answer the handshake")
            raise unavailable("the engine did not answer the handshake") from None

    @property
    def info(self) -> EngineInfo:
        """The properties that the engine resolved at its start."""
        return self._welcome.result().info

    @property
    def open(self) -> bool:
        """True while connected."""
        return self._transport is not None and not self._lost.done()

    @property
    def unanswered(self) -> bool:
        """True while a statistics request is pending."""
        return bool(self._pending_stats)

    def send(self, message: ToEngine) -> None:
        """Send a message; it is dropped if the connection is closing."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(frame(message))

    async def stats(self) -> EngineStats:
        """Current statistics; the engine answers between two steps.

        Raises:
            TidemillError: UNAVAILABLE if the engine has ended or does not answer in time.
        """
        if not self.open:
            raise unavailable(self.reason)
        self._nonce += 1
        future: asyncio.Future[EngineStats] = asyncio.get_running_loop().create_future()
        self._pending_stats[self._nonce] = future
        self.send(StatsRequest(self._nonce))
        try:
            async with asyncio.timeout(STATS_SECONDS):
                return await asyncio.shield(future)
        except TimeoutError:
            raise unavailable(f"the engine did not answer within {STATS_SECONDS:g} s") from None

    async def control(self, make: Callable[[int], Control]) -> EngineMemory:
        """Send the message made with a nonce, and wait until it is carried out.

        Raises:
            TidemillError: why it was not, as raised in the engine; UNAVAILABLE if the engine has
                ended or does not answer in time.
        """
        if not self.open:
            raise unavailable(self.reason)
        self._nonce += 1
        future: asyncio.Future[EngineMemory] = asyncio.get_running_loop().create_future()
        self._pending_controls[self._nonce] = future
        self.send(make(self._nonce))
        try:
            async with asyncio.timeout(CONTROL_SECONDS):
                return await asyncio.shield(future)
        except TimeoutError:
            raise unavailable(f"the engine did not answer within {CONTROL_SECONDS:g} s") from None

    async def check_adapter(self, use: AdapterUse) -> AdapterInfo:
        """See `EngineClient.check_adapter`."""
        if not self.open:
            raise unavailable(self.reason)
        self._nonce += 1
        future: asyncio.Future[AdapterInfo] = asyncio.get_running_loop().create_future()
        self._pending_adapters[self._nonce] = future
        self.send(CheckAdapter(self._nonce, use))
        try:
            async with asyncio.timeout(CONTROL_SECONDS):
                return await asyncio.shield(future)
        except TimeoutError:
            raise unavailable(f"the engine did not answer within {CONTROL_SECONDS:g} s") from None

    async def profile(
        self, make: Callable[[int], StartProfile | EndProfile]
    ) -> EngineProfile | None:
        """Send the message made with a nonce; the profile, of `EndProfile`.

        Raises:
            TidemillError: why there is none; UNAVAILABLE if the engine has ended or does not answer
                in time.
        """
        if not self.open:
            raise unavailable(self.reason)
        self._nonce = nonce = self._nonce + 1
        future: asyncio.Future[Profiled] = asyncio.get_running_loop().create_future()
        self._pending_profiles[nonce] = future
        self.send(make(nonce))
        try:
            async with asyncio.timeout(CONTROL_SECONDS):
                answer = await asyncio.shield(future)
        except TimeoutError:
            raise unavailable(f"the engine did not answer within {CONTROL_SECONDS:g} s") from None
        finally:
            self._pending_profiles.pop(nonce, None)
        if answer.error is not None:
            raise exception_of(answer.error)
        return answer.profile

    async def cache_news(self, cursor: str) -> CacheNews | None:
        """What is new in the prefix cache, see `CacheRequest`; None: no prefixes are kept.

        Raises:
            TidemillError: UNAVAILABLE if the engine has ended or does not answer in time.
        """
        if not self.open:
            raise unavailable(self.reason)
        self._nonce = nonce = self._nonce + 1
        future: asyncio.Future[CacheNews | None] = asyncio.get_running_loop().create_future()
        self._pending_news[nonce] = future
        self.send(CacheRequest(nonce, cursor))
        try:
            async with asyncio.timeout(STATS_SECONDS):
                return await asyncio.shield(future)
        except TimeoutError:
            raise unavailable(f"the engine did not answer within {STATS_SECONDS:g} s") from None
        finally:
            self._pending_news.pop(nonce, None)

    async def close(self, reason: str) -> None:
        """Close the connection after pending writes; `on_lost` is called with `reason`."""
        if self._transport is not None:
            self.reason = reason
            self._transport.close()
            await self._lost

    def abort(self, reason: str) -> None:
        """Close the connection now and discard pending writes."""
        if self._transport is not None:
            self.reason = reason
            self._transport.abort()

    async def wait_lost(self) -> None:
        """Return when the connection is lost."""
        await asyncio.shield(self._lost)

    # -- asyncio.Protocol --------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the first message of the handshake."""
        # uvloop's transports are transports without inheriting from asyncio's.
        self._transport = cast(asyncio.Transport, transport)
        self.send(self._hello)

    def data_received(self, data: bytes) -> None:
        """Decode and handle messages."""
        try:
            for body in self._reader.feed(data):
                self._receive(to_client_decoder.decode(body))
        except ValueError as error:
            _log.error("invalid message from the engine: %s", error)
            self.abort("the engine sent an invalid message")

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail pending requests; the engine has ended or this side closed the connection."""
        error = unavailable(self.reason)
        if not self._welcome.done():
            self._welcome.set_exception(error)
            self._welcome.exception()  # marks it as retrieved, if `connect` has timed out
        pending: list[asyncio.Future[Any]] = [
            *self._pending_stats.values(),
            *self._pending_controls.values(),
            *self._pending_adapters.values(),
            *self._pending_profiles.values(),
            *self._pending_news.values(),
        ]
        for future in pending:
            if not future.done():
                future.set_exception(error)
                future.exception()
        self._pending_stats.clear()
        self._pending_controls.clear()
        self._pending_adapters.clear()
        self._pending_profiles.clear()
        self._pending_news.clear()
        if not self._lost.done():
            self._lost.set_result(None)
        self._on_lost(self.reason)

    def _receive(self, message: ToClient) -> None:
        if isinstance(message, Outputs):
            self._on_outputs(message)
        elif isinstance(message, Stats):
            future = self._pending_stats.pop(message.nonce, None)
            if future is not None and not future.done():
                future.set_result(message.stats)
        elif isinstance(message, Controlled):
            _settle(self._pending_controls.pop(message.nonce, None), message.memory, message.error)
        elif isinstance(message, CheckedAdapter):
            waiting = self._pending_adapters.pop(message.nonce, None)
            _settle(waiting, message.adapter, message.error)
        elif isinstance(message, Profiled):
            _settle(self._pending_profiles.pop(message.nonce, None), message, None)
        elif isinstance(message, CacheTold):
            if (waiting_news := self._pending_news.get(message.nonce)) is not None:
                waiting_news.set_result(message.news)
        elif isinstance(message, Welcome):
            if not self._welcome.done():
                self._welcome.set_result(message)
        elif isinstance(message, Refused):
            self.reason = message.message
        elif isinstance(message, Fatal):
            self.fatal = message.error
            self.abort(message.message)


def _settle(
    future: asyncio.Future[_Answer] | None, answer: _Answer | None, error: RequestError | None
) -> None:
    if future is None or future.done():
        return
    if answer is not None:
        future.set_result(answer)
    else:
        future.set_exception(exception_of(error))
        future.exception()  # marks it as retrieved, if the wait has timed out
