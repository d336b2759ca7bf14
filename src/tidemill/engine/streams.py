"""The client's side of requests: open streams, and the journal of each."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

import msgspec

from tidemill.base.clock import monotonic
from tidemill.base.errors import ErrorKind, bad_request
from tidemill.base.ids import new_seed
from tidemill.contract.request import (
    ChoiceOutput,
    EngineRequest,
    FinishReason,
    RequestError,
    TokenLogprob,
)
from tidemill.contract.wire import EngineStats, Outputs
from tidemill.telemetry.facts import StreamFacts


class Journal:
    """The state from which another engine resumes a request: prompt, settings, accepted tokens.

    Attributes:
        request: as sent, with its seed resolved.
        accepted: per choice, the tokens received.
        ended: choices that have received their final output.
        cancelled: cancelled choices, and the finish reason they must end with.
        lives: number of engines that the request was sent to.
    """

    __slots__ = (
        "_cached_tokens",
        "_first_token",
        "_prompt_logprobs",
        "_prompt_told",
        "_told",
        "accepted",
        "cancelled",
        "ended",
        "lives",
        "request",
    )

    def __init__(self, request: EngineRequest) -> None:
        self.request = request
        self.accepted: list[list[int]] = [
            list(request.resume[i]) if request.resume else [] for i in range(request.sampling.n)
        ]
        self.ended: set[int] = set()
        self.cancelled: dict[int, FinishReason] = {}
        self.lives = 0
        self._told: set[int] = set()  # choices that have had a first output
        self._cached_tokens: int | None = None
        self._first_token = 0.0
        self._prompt_logprobs: list[TokenLogprob | None] = []  # those that came ahead
        self._prompt_told = False

    def begin_life(self) -> None:
        """Record that the request is being sent to an engine."""
        self.lives += 1
        self._prompt_logprobs = []

    def joined(self, output: ChoiceOutput) -> ChoiceOutput | None:
        """Collect prompt logprobs that arrive in several outputs.

        Returns:
            The output, with all prompt logprobs if it has tokens; None for an output that only has
            a part of the prompt logprobs.
        """
        part = output.prompt_logprobs
        if part is None:
            return output
        if not output.token_ids:
            self._prompt_logprobs += part
            return None
        if ahead := self._prompt_logprobs:
            self._prompt_logprobs = []
            output = msgspec.structs.replace(output, prompt_logprobs=(*ahead, *part))
        return output

    def note(self, output: ChoiceOutput) -> None:
        """Record an output."""
        self.accepted[output.choice].extend(output.token_ids)
        self._told.add(output.choice)
        self._prompt_told = self._prompt_told or output.prompt_logprobs is not None
        if self._cached_tokens is None:
            self._cached_tokens = output.cached_tokens
        if output.token_ids and not self._first_token:
            self._first_token = monotonic()
        if output.finish_reason is not None:
            self.ended.add(output.choice)

    @property
    def open_choices(self) -> list[int]:
        """Choices without a final output yet."""
        return [c for c in range(self.request.sampling.n) if c not in self.ended]

    @property
    def tokens(self) -> int:
        """Tokens received, over all choices."""
        return sum(map(len, self.accepted))

    @property
    def wire_id(self) -> str:
        """The request's id on the wire. It differs for every time the request is sent, so that late
        outputs of an earlier engine (or an earlier replay) are not mistaken for new ones."""
        extra = f"~{self.lives - 1}" if self.lives > 1 else ""
        return self.request.request_id + extra

    def replay(self) -> EngineRequest:
        """The request that resumes from the accepted tokens. Choices that have ended end at once
        again, or the caller cancels them."""
        fresh = not self.ended and not any(self.accepted)
        sampling = self.request.sampling
        if self._prompt_told:
            sampling = msgspec.structs.replace(sampling, prompt_logprobs=None)
        return msgspec.structs.replace(
            self.request,
            request_id=self.wire_id,
            sampling=sampling,
            resume=() if fresh else tuple(tuple(tokens) for tokens in self.accepted),
        )

    def continued(self, output: ChoiceOutput) -> ChoiceOutput:
        """An output of a replay, adapted for the client: fields sent once per choice are not
        repeated, and timings and cached tokens are those of the first engine."""
        told = output.choice in self._told
        cached, timings = output.cached_tokens, output.timings
        if told:
            cached = None
        elif cached is not None and self._cached_tokens is not None:
            cached = self._cached_tokens
        if timings is not None and self._first_token:
            timings = msgspec.structs.replace(timings, first_token=self._first_token)
        return msgspec.structs.replace(
            output,
            request_id=self.request.request_id,
            cached_tokens=cached,
            timings=timings,
        )


class Stream:
    """Outputs of one request, as an async iterator that ends after every choice's final output.

    Used from the client's event loop only.

    Attributes:
        journal: from which another engine resumes it.
        facts: when its outputs came, where the request is to be explained.
    """

    def __init__(self, request: EngineRequest) -> None:
        self.journal = Journal(request)
        self.facts = StreamFacts() if request.explain else None
        self._ready: deque[ChoiceOutput] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._done = False

    def push(self, output: ChoiceOutput) -> bool:
        """Deliver an output; True if it was the request's last.

        An output of a choice that has ended is dropped: nothing follows a final output.
        """
        journal = self.journal
        if output.choice in journal.ended:
            return self._done
        if output.prompt_logprobs is not None:
            whole = journal.joined(output)
            if whole is None:
                return self._done
            output = whole
        if journal.lives > 1:
            output = journal.continued(output)
        journal.note(output)
        self._ready.append(output)
        self._done = not journal.open_choices
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
        return self._done

    def fail(self, error: RequestError) -> None:
        """End every open choice with an error."""
        for choice in self.journal.open_choices:
            self._end(choice, FinishReason.ERROR, error)

    def settle(self) -> bool:
        """End the cancelled choices without an engine; True if no open choice is left."""
        for choice, reason in self.journal.cancelled.items():
            if choice not in self.journal.ended:
                self._end(choice, reason)
        return self._done

    def _end(self, choice: int, reason: FinishReason, error: RequestError | None = None) -> None:
        request_id = self.journal.request.request_id
        self.push(
            ChoiceOutput(request_id=request_id, choice=choice, finish_reason=reason, error=error)
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
    """The open streams of one client, by request id and by wire id.

    Attributes:
        stats: the engine's latest statistics.
        on_stats: called with every statistics snapshot that arrives.
    """

    def __init__(self) -> None:
        self._streams: dict[str, Stream] = {}
        self._sent: dict[str, Stream] = {}
        self.stats = EngineStats()
        self.on_stats: Callable[[EngineStats], None] | None = None

    def __len__(self) -> int:
        return len(self._streams)

    def open(self, request: EngineRequest) -> Stream:
        """Open a stream; `stream.journal.request`, with its seed resolved, is the request to send.

        Raises:
            TidemillError: BAD_REQUEST if a request with this id is running.
        """
        stream = self.wait(request)
        self.send(stream)
        return stream

    def wait(self, request: EngineRequest) -> Stream:
        """As `open`, for a request that is sent later with `send`."""
        if request.request_id in self._streams:
            raise bad_request("request_id", f"request {request.request_id!r} is already running")
        stream = Stream(resolve_seed(request))
        self._streams[request.request_id] = stream
        return stream

    def send(self, stream: Stream) -> EngineRequest:
        """The request to send for a stream; its outputs will be delivered to the stream."""
        self.recall(stream)
        stream.journal.begin_life()
        if stream.facts is not None:
            stream.facts.sent(monotonic())
        request = stream.journal.replay()
        self._sent[request.request_id] = stream
        return request

    def recall(self, stream: Stream) -> bool:
        """Ignore further outputs for the stream's request; False if it was not sent."""
        return self._sent.pop(stream.journal.wire_id, None) is not None

    def lost(self, cause: str, whose: Callable[[Stream], bool] = lambda stream: True) -> None:
        """The engine of the requests sent has ended, of those that `whose` names; they will be sent
        to another."""
        now = monotonic()
        for stream in self._sent.values():
            if stream.facts is not None and whose(stream):
                stream.facts.lost(now, cause)

    def is_sent(self, stream: Stream) -> bool:
        """True if the stream's request was sent to an engine."""
        return stream.journal.wire_id in self._sent

    def sent(self, wire_id: str) -> Stream | None:
        """The stream of a sent request, by its wire id."""
        return self._sent.get(wire_id)

    @property
    def num_sent(self) -> int:
        """Number of requests sent to an engine."""
        return len(self._sent)

    def get(self, request_id: str) -> Stream | None:
        """The open stream of a request."""
        return self._streams.get(request_id)

    def deliver(self, message: Outputs) -> None:
        """Deliver a step's outputs to their streams; those without a stream are dropped."""
        if message.stats is not None:
            self.stats = message.stats
            if self.on_stats is not None:
                self.on_stats(message.stats)
        now = 0.0
        for output in message.outputs:
            stream = self._sent.get(output.request_id)
            if stream is None:
                continue
            if stream.facts is not None:
                now = now or monotonic()
                stream.facts.output(output, now, self.stats)
            if stream.push(output):
                self.forget(stream.journal.request.request_id)

    def streams(self) -> list[Stream]:
        """Every open stream, in order of opening."""
        return list(self._streams.values())

    def journals(self) -> list[Journal]:
        """The journals of all requests in flight."""
        return [stream.journal for stream in self._streams.values()]

    def fail_all(self, error: RequestError) -> None:
        """End every open choice with the error, because the engine has ended."""
        streams = self.streams()
        self._streams.clear()
        self._sent.clear()
        for stream in streams:
            stream.fail(error)

    def forget(self, request_id: str) -> None:
        """Remove a stream that has ended or was never sent."""
        stream = self._streams.pop(request_id, None)
        if stream is not None:
            self.recall(stream)


def resolve_seed(request: EngineRequest) -> EngineRequest:
    """The request with a seed, a random one if it has none; a replay then samples the same."""
    if request.sampling.seed is not None:
        return request
    sampling = msgspec.structs.replace(request.sampling, seed=new_seed())
    return msgspec.structs.replace(request, sampling=sampling)


def engine_gone(message: str) -> RequestError:
    """The retryable UNAVAILABLE error for the streams of an engine that has ended."""
    return RequestError(ErrorKind.UNAVAILABLE, message, None, True)
