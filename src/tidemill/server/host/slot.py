"""A model of the host: what it is, whether it is loaded, and who uses it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from tidemill.base.clock import wall
from tidemill.base.errors import TidemillError
from tidemill.server.host.adapters import ModelAdapters
from tidemill.server.host.served import ServedModel
from tidemill.server.host.switching import TURN_OF_LOAD, TURN_SECONDS, Fact, Need

if TYPE_CHECKING:
    from tidemill.contract.cache import CacheNews
    from tidemill.contract.profile import EngineProfile
    from tidemill.contract.wire import EngineMemory
    from tidemill.engine.reports import LoadProgress
    from tidemill.server.host.engine_loader import Described


class State(StrEnum):
    """Of a model: its engine and weights."""

    UNLOADED = "unloaded"
    LOADING = "loading"
    LOADED = "loaded"
    ASLEEP = "asleep"
    UNLOADING = "unloading"


class Loader(Protocol):
    """How a model comes into memory."""

    async def need(self) -> Need | None:
        """Memory that it will take, from its files' headers; None if that is not known.

        Raises:
            TidemillError: the model cannot be found or read.
        """

    async def describe(self) -> Described | None:
        """What it is, from its files alone; None if it is loaded to find that out.

        Raises:
            TidemillError: the model cannot be found or read.
        """

    async def load(self, kv_bytes: int | None, progress: Callable[[LoadProgress], None]) -> Loaded:
        """Start it.

        Args:
            kv_bytes: size of its KV cache; None: as configured.
            progress: called with how far the weights are loaded.

        Raises:
            TidemillError: why it cannot be served.
        """


class Loaded(Protocol):
    """A running model, as its host sees it."""

    served: ServedModel
    """What answers new requests."""

    @property
    def pid(self) -> int | None:
        """Its process, whose memory is its; None where it has none of its own."""

    @property
    def ended(self) -> str | None:
        """Why it will not run any more; None while it does."""

    def on_end(self, callback: Callable[[], None]) -> None:
        """Call `callback` when `ended` becomes true."""

    def drain(self, reason: str) -> None:
        """Reject new requests; those in flight continue."""

    async def resize(self, kv_bytes: int) -> None:
        """Let its KV cache take so many bytes, as far as its requests allow."""

    async def sleep(self) -> bool:
        """Give back the memory of weights and cache; False where it cannot."""

    async def wake(self) -> None:
        """Undo `sleep`."""

    async def block_map(self) -> EngineMemory | None:
        """What it holds, with the states of its KV blocks; None where it has none now.

        Raises:
            TidemillError: UNAVAILABLE: its engine does not answer.
        """

    async def cache_news(self, cursor: str) -> CacheNews | None:
        """What is new in its prefix cache; None where it has none.

        Raises:
            TidemillError: UNAVAILABLE: its engine does not answer.
        """

    async def profile(self, seconds: float, *, events: int, rates: bool) -> EngineProfile:
        """Where its engine's time goes in the next seconds; see `engine.profiled`.

        Raises:
            TidemillError: UNAVAILABLE, OVERLOADED; UNSUPPORTED: it has no engine of its own.
        """

    @property
    def away(self) -> tuple[str, int] | None:
        """Where its requests are computed instead (`leave`), and how many; None: here."""

    async def leave(self, address: str) -> int:
        """Have another server's engine compute its requests, running and new ones; how many moved.

        Raises:
            TidemillError: why it cannot; then all stay.
        """

    async def bring_back(self) -> int:
        """Undo `leave`; how many running requests came back."""

    async def close(self) -> None:
        """Unload it. Requests in flight end with a retryable error."""


@dataclass(frozen=True, slots=True)
class Hosted:
    """What a model is called and how long it stays.

    Attributes:
        name: the name that answers carry.
        aliases: further names.
        pin: it is loaded at start and never evicted.
        keep_alive: seconds without use after which it is unloaded; infinite: until its memory is
            needed.
        adapters: name -> path of adapters that it has from the start.
        adapter_folder: a folder whose adapters it has as well, as long as they are there.
    """

    name: str
    aliases: tuple[str, ...] = ()
    pin: bool = False
    keep_alive: float = float("inf")
    adapters: Mapping[str, str] = field(default_factory=dict)
    adapter_folder: str | None = None


@dataclass(slots=True)
class Waiter:
    """A request that waits; once `granted`, it has a lease."""

    arrival: float
    granted: asyncio.Future[None]


@dataclass(slots=True)
class Slot:
    """See the module docstring.

    Attributes:
        hosted: its names and stay.
        loader: loads it.
        state: see `State`.
        loaded: while it is loaded or asleep.
        need: once known.
        leases: requests that use it now.
        waiters: requests that wait for it.
        closed: new requests wait, so that it can be evicted.
        leaving: it is unloaded as soon as no request uses it, since an operator said so.
        drowsy: whether it could be put to sleep is told here, once it was tried.
        removed: it has no name any more, and goes when it is unloaded.
        replaced: `loader` is another one than it was loaded by.
        opened: when its turn began.
        load_seconds: how long its last load took.
        last_used: when the last request ended.
        keep_alive: seconds, as a request or an operator said last; None: as configured.
        progress: how far its weights are loaded.
        error, failed: why its last load failed, and when.
        created: when it was made available, in seconds since 1970.
        adapters: its adapters, which outlive its engines.
    """

    hosted: Hosted
    loader: Loader
    state: State = State.UNLOADED
    loaded: Loaded | None = None
    need: Need | None = None
    leases: int = 0
    waiters: list[Waiter] = field(default_factory=list)
    closed: bool = False
    leaving: bool = False
    drowsy: asyncio.Future[bool] | None = None
    removed: bool = False
    replaced: bool = False
    opened: float = 0.0
    load_seconds: float = 0.0
    last_used: float = 0.0
    keep_alive: float | None = None
    progress: LoadProgress | None = None
    error: TidemillError | None = None
    failed: float = 0.0
    created: int = field(default_factory=lambda: int(wall()))
    adapters: ModelAdapters = field(init=False)

    def __post_init__(self) -> None:
        self.adapters = ModelAdapters(self.hosted.adapters)

    @property
    def name(self) -> str:
        """The name that answers carry."""
        return self.hosted.name

    @property
    def names(self) -> tuple[str, ...]:
        """Every name; answers carry the first."""
        return (self.hosted.name, *self.hosted.aliases)

    @property
    def key(self) -> str:
        """Its name in the policy: one that was removed is not its successor."""
        return f"{self.name}\0{id(self)}" if self.removed else self.name

    @property
    def open(self) -> bool:
        """A request may use it now."""
        return self.state is State.LOADED and not self.closed and not self.leaving

    @property
    def expires_after(self) -> float:
        """Seconds without use after which it is unloaded."""
        return self.hosted.keep_alive if self.keep_alive is None else self.keep_alive

    @property
    def expires(self) -> float:
        """When it is unloaded, if no request uses it until then."""
        return self.last_used + self.expires_after

    def fact(self) -> Fact:
        """Its state as the policy sees it."""
        return Fact(
            self.key,
            self.need,
            held=self.state in (State.LOADED, State.LOADING, State.UNLOADING),
            busy=self.leases,
            waiting_since=self.waiters[0].arrival if self.waiters else None,
            pinned=self.hosted.pin,
            closed=self.closed and not self.leaving,
            opened=self.opened,
            turn=max(TURN_SECONDS, TURN_OF_LOAD * self.load_seconds),
            last_used=self.last_used,
        )

    def grant(self) -> None:
        """Let everything that waits use it."""
        waiters, self.waiters = self.waiters, []
        for waiter in waiters:
            if not waiter.granted.done():
                self.leases += 1
                waiter.granted.set_result(None)

    def fail(self, error: Exception) -> None:
        """Answer everything that waits with an error."""
        waiters, self.waiters = self.waiters, []
        for waiter in waiters:
            if not waiter.granted.done():
                waiter.granted.set_exception(error)
