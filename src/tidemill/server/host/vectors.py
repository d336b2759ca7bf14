"""Requests without generation: a pooled vector for each input."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence

from tidemill.base.clock import monotonic
from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.base.ids import new_id
from tidemill.contract.request import ChoiceOutput, FinishReason, RequestTimings, exception_of
from tidemill.generation.pace import slices
from tidemill.generation.vectors import NO_SAMPLING, PreparedInputs
from tidemill.server.admission.answers import NOTHING_HELD, AnswerSize
from tidemill.server.host.charges import reserve_inputs, settle
from tidemill.server.host.pace import LOOP
from tidemill.server.host.served import ServedModel
from tidemill.telemetry.trace import Trace

SUBMITTED_AT_ONCE = 16
"""Inputs that are submitted without yielding to the event loop."""


class Vectors:
    """Runs the inputs of one API request through the engine.

    Args:
        model: that answers.
        prepared: at least one input.
        size: estimated size of the answer.

    Attributes:
        prompt_tokens, cached_tokens: usage, complete after `run`.
        admitted: the inputs have been given to the engine.
        finished: every vector is there.
        num_choices: inputs.
        finish_reasons: none: nothing is generated.
        timings: of the inputs together, as the engine told them.
        trace: what it notes for its explanation; None: nothing.
    """

    completion_tokens = 0
    reasoning_tokens = 0
    finish_reasons: Sequence[str] = ()

    def __init__(
        self,
        model: ServedModel,
        prepared: PreparedInputs,
        size: AnswerSize = NOTHING_HELD,
    ) -> None:
        self.prompt_tokens = prepared.prompt_tokens
        self.cached_tokens = 0
        self.admitted = False
        self.finished = False
        self.num_choices = len(prepared.inputs)
        self.timings: RequestTimings | None = None
        self.trace = Trace() if model.explain else None
        self._model = model
        self._prepared = prepared
        self._size = size
        self._open: dict[str, None] = {}

    @property
    def spent(self) -> Mapping[str, tuple[int, int, int]]:
        """Prompt, cached and generated tokens by the model whose price they have."""
        tokens = (self.prompt_tokens, self.cached_tokens, 0) if self.admitted else (0, 0, 0)
        return {self._model.info.model: tokens}

    async def run(self) -> list[bytes]:
        """Each input's vector as float32 bytes, in order. Cancellation cancels all.

        Raises:
            TidemillError: the engine's error for the first input that failed.
            Rejection: 429, the server is overloaded or a quota has no room.
        """
        inputs = self._prepared.inputs
        prompts, count = [i.token_ids for i in inputs], len(inputs)
        trace = self.trace
        if trace is not None:
            trace.began = monotonic()
        held = await reserve_inputs(self._model, self._prepared)
        if trace is not None:
            trace.reserved, trace.quota = monotonic(), held.taken()
        try:
            ticket = self._model.admission.admit(
                self._prepared.caller, prompts, [NO_SAMPLING] * count, self._size, trace
            )
        except BaseException:
            held.release()
            raise
        self.admitted = True
        observer = self._model.observe()
        reason = FinishReason.CANCELLED.value
        try:
            if trace is not None:
                trace.submitted = monotonic()
            name = new_id("vec")
            streams = []
            async for some in slices(range(count), SUBMITTED_AT_ONCE, LOOP):
                streams += [self._submit(f"{name}-{i}", i) for i in some]
            found = []
            for i, stream in enumerate(streams):
                found.append(await self._take(stream))
                ticket.progress(i, 0)
                ticket.end_choice(i)
            reason = FinishReason.STOP.value
            self.finished = True
            return found
        except TidemillError as error:
            reason = error.kind.value
            raise
        finally:
            for request_id in self._open:
                self._model.client.cancel(request_id)
            ticket.close()
            prompt, cached = self.prompt_tokens, self.cached_tokens
            settle(held, reason, prompt=prompt, cached=cached, generated=0)
            observer.finish(reason, self.prompt_tokens, self.cached_tokens)

    def _submit(self, request_id: str, place: int) -> AsyncIterator[ChoiceOutput]:
        model = self._model
        request = self._prepared.engine_request(
            place,
            request_id,
            max_queue_time=model.admission.options.max_queue_time,
            explain=self.trace is not None,
            adapters=model.adapters,
        )
        stream = model.client.submit(request)
        if self.trace is not None:
            self.trace.follow(stream)
        self._open[request_id] = None
        return stream

    async def _take(self, stream: AsyncIterator[ChoiceOutput]) -> bytes:
        async for output in stream:
            if output.finish_reason is None:
                continue
            self._open.pop(output.request_id, None)
            if output.timings is not None:
                before = self.timings
                self.timings = output.timings if before is None else before.together(output.timings)
            if output.finish_reason is FinishReason.ERROR:
                raise exception_of(output.error)
            if output.finish_reason is FinishReason.CANCELLED:
                raise TidemillError(ErrorKind.UNAVAILABLE, "the engine is shutting down")
            self.cached_tokens += output.cached_tokens or 0
            return output.pooled
        raise TidemillError(ErrorKind.UNAVAILABLE, "the engine ended the request too early")
