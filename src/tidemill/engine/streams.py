"""A client's side of its requests: the streams that are open, and the journal of each."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

import msgspec

from tidemill.base.errors import ErrorKind, TidemillError, bad_request
from tidemill.base.ids import new_seed
from tidemill.contract.request import ChoiceOutput, EngineRequest, FinishReason, RequestError
from tidemill.contract.wire import EngineStats, Outputs


class Journal:
    """What it takes to go on with a request on another engine: prompt, settings, accepted tokens.

    Attributes:
        request: as sent, with its seed resolved.
        accepted: per choice, the tokens received.
        ended: choices that have had their terminal output.
    """

    __slots__ = ("accepted", "ended", "request")

    def __init__(self, request: EngineRequest) -> None:
        self.request = request
        self.accepted: list[list[int]] = [
            list(request.resume[i]) if request.resume else [] for i in range(request.sampling.n)
        ]
        self.ended: set[int] = set()

    def note(self, output: ChoiceOutput) -> None:
        """Enter an output."""
        self.accepted[output.choice].extend(output.token_ids)
        if output.finish_reason is not None:
            self.ended.add(output.choice)

    @property
    def open_choices(self) -> list[int]:
        """Choices without a terminal output yet."""
        return [c for c in range(self.request.sampling.n) if c not in self.ended]

    def replay(self) -> EngineRequest:
        """The request that goes on where this one stands; choices that have ended end at once
        again, or are cancelled by whoever replays."""
        return msgspec.structs.replace(
            self.request, resume=tuple(tuple(tokens) for tokens in self.accepted)
        )


class Stream:
    """Outputs of one request, as an async iterator that ends after every choice's terminal one.

    Used from the client's event loop only.
    """

    def __init__(self, request: EngineRequest) -> None:
        self.journal = Journal(request)
        self._ready: deque[ChoiceOutput] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._done = False

    def push(self, output: ChoiceOutput) -> bool:
        """Deliver an output; True when it was the request's last.

        An output of a choice that has ended is dropped: nothing follows a terminal output.
        """
        journal = self.journal
        if output.choice in journal.ended:
            return self._done
        journal.note(output)
        self._ready.append(output)
        self._done = not journal.open_choices
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
        return self._done

    def fail(self, error: RequestError) -> None:
        """End every open choice with an error."""
        for choice in self.journal.open_choices:
            self.push(
                ChoiceOutput(
                    request_id=self.journal.request.request_id,
                    choice=choice,
                    finish_reason=FinishReason.ERROR,
                    error=error,
                )
            )

    def __aiter__(self) -> Stream:
        return self

    async def __anext__(self) -> ChoiceOutput:
        while not self._ready:
            if self._done:
                raise StopAsyncIteration
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return self._ready.popleft()


class StreamTable:
    """The open streams of one client, by request id.

    Attributes:
        stats: the engine's latest statistics.
        on_stats: called with them whenever they come.
    """

    def __init__(self) -> None:
        self._streams: dict[str, Stream] = {}
        self.stats = EngineStats()
        self.on_stats: Callable[[EngineStats], None] | None = None

    def __len__(self) -> int:
        return len(self._streams)

    def open(self, request: EngineRequest) -> Stream:
        """A stream for a request, its seed resolved (`stream.journal.request` is what to send).

        Raises:
            TidemillError: BAD_REQUEST when a request of this id is running.
        """
        if request.request_id in self._streams:
            raise bad_request("request_id", f"request {request.request_id!r} is running already")
        stream = Stream(resolve_seed(request))
        self._streams[request.request_id] = stream
        return stream

    def deliver(self, message: Outputs) -> None:
        """Hand a step's outputs to their streams; those of forgotten requests are surplus."""
        if message.stats is not None:
            self.stats = message.stats
            if self.on_stats is not None:
                self.on_stats(message.stats)
        for output in message.outputs:
            stream = self._streams.get(output.request_id)
            if stream is not None and stream.push(output):
                del self._streams[output.request_id]

    def journals(self) -> list[Journal]:
        """Of every request in flight: what a replay needs."""
        return [stream.journal for stream in self._streams.values()]

    def fail_all(self, error: RequestError) -> None:
        """The engine is gone: every open choice ends with the error."""
        streams, self._streams = list(self._streams.values()), {}
        for stream in streams:
            stream.fail(error)

    def forget(self, request_id: str) -> None:
        """Drop a stream that was never sent."""
        self._streams.pop(request_id, None)


def resolve_seed(request: EngineRequest) -> EngineRequest:
    """The request with a seed: a drawn one if it has none, so that a replay draws the same."""
    if request.sampling.seed is not None:
        return request
    sampling = msgspec.structs.replace(request.sampling, seed=new_seed())
    return msgspec.structs.replace(request, sampling=sampling)


def engine_gone(message: str) -> RequestError:
    """What a client's streams end with when the engine is no longer there."""
    return RequestError(ErrorKind.UNAVAILABLE, message, None, True)


def raise_error(error: RequestError) -> None:
    """Raise a `RequestError` as the `TidemillError` it came from."""
    raise TidemillError(
        ErrorKind(error.kind), error.message, param=error.param, retryable=error.retryable
    )
