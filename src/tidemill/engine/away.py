"""Away: requests of a supervised engine that another server's engine computes.

A running request moves between two steps: the journal goes (prompt, settings, seed, accepted
tokens), what the engine that is left still sends is not read, and the other one goes on with the
next token, which is the same. The blocks go before, while the request still runs: the other engine
is given the prompt and the tokens so far as a prompt of its own (`_PRIME_TOKENS`), for which it
fetches the blocks as for any prompt. If that engine is lost, its requests come back in the same
way. Requests with adapters move where the other server has the same ones, by their digests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Protocol

from tidemill.base.clock import monotonic
from tidemill.base.ids import new_id
from tidemill.base.log import get_logger
from tidemill.contract.request import ChoiceOutput, EngineRequest, FinishReason
from tidemill.contract.sampling import SamplingParams
from tidemill.contract.wire import EngineInfo, Outputs
from tidemill.engine.connection import unavailable
from tidemill.engine.known_adapters import UNKNOWN
from tidemill.engine.remote import RemoteEngine
from tidemill.engine.streams import Journal, Stream, StreamTable, engine_gone

_log = get_logger(__name__)

PRIME_SECONDS = 20.0
"""That blocks have to go before requests; then these go in any case."""

MOST_PRIMES = 16
"""At a time."""

_PRIME_TOKENS = 64
"""Fewer are computed again sooner."""

_EQUAL = (
    *("identity", "backend", "isa", "dtype", "quantization", "kv_dtype", "vocab_size"),
    *("max_model_len", "eos_token_ids"),
)
"""Of two engines that answer alike."""


class Owner(Protocol):
    """What is needed of a `SupervisedEngine`."""

    @property
    def info(self) -> EngineInfo:
        """Of its engine."""

    def streams(self) -> Iterable[Stream]:
        """All open streams."""

    def suspected(self) -> bool:
        """Requests are being looked at as the cause of crashes."""

    def switch(self, stream: Stream) -> None:
        """Send a stream to the engine that it belongs to now."""

    def deliver(self, message: Outputs) -> None:
        """Outputs of streams."""


class Away:
    """See the module docstring.

    Args:
        owner: whose requests these are.

    Attributes:
        taking: new requests go to the other engine.
    """

    def __init__(self, owner: Owner) -> None:
        self.taking = False
        self._owner = owner
        self._remote: RemoteEngine | None = None
        self._ids: set[str] = set()
        self._primes = StreamTable()
        self._lock = asyncio.Lock()
        self._adapters: dict[str, bool] = {}  # digest -> whether the other server has it
        self._asking: set[asyncio.Task[None]] = set()

    @property
    def address(self) -> str | None:
        """Of the other engine; None: there is none."""
        return None if self._remote is None else self._remote.address

    def has(self, stream: Stream) -> bool:
        """A stream is computed there, or is about to be."""
        return stream.journal.request.request_id in self._ids

    def claim(self, stream: Stream) -> bool:
        """A stream is about to be sent; True: it goes there."""
        if self.taking and self._may_move(stream.journal.request):
            self._ids.add(stream.journal.request.request_id)
        return self.has(stream)

    def count(self) -> int:
        """Open streams that are computed there."""
        self._ids &= {stream.journal.request.request_id for stream in self._owner.streams()}
        return len(self._ids)

    def submit(self, request: EngineRequest) -> None:
        """Send a request of `claim`."""
        assert self._remote is not None
        self._remote.submit(request)

    def cancel(self, wire_id: str, choice: int | None, reason: str) -> None:
        """Stop a choice of a request."""
        if self._remote is not None:
            self._remote.cancel(wire_id, choice, reason)

    async def leave(self, address: str) -> int:
        """Move all running requests that may be moved to the engine at an address, and let new ones
        go there; how many were moved.

        Raises:
            TidemillError: see `RemoteEngine.open`; UNAVAILABLE where it computes otherwise, or
                requests here are being looked at as the cause of crashes.
        """
        async with self._lock:
            if self._remote is not None and self._remote.address != address:
                at = self._remote.address
                raise unavailable(f"requests are at {at} now: bring them back first")
            if self._remote is None:
                self._remote = await self._open(address)
            await self._ask_adapters()
            moving = [s for s in self._owner.streams() if self._moves(s)]
            await self._prime(moving)
            self.taking = self._remote is not None
            if not self.taking:
                raise unavailable(f"the engine at {address} was lost")
            if self._owner.suspected():
                self.taking = False
                raise unavailable("requests are being looked at as the cause of crashes")
            moving = [s for s in self._owner.streams() if self._moves(s)]
            for stream in moving:
                self._owner.switch(stream)
            return len(moving)

    async def bring_back(self) -> int:
        """Let new requests stay, and bring those back that are away; how many."""
        async with self._lock:
            self.taking = False
            remote, self._remote = self._remote, None
            if remote is None:
                return 0
            moving = [s for s in self._owner.streams() if self.has(s)]
            for stream in moving:
                journal = stream.journal
                remote.cancel(journal.wire_id, None, FinishReason.CANCELLED.value)
                self._return(stream)
            await remote.close("its requests were brought back")
            return len(moving)

    async def close(self) -> None:
        """End the connection. No stream is open any more."""
        remote, self._remote = self._remote, None
        if remote is not None:
            await remote.close("the server is shutting down")

    async def _open(self, address: str) -> RemoteEngine:
        remote = await RemoteEngine.open(address, self._deliver, self._lost)
        ours, theirs = self._owner.info, remote.info
        other = [name for name in _EQUAL if getattr(ours, name) != getattr(theirs, name)]
        if other:
            await remote.close("it computes otherwise")
            raise unavailable(
                f"the engine at {address} computes otherwise: {', '.join(other)} differ"
            )
        return remote

    def _moves(self, stream: Stream) -> bool:
        return not self.has(stream) and self._may_move(stream.journal.request)

    def _may_move(self, request: EngineRequest) -> bool:
        """Its adapters are there. Those not asked for yet are, for the requests to come."""
        new = [use.digest for use in request.adapters if use.digest not in self._adapters]
        if new and self.taking:
            task = asyncio.ensure_future(self._ask(new))
            self._asking.add(task)
            task.add_done_callback(self._asking.discard)
        return all(self._adapters.get(use.digest, False) for use in request.adapters)

    async def _ask_adapters(self) -> None:
        """Ask for the adapters of all open streams; an adapter may have come since it was asked."""
        self._adapters.clear()
        requests = [stream.journal.request for stream in self._owner.streams()]
        await self._ask({use.digest for request in requests for use in request.adapters})

    async def _ask(self, digests: Iterable[str]) -> None:
        for digest in digests:
            if self._remote is not None:
                self._adapters[digest] = await self._remote.has_adapter(digest)

    def _return(self, stream: Stream) -> None:
        self._ids.discard(stream.journal.request.request_id)
        self._owner.switch(stream)

    def _deliver(self, message: Outputs) -> None:
        self._primes.deliver(message)
        kept = tuple(one for one in message.outputs if not self._leaves(one))
        if len(kept) < len(message.outputs):
            message = Outputs(kept, message.stats)
            if self._remote is not None:
                self._remote.abort("it stops")
        lacking = {
            output.request_id
            for output in message.outputs
            if output.error is not None and output.error.param == UNKNOWN
        }
        if lacking:
            self._take_back(lacking)
            left = tuple(one for one in message.outputs if one.request_id not in lacking)
            message = Outputs(left, message.stats)
        self._owner.deliver(message)

    def _leaves(self, output: ChoiceOutput) -> bool:
        """The other engine stops, and so ends what nobody cancelled."""
        if output.finish_reason is not FinishReason.CANCELLED:
            return False
        return any(
            stream.journal.wire_id == output.request_id
            and output.choice not in stream.journal.cancelled
            for stream in self._owner.streams()
        )

    def _take_back(self, wire_ids: set[str]) -> None:
        """Requests whose adapters the other server does not have any more."""
        for stream in self._owner.streams():
            if stream.journal.wire_id in wire_ids:
                for use in stream.journal.request.adapters:
                    self._adapters[use.digest] = False
                self._return(stream)

    def _lost(self, reason: str) -> None:
        if self._remote is None:  # closed here
            return
        remote, self._remote, self.taking = self._remote, None, False
        moving = [s for s in self._owner.streams() if self.has(s)]
        _log.warning("the engine at %s is lost; %d requests come back", remote.address, len(moving))
        self._primes.fail_all(engine_gone(reason))
        for stream in moving:
            self._return(stream)

    # -- blocks before requests ----------------------------------------------------------------

    async def _prime(self, streams: list[Stream]) -> None:
        """Have the other engine get the blocks of these streams, the longest first."""
        found = [one for s in streams if (one := self._prime_of(s.journal)) is not None]
        found.sort(key=lambda one: -len(one.prompt_token_ids))
        places = asyncio.Semaphore(MOST_PRIMES)
        tasks = [asyncio.ensure_future(self._read(one, places)) for one in found]
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=PRIME_SECONDS)
            for task in late:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _prime_of(self, journal: Journal) -> EngineRequest | None:
        request = journal.request
        open_ones = (journal.accepted[choice] for choice in journal.open_choices)
        most = max(open_ones, key=len, default=[])
        tokens = (*request.prompt_token_ids, *most)
        if len(tokens) < _PRIME_TOKENS or len(tokens) + 1 > self._owner.info.max_model_len:
            return None
        return EngineRequest(
            request_id=new_id("prime"),
            prompt_token_ids=tokens,
            sampling=SamplingParams(temperature=0.0, max_tokens=1, seed=0),
            priority=request.priority,
            arrival=monotonic(),
            adapters=request.adapters,
            cache_salt=request.cache_salt,
            tenant=request.tenant,
            weight=request.weight,
        )

    async def _read(self, request: EngineRequest, places: asyncio.Semaphore) -> None:
        async with places:
            stream = self._primes.open(request)
            try:
                self.submit(stream.journal.request)
                async for _ in stream:
                    pass
            finally:
                if self._primes.get(request.request_id) is not None:
                    self.cancel(request.request_id, None, FinishReason.CANCELLED.value)
                    self._primes.forget(request.request_id)
