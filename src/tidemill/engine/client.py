"""EngineClient: the API side's interface to an engine, in this process or over a socket.

`submit` and `cancel` return at once and are called from the client's event loop; outputs arrive
through the stream that `submit` returns. If the engine dies, the two clients of this module end
every open choice with a retryable UNAVAILABLE error. The client in `engine.supervisor` replaces the
engine and continues.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Protocol

from tidemill.base.errors import TidemillError
from tidemill.contract.config import EngineConfig
from tidemill.contract.request import (
    AdapterUse,
    ChoiceOutput,
    EngineRequest,
    FinishReason,
    exception_of,
)
from tidemill.contract.wire import (
    AdapterInfo,
    Cancel,
    CheckAdapter,
    CheckedAdapter,
    DropAdapter,
    EngineInfo,
    EngineStats,
    Fatal,
    Outputs,
    Stats,
    Submit,
)
from tidemill.engine.connection import STATS_SECONDS, EngineConnection, unavailable
from tidemill.engine.streams import Journal, StreamTable, engine_gone

if TYPE_CHECKING:
    from tidemill.engine.core import EngineCore, Message


class EngineClient(Protocol):
    """The interface of an engine for its clients."""

    @property
    def info(self) -> EngineInfo:
        """The properties that the engine resolved at its start."""

    @property
    def problem(self) -> str | None:
        """Why requests are not computed now; None if they are."""

    @property
    def last_stats(self) -> EngineStats:
        """The statistics received with the latest outputs."""

    def on_stats(self, callback: Callable[[EngineStats], None]) -> None:
        """Call `callback` with every statistics snapshot that arrives."""

    def submit(self, request: EngineRequest) -> AsyncIterator[ChoiceOutput]:
        """Start a request. The iterator ends after every choice's final output. Leaving it early
        does not stop the request: `cancel` does.

        Raises:
            TidemillError: UNAVAILABLE if the engine has ended, BAD_REQUEST for an id in use.
        """

    def cancel(
        self, request_id: str, choice: int | None = None, reason: str = FinishReason.CANCELLED
    ) -> None:
        """Stop a request's choice (None: all); its final output has finish reason `reason`."""

    async def check_adapter(self, use: AdapterUse) -> AdapterInfo:
        """Verify an adapter against the model, and keep it in memory while there is room.

        Raises:
            TidemillError: why it cannot be used; UNAVAILABLE if the engine has ended.
        """

    def drop_adapter(self, digest: str) -> None:
        """An adapter is not registered any more: it leaves the memory once no request uses it."""

    async def stats(self) -> EngineStats:
        """Current statistics. Raises TidemillError UNAVAILABLE if the engine has ended."""

    async def close(self) -> None:
        """Disconnect. An engine that this client owns stops."""


class InprocClient:
    """An EngineClient of an `EngineCore` in a thread of this process.

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
        self._checking: dict[int, asyncio.Future[CheckedAdapter]] = {}
        self._nonce = 0
        self._closed = False
        self._id = core.connect(self._sink)

    @classmethod
    async def open(
        cls, config: EngineConfig, progress: Callable[[str], None] = lambda line: None
    ) -> InprocClient:
        """Load a model into this process and connect to its engine."""
        from tidemill.engine.core import open_core

        return cls(await asyncio.to_thread(open_core, config, progress))

    @property
    def info(self) -> EngineInfo:
        """See EngineClient."""
        return self._core.info

    @property
    def problem(self) -> str | None:
        """See EngineClient."""
        return None if self._core.alive and not self._closed else "the engine has stopped"

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
        if self.problem is not None:
            raise unavailable(self.problem)
        self._nonce += 1
        future = self._waiting[self._nonce] = self._loop.create_future()
        self._core.request_stats(self._id, self._nonce)
        async with asyncio.timeout(STATS_SECONDS):
            stats: EngineStats = await future
        return stats

    async def check_adapter(self, use: AdapterUse) -> AdapterInfo:
        """See EngineClient."""
        if self.problem is not None:
            raise unavailable(self.problem)
        self._nonce += 1
        future = self._checking[self._nonce] = self._loop.create_future()
        self._core.check_adapter(self._id, CheckAdapter(self._nonce, use))
        answer: CheckedAdapter = await future
        if answer.adapter is None:
            raise exception_of(answer.error)
        return answer.adapter

    def drop_adapter(self, digest: str) -> None:
        """See EngineClient."""
        self._core.drop_adapter(DropAdapter(digest))

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
        # Called from the engine's thread. RuntimeError: the client's event loop is closed.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._receive, message)

    def _receive(self, message: Message) -> None:
        if isinstance(message, Outputs):
            self._table.deliver(message)
        elif isinstance(message, Stats):
            future = self._waiting.pop(message.nonce, None)
            if future is not None and not future.done():
                future.set_result(message.stats)
        elif isinstance(message, CheckedAdapter):
            self._checking.pop(message.nonce).set_result(message)
        elif isinstance(message, Fatal):
            self._table.fail_all(engine_gone(message.message))
            for checking in self._checking.values():
                checking.set_exception(unavailable(message.message))
            self._checking.clear()


class SocketClient:
    """An EngineClient over a Unix socket: receives a message per step, sends one per call.

    Made by `connect`.
    """

    def __init__(self) -> None:
        self._table = StreamTable()
        self._connection: EngineConnection

    @classmethod
    async def connect(cls, path: str, config_digest: str, *, owner: bool = False) -> SocketClient:
        """Connect and perform the handshake; see `EngineConnection.connect`."""
        client = cls()
        client._connection = await EngineConnection.connect(
            path, config_digest, client._table.deliver, client._lost, owner=owner
        )
        return client

    @property
    def info(self) -> EngineInfo:
        """See EngineClient."""
        return self._connection.info

    @property
    def problem(self) -> str | None:
        """See EngineClient."""
        return None if self._connection.open else self._connection.reason

    @property
    def last_stats(self) -> EngineStats:
        """See EngineClient."""
        return self._table.stats

    def on_stats(self, callback: Callable[[EngineStats], None]) -> None:
        """See EngineClient."""
        self._table.on_stats = callback

    def journals(self) -> list[Journal]:
        """Journals of the requests in flight, from which a new engine can resume them."""
        return self._table.journals()

    def submit(self, request: EngineRequest) -> AsyncIterator[ChoiceOutput]:
        """See EngineClient."""
        if self.problem is not None:
            raise unavailable(self.problem)
        stream = self._table.open(request)
        self._connection.send(Submit(stream.journal.request))
        return stream

    def cancel(
        self, request_id: str, choice: int | None = None, reason: str = FinishReason.CANCELLED
    ) -> None:
        """See EngineClient."""
        self._connection.send(Cancel(request_id, choice, str(reason)))

    async def stats(self) -> EngineStats:
        """See EngineClient."""
        return await self._connection.stats()

    async def check_adapter(self, use: AdapterUse) -> AdapterInfo:
        """See EngineClient."""
        return await self._connection.check_adapter(use)

    def drop_adapter(self, digest: str) -> None:
        """See EngineClient."""
        self._connection.send(DropAdapter(digest))

    async def close(self) -> None:
        """See EngineClient."""
        await self._connection.close("the server is shutting down")

    async def wait_lost(self) -> None:
        """Return when the connection is lost."""
        await self._connection.wait_lost()

    def _lost(self, reason: str) -> None:
        self._table.fail_all(engine_gone(reason))
