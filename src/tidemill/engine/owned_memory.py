"""OwnedMemory: what the owner of a supervised engine decides about its memory.

What was decided holds for the engine that takes a dead one's place, too. An engine that dies in its
sleep is replaced when it is woken.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import msgspec

from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.base.log import get_logger
from tidemill.base.process_memory import process_bytes
from tidemill.contract.cache import CacheNews
from tidemill.contract.wire import (
    Control,
    EngineInfo,
    EngineMemory,
    MemoryRequest,
    ResizeCache,
    Sleep,
    Wake,
)
from tidemill.engine.connection import EngineConnection, unavailable

_log = get_logger(__name__)

_POLL_SECONDS = 0.01


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """The memory of an engine and its process.

    Attributes:
        pid: the process.
        process: bytes that it takes (`base.process_memory`); None if it has ended.
        engine: what the engine holds; None while no engine runs.
    """

    pid: int
    process: int | None
    engine: EngineMemory | None


class Supervised(Protocol):
    """What is needed of a `SupervisedEngine`."""

    @property
    def pid(self) -> int:
        """Of the engine's process."""

    @property
    def connection(self) -> EngineConnection:
        """To the current engine, or to the last one."""

    @property
    def problem(self) -> str | None:
        """See EngineClient."""

    @property
    def ended(self) -> str | None:
        """Why there will be no engine any more; None if there may be."""

    @property
    def num_requests(self) -> int:
        """Requests in flight or waiting."""


class OwnedMemory:
    """See the module docstring. Methods run one after another.

    Attributes:
        asleep: from the begin of `sleep` until `wake` is done; requests are rejected.
        wanted: set while a dead engine is to be replaced.
    """

    def __init__(self, engine: Supervised) -> None:
        self.asleep = False
        self.wanted = asyncio.Event()
        self._engine = engine
        self._lock = asyncio.Lock()
        self._kv_bytes: int | None = None
        self._kv_blocks: int | None = None

    def sized(self, info: EngineInfo) -> EngineInfo:
        """The engine's properties with the sizes of a resized cache."""
        if self._kv_blocks is None or self._kv_blocks == info.num_blocks:
            return info
        more = self._kv_blocks - info.num_blocks
        more *= info.block_size * info.kv_bytes_per_token
        return msgspec.structs.replace(
            info, num_blocks=self._kv_blocks, kv_bytes=info.kv_bytes + more
        )

    async def resize(self, kv_bytes: int) -> EngineMemory:
        """Let the KV cache take at most so many bytes, see `ResizeCache`; returns what was reached.

        Raises:
            TidemillError: UNAVAILABLE while no engine runs; the next one has the new size.
        """
        async with self._lock:
            self._kv_bytes = kv_bytes
            return await self._resize(self._engine.connection, kv_bytes)

    async def sleep(self, *, keep_prefixes: bool = False) -> EngineMemory:
        """Return the weights and the KV cache to the system and keep the process.

        Args:
            keep_prefixes: keep the part of the KV cache that later prompts can find.

        Raises:
            TidemillError: UNAVAILABLE while there are requests, or weights are loaded or stored;
                UNSUPPORTED where only unloading helps.
        """
        async with self._lock:
            if self._engine.num_requests:
                raise unavailable("the engine has requests and sleeps only without any")
            self.asleep = True
            self.wanted.clear()
            try:
                return await self._control(lambda nonce: Sleep(nonce, keep_prefixes))
            except BaseException:
                self.asleep = False
                self.wanted.set()
                raise

    async def wake(self) -> EngineMemory:
        """Map the weights again. Starts another engine if it has died in its sleep.

        Raises:
            TidemillError: UNAVAILABLE if the engine is closed or abandoned, or wakes up too slowly.
        """
        async with self._lock:
            self.wanted.set()
            while True:
                await self._running()
                connection = self._engine.connection
                try:
                    memory = await connection.control(Wake)
                    break
                except TidemillError as error:
                    if connection.open or error.kind is not ErrorKind.UNAVAILABLE:
                        raise
                    await asyncio.sleep(_POLL_SECONDS)  # its supervisor is about to notice
            self.asleep = False
            return memory

    async def report(self) -> MemoryReport:
        """The memory of the engine and its process now."""
        pid = self._engine.pid
        process = await asyncio.to_thread(process_bytes, pid)
        try:
            engine = await self._control(MemoryRequest)
        except TidemillError:
            engine = None
        return MemoryReport(pid, process, engine)

    async def block_map(self) -> EngineMemory:
        """What the engine holds, with the states of its KV blocks; none while it sleeps.

        Raises:
            TidemillError: UNAVAILABLE: it does not run, or does not answer in time.
        """
        return await self._control(lambda nonce: MemoryRequest(nonce, map=True))

    async def cache_news(self, cursor: str) -> CacheNews | None:
        """What is new in its prefix cache; None: it keeps no prefixes.

        Raises:
            TidemillError: UNAVAILABLE: it does not run, or does not answer in time.
        """
        if (problem := self._engine.problem) is not None:
            raise unavailable(problem)
        return await self._engine.connection.cache_news(cursor)

    async def restore(self, connection: EngineConnection) -> None:
        """Give the next engine the cache size that was decided."""
        if self._kv_bytes is None:
            return
        try:
            await self._resize(connection, self._kv_bytes)
        except TidemillError as error:
            _log.warning("the new engine keeps its first cache size: %s", error.message)

    async def _resize(self, connection: EngineConnection, kv_bytes: int) -> EngineMemory:
        memory = await connection.control(lambda nonce: ResizeCache(nonce, kv_bytes))
        self._kv_blocks = memory.kv_blocks
        return memory

    async def _control(self, make: Callable[[int], Control]) -> EngineMemory:
        if (problem := self._engine.problem) is not None:
            raise unavailable(problem)
        return await self._engine.connection.control(make)

    async def _running(self) -> None:
        """Wait until an engine runs."""
        while self._engine.problem is not None:
            if (ended := self._engine.ended) is not None:
                raise unavailable(ended)
            await asyncio.sleep(_POLL_SECONDS)
