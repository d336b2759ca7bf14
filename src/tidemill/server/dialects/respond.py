"""Responses of a dialect's handlers: a model is leased, the work is done, errors take the dialect's
shape, and a client that disconnects ends it all."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tidemill.base.clock import monotonic
from tidemill.base.log import get_logger
from tidemill.generation.caller import ANONYMOUS
from tidemill.generation.request import GenerateRequest
from tidemill.server.context import ServerContext
from tidemill.server.dialects.logprobs import check_logprobs
from tidemill.server.dialects.permitted import find_model, with_adapters
from tidemill.server.dialects.truncated import name_truncated
from tidemill.server.errors import Problem, fail, problem_response
from tidemill.server.host.answer import Format, write_stream, write_whole
from tidemill.server.host.begin import begin_generation
from tidemill.server.host.generation import Generation
from tidemill.server.host.served import ServedModel, check_is_model
from tidemill.server.recording import Ends, record_until
from tidemill.server.transport.framing import Framing
from tidemill.server.transport.sink import AsgiSink, Sink
from tidemill.server.transport.stream import while_connected
from tidemill.telemetry.record import Operation

log = get_logger(__name__)

MakeFormat = Callable[[ServedModel, Generation], Awaitable[Format]]
Failure = Callable[[Problem], bytes]

RESUMING = ("x-resumable-stream", "last-event-id")
"""Headers of requests for streams that can be resumed (`server.dialects.resumable`)."""


class GeneratedAnswer(Response):
    """The answer to a `GenerateRequest`.

    Args:
        context: the server's.
        request: the HTTP request.
        model: the name of the model, or None.
        asked: what is generated.
        answer_id: identifies the answer; engine request ids are derived from it.
        make_format: makes its format once the request is prepared.
        framing: of a stream; None: the answer is written whole.
        failure: the parts that end a stream that fails after its start, framed; None: the
            dialect's error as one part.
        keep_alive: seconds that the model stays loaded afterwards; None: as before.
    """

    def __init__(
        self,
        context: ServerContext,
        request: Request,
        model: str | None,
        asked: GenerateRequest,
        answer_id: str,
        make_format: MakeFormat,
        framing: Framing | None,
        failure: Failure | None = None,
        keep_alive: float | None = None,
    ) -> None:
        super().__init__()
        find_model(context, request, model)  # a wrong name fails before anything else
        context.shared.check_choices(asked.num_computed)  # before the work of so many
        request.state.operation, request.state.streamed = Operation.GENERATE, framing is not None
        self._context = context
        self._request = request
        self._model = model
        self._asked = asked
        self._id = answer_id
        self._make_format = make_format
        self._framing = framing
        self._failure_parts = failure
        self._keep_alive = keep_alive

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve; a disconnect of the client cancels the generation, unless it may resume it."""
        framing, headers = self._framing, self._request.headers
        asked = any(name in headers for name in RESUMING)
        wanted = asked or (framing is not None and framing.events and self._context.resumable)
        # A connection of another protocol has no ids to come back with.
        inner = getattr(self._request.state, "inner", False)
        told = getattr(self._request.state, "positions", None) is not None
        if framing is not None and wanted and not (inner or told):
            work = self._resume(receive, send, framing, asked=asked)
            await self._serve(scope, receive, send, work)
        else:
            work = self.write(AsgiSink(send))
            await while_connected(receive, self._serve(scope, receive, send, work))

    async def write(self, sink: Sink) -> None:
        """Generate and write the answer, whoever reads it; cancelling this cancels the generation.

        Raises:
            Exception: what failed before anything was written.
        """
        async with AsyncExitStack() as stack:
            if self._framing is None:
                await write_whole(sink, lambda: self._begin(stack))
            else:
                await write_stream(sink, lambda: self._begin(stack), self._framing, self._failure)

    async def _serve(
        self, scope: Scope, receive: Receive, send: Send, work: Coroutine[Any, Any, None]
    ) -> None:
        try:
            await work
        except Exception as error:
            problem = fail(self._request, error)
            response = problem_response(problem, self._request.state.error_body)
            await response(scope, receive, send)

    async def _resume(self, receive: Receive, send: Send, framing: Framing, *, asked: bool) -> None:
        from tidemill.server.dialects.resumable import resumed  # few ask for it

        found = await resumed(
            self._context,
            *(self._request, self._model, self._asked),
            *(self._id, self.write_detached, framing),
            asked=asked,
        )
        if found is None:
            await while_connected(receive, self.write(AsgiSink(send)))
        else:
            await found[0].serve(receive, send, found[1])

    def record_until(self, background: Ends) -> None:
        """The request has ended only when what it runs in the background has."""
        record_until(self._request, background)

    async def write_detached(self, sink: Sink) -> None:
        """`write` for a reader who may come late: what is raised is written first.

        Raises:
            Exception: as `write`.
        """
        try:
            await self.write(sink)
        except Exception as error:
            await sink.write(self._failure(error), more=False)
            raise

    async def _begin(self, stack: AsyncExitStack) -> tuple[Generation, Format]:
        context, state = self._context, self._request.state
        state.begun = monotonic()
        try:
            routed = context.host.route(self._model, self._asked.caller)
            state.model = routed.recorded  # for the log of requests, and a header
            lease = context.host.lease(routed, self._keep_alive)
            model = await stack.enter_async_context(lease)
            state.leased = monotonic()
            asked = await with_adapters(self._request, routed, model, self._asked)
            if len(asked.adapters) == 1:
                state.model = routed.recorded_as(asked.adapters[0].name)
            generation = await begin_generation(
                model,
                self._id,
                asked,
                max_answer_bytes=context.limits.max_answer_bytes,
                streamed=self._framing is not None,
                positions=getattr(state, "positions", None),
            )
            if context.followed is not None:
                context.followed.note(self._id, state.request_id)
            check_logprobs(generation.prepared, context.limits.max_logprobs)
            form = await self._make_format(model, generation)
        except Exception as error:
            context.metrics.refused(fail(self._request, error).code or "error")
            raise
        finally:
            state.hold.close()
        state.generation = generation  # for the log of requests
        name_truncated(self._request, generation.prepared.cut)
        log.debug(
            "request %s: %s, %d prompt tokens, %d choices",
            *(state.request_id, self._id),
            *(generation.prompt_tokens, generation.num_choices),
        )
        return generation, form

    def _failure(self, error: Exception) -> bytes:
        assert self._framing is not None
        problem = fail(self._request, error)
        if self._failure_parts is not None:
            return self._failure_parts(problem)
        return self._framing.part(self._request.state.error_body(problem))


