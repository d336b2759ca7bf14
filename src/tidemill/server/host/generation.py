"""The generation of one API request: submits prompts, reads outputs, cancels the rest."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Protocol

from tidemill.base.clock import monotonic
from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.contract.request import ChoiceOutput, FinishReason, RequestTimings
from tidemill.generation.choices import TOOL_CALLS, ChoiceDelta, PromptChoices
from tidemill.generation.prepare import Prepared
from tidemill.server.admission.answers import answer_size, check_answer
from tidemill.server.host.charges import reserve_generation, settle
from tidemill.server.host.served import ServedModel
from tidemill.telemetry.trace import Trace
from tidemill.text.stops import StopSet

if TYPE_CHECKING:
    from tidemill.server.host.position import Positions

_ENDED = (FinishReason.STOP.value, FinishReason.LENGTH.value)


# Outputs that queued behind a slow reader are written in batches of this size, so that other tasks
# run in between.
MAX_BATCH = 64

MANY_TOKENS = 256
"""Of one output, after which other tasks run."""


class Generation(Protocol):
    """The answer to one request as it is made, by an engine or by a pipeline."""

    request_id: str
    prepared: Prepared
    admitted: bool
    """It has been given to what answers it."""
    finish_reasons: list[str]
    """Of the choices that have ended, in that order."""
    timings: RequestTimings | None
    """Of the choices that have ended, as the engine told them."""
    trace: Trace | None
    """What it notes for its explanation; None: nothing."""
    positions: Positions | None
    """Of a stream whose positions are told, or that goes on from one: then what the client has
    already comes first."""

    @property
    def num_choices(self) -> int:
        """Choices over all prompts."""

    @property
    def finished(self) -> bool:
        """True when every choice has ended."""

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts."""

    @property
    def completion_tokens(self) -> int:
        """Tokens generated and counted, over all choices."""

    @property
    def reasoning_tokens(self) -> int:
        """Tokens of the thinking, over all choices."""

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens found in the prefix cache."""

    @property
    def drafts(self) -> tuple[int, int]:
        """Drafts that became tokens of the output, and drafts that did not, over all choices."""

    @property
    def spent(self) -> Mapping[str, tuple[int, int, int]]:
        """Prompt, cached and generated tokens by the model whose price they have."""

    def steps(self) -> AsyncGenerator[list[ChoiceDelta], None]:
        """Run it and yield the output of each step, at most one delta per choice.

        Closing the generator (or cancelling it) cancels what still runs.

        Raises:
            TidemillError, Rejection: why there is no (whole) answer.
        """


class EngineGeneration:
    """Runs the prompts of one API request.

    Args:
        model: that answers.
        request_id: engine request ids are derived from it.
        prepared: the request.
        max_answer_bytes: bound on the size of the answer.
        streamed: output is sent as it is generated.
        positions: see `Generation`.

    Attributes:
        request_id, prepared, positions: as given.
        admitted, finish_reasons, timings, trace: see `Generation`.
        completion_tokens, cached_tokens: usage so far; a prompt counts once whatever the number of
            choices; cached tokens are those that no choice had to compute.
    """

    def __init__(
        self,
        model: ServedModel,
        request_id: str,
        prepared: Prepared,
        *,
        max_answer_bytes: int,
        streamed: bool = False,
        positions: Positions | None = None,
    ) -> None:
        self.request_id = request_id
        self.positions = positions
        self.prepared = prepared
        self.admitted = False
        self.finish_reasons: list[str] = []
        self.timings: RequestTimings | None = None
        self.trace = None
        if model.explain:
            names = tuple(use.name for use in prepared.request.adapters)
            self.trace = Trace(request_id, names)
        self._kinds: dict[int, str] = {}  # of the latest output, by choice
        self._model = model
        self._metrics = model.metrics
        count = len(prepared.prompts)
        self._ids = [request_id] if count == 1 else [f"{request_id}-{i}" for i in range(count)]
        self._prompts: list[PromptChoices] = []  # made once they are admitted
        self._open = sum(sampling.outputs for sampling in prepared.sampling)
        self._size = answer_size(prepared.prompts, prepared.sampling, streamed=streamed)
        check_answer(self._size, prepared.sampling[0], max_answer_bytes, streamed=streamed)

    @property
    def num_choices(self) -> int:
        """Choices over all prompts."""
        return self.prepared.request.num_choices

    @property
    def finished(self) -> bool:
        """True when every choice has ended."""
        return self._open == 0

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts."""
        return self.prepared.prompt_tokens

    @property
    def completion_tokens(self) -> int:
        """Tokens generated and counted, over all choices."""
        if self.prepared.request.scored:
            return 0
        return sum(prompt.tokens for prompt in self._prompts)

    @property
    def reasoning_tokens(self) -> int:
        """Tokens of the thinking, over all choices."""
        return sum(prompt.reasoning_tokens for prompt in self._prompts)

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens found in the prefix cache."""
        return sum(prompt.cached_tokens for prompt in self._prompts)

    @property
    def drafts(self) -> tuple[int, int]:
        """Drafts that became tokens of the output, and drafts that did not, over all choices."""
        accepted = sum(prompt.drafts_accepted for prompt in self._prompts)
        return accepted, sum(prompt.drafted for prompt in self._prompts) - accepted

    @property
    def spent(self) -> Mapping[str, tuple[int, int, int]]:
        """Prompt, cached and generated tokens by the model whose price they have."""
        tokens = self.prompt_tokens, self.cached_tokens, self.completion_tokens
        return {self._model.info.model: tokens if self.admitted else (0, 0, 0)}

    async def steps(self) -> AsyncGenerator[list[ChoiceDelta], None]:
        """Submit the requests and yield the output of each step, at most one delta per choice.

        Closing the generator (or cancelling it) cancels what still runs in the engine.

        Raises:
            TidemillError: the engine's error.
            Rejection: 429, the server is overloaded or a quota has no room.
        """
        prepared, trace = self.prepared, self.trace
        if trace is not None:
            trace.began = monotonic()
        held = await reserve_generation(self._model, prepared)
        if trace is not None:
            trace.reserved, trace.quota = monotonic(), held.taken()
        try:
            ticket = self._model.admission.admit(
                prepared.request.caller, prepared.prompts, prepared.sampling, self._size, trace
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
            streams = await self._submit_all()
            if self.positions is not None and self.positions.repeating:
                for known in self._repeat(self.positions):
                    yield known
                    if self.finished:
                        return
                    await asyncio.sleep(0)
                self.positions.repeating = False
            async with aclosing(_merge(streams, batched=self._open > 1)) as merged:
                async for outputs in merged:
                    deltas: list[ChoiceDelta] = []
                    for prompt, output in outputs:
                        delta = self._take(prompt, self._noted(prompt, output))
                        if delta is None:
                            continue
                        deltas += self._prompts[prompt].output(delta)
                        if trace is not None:
                            self._note_kind(trace, delta)
                        count = len(delta.token_ids)
                        observer.tokens(delta.index, count)
                        ticket.progress(prompt, count)
                        held.progress(count)
                        if delta.finish is not None:
                            ticket.end_choice(prompt)
                        reason = delta.finish or reason
                        if count > MANY_TOKENS:  # a whole beam
                            await asyncio.sleep(0)
                    if deltas:
                        yield deltas
                    if self.finished:
                        return
            raise TidemillError(ErrorKind.UNAVAILABLE, "the engine ended the request too early")
        except TidemillError as error:
            reason = error.kind.value
            raise
        finally:
            self._cancel_rest()
            ticket.close([n for prompt in self._prompts for n in prompt.finished_lengths()])
            if self._open and reason in (*_ENDED, TOOL_CALLS):
                reason = FinishReason.CANCELLED.value
            settle(
                *(held, reason),
                prompt=self.prompt_tokens,
                cached=self.cached_tokens,
                generated=self.completion_tokens,
            )
            observer.finish(reason, self.prompt_tokens, self.cached_tokens)

    async def _submit_all(self) -> list[AsyncIterator[ChoiceOutput]]:
        """Submit the prompts, yielding to the event loop between them: each may be long and have
        many choices."""
        model, prepared = self._model, self.prepared
        stops = StopSet(prepared.sampling[0].stop)  # the same for all prompts
        streams = []
        for index, request_id in enumerate(self._ids):
            if index:
                await asyncio.sleep(0)
            self._prompts.append(PromptChoices(model.tokenizer, prepared, index, stops))
            request = prepared.engine_request(
                index,
                request_id,
                max_queue_time=model.admission.options.max_queue_time,
                explain=self.trace is not None,
            )
            if self.positions is not None:
                request = self.positions.request(index, request)
            stream = model.client.submit(request)
            if self.trace is not None:
                self.trace.follow(stream)
            streams.append(stream)
        return streams

    def _repeat(self, positions: Positions) -> Iterator[list[ChoiceDelta]]:
        """What the client has of the answer. Choices that have ended here end in the engine."""
        known = positions.known(self._ids)
        for start in range(0, len(known), MAX_BATCH):
            deltas: list[ChoiceDelta] = []
            for prompt, output in known[start : start + MAX_BATCH]:
                delta = self._take(prompt, output)
                if delta is None:
                    continue
                deltas += self._prompts[prompt].output(delta)
                if delta.finish is not None and not delta.stopped_here:
                    self._model.client.cancel(self._ids[prompt], output.choice)
            yield deltas

    def _noted(self, prompt: int, output: ChoiceOutput) -> ChoiceOutput:
        return output if self.positions is None else self.positions.note(prompt, output)

    def _note_kind(self, trace: Trace, delta: ChoiceDelta) -> None:
        """Notes where thinking, text and tool calls begin in each choice."""
        kind = "text" if delta.text else "thinking" if delta.reasoning else ""
        kind = "tools" if delta.calls else kind
        if kind and self._kinds.get(delta.index) != kind:
            self._kinds[delta.index] = kind
            trace.output(delta.index, kind, monotonic())

    def _take(self, prompt: int, output: ChoiceOutput) -> ChoiceDelta | None:
        """Process one output; None when the choice has already ended here (surplus)."""
        delta = self._prompts[prompt].take(output)
        if delta is None:
            return None
        if delta.errors:
            self._metrics.malformed_tool_calls.inc(len(delta.errors))
        if delta.finish is not None:
            self._open -= 1
            self.finish_reasons.append(delta.finish)
        if output.timings is not None:
            before = self.timings
            self.timings = output.timings if before is None else before.together(output.timings)
        if delta.stopped_here:
            self._model.client.cancel(self._ids[prompt], output.choice, FinishReason.STOP.value)
        return delta

    def _cancel_rest(self) -> None:
        for request_id, prompt in zip(self._ids, self._prompts, strict=False):
            if not prompt.done:
                self._model.client.cancel(request_id)


async def _merge(
    streams: Sequence[AsyncIterator[ChoiceOutput]], *, batched: bool
) -> AsyncGenerator[list[tuple[int, ChoiceOutput]], None]:
    """Outputs of all streams with the stream's index; outputs that are ready together form a batch.

    A step produces one output per choice, and each batch becomes one write to the client.
    """
    if not batched:
        try:
            taken = 0
            async for output in streams[0]:
                yield [(0, output)]
                taken += 1
                if taken % MAX_BATCH == 0:
                    await asyncio.sleep(0)
        finally:
            await _close(streams[0])
        return
    ready: list[tuple[int, ChoiceOutput]] = []
    wake = asyncio.Event()

    async def pump(index: int, stream: AsyncIterator[ChoiceOutput]) -> None:
        try:
            async for output in stream:
                ready.append((index, output))
                wake.set()
        finally:
            wake.set()

    tasks = [asyncio.create_task(pump(i, stream)) for i, stream in enumerate(streams)]
    try:
        while True:
            await wake.wait()
            wake.clear()
            failed = next((t for t in tasks if t.done() and t.exception() is not None), None)
            if failed is not None:
                failed.result()
            batch, ready[:] = ready[:MAX_BATCH], ready[MAX_BATCH:]
            if batch:
                yield batch
                if ready:
                    wake.set()
                    await asyncio.sleep(0)
            elif all(task.done() for task in tasks):
                return
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for stream in streams:
            await _close(stream)


async def _close(stream: AsyncIterator[ChoiceOutput]) -> None:
    close = getattr(stream, "aclose", None)
    if close is not None:
        await close()
