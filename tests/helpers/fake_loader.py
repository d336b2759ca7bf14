"""Models that are loaded at once, from a script's engine."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from tidemill.base.errors import TidemillError
from tidemill.contract.cache import CacheNews
from tidemill.contract.profile import EngineProfile
from tidemill.contract.wire import EngineMemory
from tidemill.engine.reports import LoadProgress
from tidemill.server.host.served import ServedModel
from tidemill.server.host.switching import Need


async def _no_profile(seconds: float, events: int, rates: bool) -> EngineProfile:
    raise NotImplementedError


@dataclass
class FakeLoaded:
    """A `slot.Loaded` that notes what is done to it."""

    served: ServedModel
    ended: str | None = None
    pid: int | None = None
    kv_bytes: int | None = None
    closed: bool = False
    asleep: bool = False
    drained: str | None = None
    news: CacheNews | None = None
    callbacks: list[Callable[[], None]] = field(default_factory=list)
    profiled: Callable[[float, int, bool], Awaitable[EngineProfile]] = field(default=_no_profile)

    def on_end(self, callback: Callable[[], None]) -> None:
        self.callbacks.append(callback)

    def end(self, reason: str) -> None:
        """As an engine that cannot be restarted."""
        self.ended = reason
        for callback in self.callbacks:
            callback()

    def drain(self, reason: str) -> None:
        self.drained = reason

    async def resize(self, kv_bytes: int) -> None:
        self.kv_bytes = kv_bytes

    async def sleep(self) -> bool:
        self.asleep = True
        return True

    async def wake(self) -> None:
        self.asleep = False

    async def profile(self, seconds: float, *, events: int, rates: bool) -> EngineProfile:
        return await self.profiled(seconds, events, rates)

    away: tuple[str, int] | None = None

    async def leave(self, address: str) -> int:
        self.away = address, 0
        return 0

    async def bring_back(self) -> int:
        self.away = None
        return 0

    async def cache_news(self, cursor: str) -> CacheNews | None:
        return self.news

    async def block_map(self) -> EngineMemory | None:
        return EngineMemory(weights=0, kv=0, kv_blocks=8, kv_map="uss.c...")

    async def close(self) -> None:
        self.closed = True


@dataclass
class FakeLoader:
    """A `slot.Loader`.

    Attributes:
        served: what it loads.
        needs: its memory.
        seconds: how long a load takes.
        error: raised instead.
        described: what it says of its model.
        loads: everything that it loaded.
    """

    served: ServedModel
    needs: Need | None = None
    seconds: float = 0.0
    error: TidemillError | None = None
    described: Any = None
    loads: list[FakeLoaded] = field(default_factory=list)

    async def need(self) -> Need | None:
        return self.needs

    async def describe(self) -> Any:
        return self.described

    async def text(self) -> Any:
        return self.served

    async def load(self, kv_bytes: int | None, progress: Callable[[Any], None]) -> FakeLoaded:
        if self.seconds:
            progress(LoadProgress(1, 4))
        await asyncio.sleep(self.seconds)
        if self.error is not None:
            raise self.error
        self.loads.append(FakeLoaded(self.served, kv_bytes=kv_bytes))
        return self.loads[-1]
