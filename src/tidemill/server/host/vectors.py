"""Requests without generation: a pooled vector for each input."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.base.ids import new_id
from tidemill.contract.request import ChoiceOutput, EngineRequest, FinishReason, Pooling
from tidemill.contract.sampling import SamplingParams
from tidemill.server.admission.answers import NOTHING_HELD, AnswerSize
from tidemill.server.admission.control import Caller
from tidemill.server.context import ServerContext
from tidemill.server.errors import engine_error, problem_of
from tidemill.server.transport.slices import slices
from tidemill.server.transport.stream import while_connected
from tidemill.text.vectors import Input, pooling_of

SUBMITTED_AT_ONCE = 16
"""Inputs that are submitted without yielding to the event loop."""

# Nothing is sampled; admission control counts one token for the work after the prompt.
_NOTHING = SamplingParams(max_tokens=1, seed=0)


class Vectors:
    """Runs the inputs of one API request through the engine.

    Args:
        context: the server's.
        inputs: at least one.
        pooling: applied to each input.
        arrival: seconds of `base.clock.monotonic` when the request was received.
        caller: the client and the deadline.
        size: estimated size of the answer.

    Attributes:
        prompt_tokens, cached_tokens: usage, complete after `run`.
    """

    def __init__(
        self,
        context: ServerContext,
        inputs: Sequence[Input],
        pooling: Pooling,
        *,
        arrival: float,
        caller: Caller,
        size: AnswerSize = NOTHING_HELD,
    ) -> None:
        self.prompt_tokens = sum(len(i.token_ids) for i in inputs)
        self.cached_tokens = 0
        self._context = context
        self._inputs = inputs
        self._pooling = pooling
        self._arrival = arrival
        self._caller = caller
        self._size = size
        self._open: dict[str, None] = {}

    async def run(self) -> list[bytes]:
        """Each input's vector as float32 bytes, in order. Cancellation cancels all.

        Raises:
            TidemillError: the engine's error for the first input that failed.
            Rejection: 429, the server is overloaded.
        """
        context, count = self._context, len(self._inputs)
        prompts = [i.token_ids for i in self._inputs]
        ticket = context.admission.admit(self._caller, prompts, [_NOTHING] * count, self._size)
        observer = context.metrics.start()
        reason = FinishReason.CANCELLED.value
        try:
            name = new_id("vec")
            streams = []
            async for some in slices(range(count), SUBMITTED_AT_ONCE):
                streams += [self._submit(f"{name}-{i}", i) for i in some]
            found = []
            for i, stream in enumerate(streams):
                found.append(await self._take(stream))
                ticket.progress(i, 0)
                ticket.end_choice(i)
            reason = FinishReason.STOP.value
            return found
        except TidemillError as error:
            reason = error.kind.value
            raise
        finally:
            for request_id in self._open:
                context.client.cancel(request_id)
            ticket.close()
            observer.finish(reason, self.prompt_tokens, self.cached_tokens)

    def _submit(self, request_id: str, place: int) -> AsyncIterator[ChoiceOutput]:
        item = self._inputs[place]
        caller, limit = self._caller, self._context.admission_options.max_queue_time
        stream = self._context.client.submit(
            EngineRequest(
                request_id=request_id,
                prompt_token_ids=item.token_ids,
                sampling=_NOTHING,
                arrival=self._arrival,
                place=place,
                deadline=caller.deadline,
                start_by=None if limit is None else self._arrival + limit,
                cache_salt=caller.cache_salt,
                tenant=caller.client,
                weight=caller.weight,
                pooling=pooling_of(item, self._pooling),
            )
        )
        self._open[request_id] = None
        return stream

    async def _take(self, stream: AsyncIterator[ChoiceOutput]) -> bytes:
        async for output in stream:
            if output.finish_reason is None:
                continue
            self._open.pop(output.request_id, None)
            if output.finish_reason is FinishReason.ERROR:
                raise engine_error(output.error)
            if output.finish_reason is FinishReason.CANCELLED:
                raise TidemillError(ErrorKind.UNAVAILABLE, "the engine is shutting down")
            self.cached_tokens += output.cached_tokens or 0
            return output.pooled
        raise TidemillError(ErrorKind.UNAVAILABLE, "the engine ended the request too early")


class VectorAnswer(Response):
    """Runs `work` and sends its response; a disconnect of the client cancels it."""

    def __init__(self, work: Callable[[], Awaitable[Response]], *, request_id: str) -> None:
        super().__init__()
        self._work = work
        self._request_id = request_id

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve."""

        async def answer() -> None:
            try:
                response = await self._work()
            except Exception as error:
                response = problem_of(error, self._request_id).response()
            await response(scope, receive, send)

        await while_connected(receive, answer())