class ModelAnswer(Response):
    """An answer that is computed by a model and sent as one response.

    Args:
        context: the server's.
        request: the HTTP request.
        model: the name of the model, or None.
        work: computes the response. It calls `request.state.hold.close()` when the body's memory
            is no longer needed.
        keep_alive: see `GeneratedAnswer`.
    """

    def __init__(
        self,
        context: ServerContext,
        request: Request,
        model: str | None,
        work: Callable[[ServedModel], Awaitable[Response]],
        keep_alive: float | None = None,
    ) -> None:
        super().__init__()
        find_model(context, request, model)
        request.state.operation = Operation.COUNT  # unless it computes something
        self._context = context
        self._request = request
        self._model = model
        self._work = work
        self._keep_alive = keep_alive

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve; a disconnect of the client cancels the work."""

        async def answer() -> None:
            host, state = self._context.host, self._request.state
            state.begun = monotonic()
            try:
                routed = host.route(self._model, getattr(state, "caller", ANONYMOUS))
                state.model = routed.recorded
                async with host.lease(routed, self._keep_alive) as model:
                    state.leased = monotonic()
                    check_is_model(model)
                    response = await self._work(model)
            except Exception as error:
                problem = fail(self._request, error)
                response = problem_response(problem, self._request.state.error_body)
            await response(scope, receive, send)

        await while_connected(receive, answer())
