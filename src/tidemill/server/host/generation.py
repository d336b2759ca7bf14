"""The generation of one API request: submits prompts, turns outputs into text, cancels the rest.

It is independent of the API dialect. It yields `ChoiceDelta`s, from which streamed and whole
answers are assembled by the same rules (promise 8).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from tidemill.base.clock import monotonic
from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.contract.request import ChoiceOutput, EngineRequest, FinishReason, TokenLogprob
from tidemill.contract.sampling import SamplingParams
from tidemill.server.admission.answers import answer_size, check_answer
from tidemill.server.admission.control import ANONYMOUS, Caller
from tidemill.server.context import ServerContext
from tidemill.server.errors import engine_error
from tidemill.text.answer import AnswerText, CallPart
from tidemill.text.answering import PLAIN, AnswerRules
from tidemill.text.stops import StopSet

TOOL_CALLS = "tool_calls"
"""Finish reason of an answer that calls tools."""

REPETITION = "repetition"
"""The stop_reason of a constrained answer without max_tokens that repeated itself."""

_ENDED = (FinishReason.STOP.value, FinishReason.LENGTH.value)


# Outputs that queued behind a slow reader are written in batches of this size, so that other tasks
# run in between.
MAX_BATCH = 64


@dataclass(frozen=True, slots=True)
class TokenPiece:
    """A token with its logprob, its bytes, and the characters of output before it."""

    logprob: TokenLogprob
    piece: bytes
    offset: int


@dataclass(frozen=True, slots=True)
class ChoiceDelta:
    """The output of one step for one choice.

    Attributes:
        index: over all prompts: prompt * n + choice.
        text: new characters of the answer; can be empty.
        reasoning: new characters of the thinking.
        calls: new parts of tool calls.
        errors: reasons why something that began like a tool call is none.
        count: new tokens that count in the usage.
        pieces: one per counted token, if logprobs were requested.
        first: the choice's first delta.
        prompt_logprobs: in the first delta, if requested; shared by all choices of a prompt.
        finish: ``stop``, ``length`` or ``tool_calls`` in the choice's last delta.
        stopped_by: in the last delta, the stop string or stop token id that ended the choice.
    """

    index: int
    text: str
    count: int
    reasoning: str = ""
    calls: tuple[CallPart, ...] = ()
    errors: tuple[str, ...] = ()
    pieces: tuple[TokenPiece, ...] = ()
    first: bool = False
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
    finish: str | None = None
    stopped_by: str | int | None = None


@dataclass(slots=True)
class _Choice:
    text: AnswerText
    started: bool = False
    done: bool = False


class Generation:
    """Runs the prompts of one API request.

    Args:
        context: the server's.
        request_id: engine request ids are derived from it.
        prompts: token ids of each prompt.
        sampling: resolved parameters of each prompt; `n` is the same for all.
        rules: constraints on the outputs, and how they are parsed.
        at_start: outputs begin a new text (see `OutputText`).
        arrival: seconds of `base.clock.monotonic` when the request was received.
        counted: generated tokens are output; False when only the prompt is scored.
        streamed: output is sent as it is generated.
        caller: the client and the deadline.

    Attributes:
        request_id, prompts, sampling, rules: as given.
        prompt_tokens, completion_tokens, cached_tokens: usage so far; a prompt counts once
            whatever the number of choices; cached tokens are those that no choice had to compute.
    """

    def __init__(
        self,
        context: ServerContext,
        request_id: str,
        prompts: Sequence[tuple[int, ...]],
        sampling: Sequence[SamplingParams],
        *,
        at_start: bool,
        rules: AnswerRules = PLAIN,
        arrival: float | None = None,
        counted: bool = True,
        streamed: bool = False,
        caller: Caller = ANONYMOUS,
    ) -> None:
        self.request_id = request_id
        self.prompts = prompts
        self.sampling = sampling
        self.rules = rules
        self._context = context
        self._counted = counted
        self._caller = caller
        self._n = sampling[0].n
        single = len(prompts) == 1
        self._ids = [request_id if single else f"{request_id}-{i}" for i in range(len(prompts))]
        self._arrival = monotonic() if arrival is None else arrival
        self._at_start = at_start
        self._cached: list[int | None] = [None] * len(prompts)
        self._prompt_logprobs: list[tuple[TokenLogprob | None, ...] | None]
        self._prompt_logprobs = [None] * len(prompts)
        self._choices: list[list[_Choice]] = []  # made once they are admitted
        self._open = self.num_choices
        context.admission.check_choices(self.num_choices)
        self._size = answer_size(prompts, sampling, streamed=streamed)
        check_answer(self._size, sampling[0], context.limits.max_answer_bytes, streamed=streamed)

    def _new_choice(self, params: SamplingParams, stops: StopSet) -> _Choice:
        rules = self.rules
        text = AnswerText(
            self._context.tokenizer,
            None if rules.parser is None else rules.parser(),
            kept=rules.kept,
            stop=stops,
            min_tokens=params.min_tokens,
            at_start=self._at_start,
            track=params.logprobs is not None,
        )
        return _Choice(text)

    @property
    def num_choices(self) -> int:
        """Choices over all prompts."""
        return len(self.prompts) * self._n

    @property
    def finished(self) -> bool:
        """True when every choice has ended."""
        return self._open == 0

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts."""
        return sum(len(p) for p in self.prompts)

    @property
    def completion_tokens(self) -> int:
        """Tokens generated and counted, over all choices."""
        if not self._counted:
            return 0
        return sum(c.text.tokens for choices in self._choices for c in choices)

    @property
    def reasoning_tokens(self) -> int:
        """Tokens of the thinking, over all choices."""
        return sum(c.text.reasoning_tokens for choices in self._choices for c in choices)

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens found in the prefix cache."""
        return sum(c or 0 for c in self._cached)

    async def steps(self) -> AsyncGenerator[list[ChoiceDelta], None]:
        """Submit the requests and yield the output of each step, at most one delta per choice.

        Closing the generator (or cancelling it) cancels what still runs in the engine.

        Raises:
            TidemillError: the engine's error.
            Rejection: 429, the server is overloaded.
        """
        context = self._context
        ticket = context.admission.admit(self._caller, self.prompts, self.sampling, self._size)
        observer = context.metrics.start()
        reason = FinishReason.CANCELLED.value
        try:
            streams = await self._submit_all()
            async with aclosing(_merge(streams, batched=self.num_choices > 1)) as merged:
                async for outputs in merged:
                    deltas: list[ChoiceDelta] = []
                    for prompt, output in outputs:
                        delta = self._take(prompt, output)
                        if delta is None:
                            continue
                        deltas.append(delta)
                        observer.tokens(delta.index, delta.count)
                        ticket.progress(prompt, delta.count)
                        if delta.finish is not None:
                            ticket.end_choice(prompt)
                        reason = delta.finish or reason
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
            ticket.close(self._lengths())
            if self._open and reason in (*_ENDED, TOOL_CALLS):
                reason = FinishReason.CANCELLED.value
            observer.finish(reason, self.prompt_tokens, self.cached_tokens)

    async def _submit_all(self) -> list[AsyncIterator[ChoiceOutput]]:
        """Submit the prompts, yielding to the event loop between them: each may be long and have
        many choices."""
        stops = StopSet(self.sampling[0].stop)  # the same for all prompts
        streams = []
        for index, params in enumerate(self.sampling):
            if index:
                await asyncio.sleep(0)
            self._choices.append([self._new_choice(params, stops) for _ in range(self._n)])
            streams.append(self._context.client.submit(self._request(index)))
        return streams

    def _lengths(self) -> list[int]:
        """Tokens of each finished choice."""
        return [c.text.tokens for choices in self._choices for c in choices if c.done]

    def _request(self, prompt: int) -> EngineRequest:
        caller, limit = self._caller, self._context.admission_options.max_queue_time
        return EngineRequest(
            request_id=self._ids[prompt],
            prompt_token_ids=self.prompts[prompt],
            sampling=self.sampling[prompt],
            program=self.rules.program,
            arrival=self._arrival,
            place=prompt,
            deadline=caller.deadline,
            priority=caller.priority,
            start_by=None if limit is None else self._arrival + limit,
            cache_salt=caller.cache_salt,
            tenant=caller.client,
            weight=caller.weight,
        )

    def _take(self, prompt: int, output: ChoiceOutput) -> ChoiceDelta | None:
        """Process one output; None when the choice has already ended here (surplus)."""
        choice = self._choices[prompt][output.choice]
        if choice.done:
            return None
        if output.finish_reason is FinishReason.ERROR:
            raise engine_error(output.error)
        if output.finish_reason is FinishReason.CANCELLED:
            raise TidemillError(ErrorKind.UNAVAILABLE, "the engine is shutting down")
        if output.cached_tokens is not None:
            known = self._cached[prompt]
            cached = output.cached_tokens
            self._cached[prompt] = cached if known is None else min(known, cached)
        if output.prompt_logprobs is not None:
            self._prompt_logprobs[prompt] = output.prompt_logprobs
        text = choice.text
        before = text.tokens
        found, stopped = text.push(output.token_ids, hide_last=output.stop_token is not None)
        if output.finish_reason is not None and not stopped:
            found += text.finish(cut=output.finish_reason is FinishReason.LENGTH)
            stopped = text.stopped
        if found.errors:
            self._context.metrics.malformed_tool_calls.inc(len(found.errors))
        ended = FinishReason.STOP if stopped else output.finish_reason
        finish = None if ended is None else ended.value
        if ended is FinishReason.STOP and text.calls:
            finish = TOOL_CALLS
        first, choice.started = not choice.started, True
        if finish is not None:
            choice.done = True
            self._open -= 1
            if output.finish_reason is None:
                self._context.client.cancel(
                    self._ids[prompt], output.choice, FinishReason.STOP.value
                )
        return ChoiceDelta(
            index=prompt * self._n + output.choice,
            text=found.content,
            count=text.tokens - before,
            reasoning=found.reasoning,
            calls=found.calls,
            errors=found.errors,
            pieces=_pieces(text, before, output.logprobs),
            first=first,
            prompt_logprobs=self._prompt_logprobs[prompt] if first else None,
            finish=finish,
            stopped_by=None if finish is None else self._stopped_by(prompt, text, output),
        )

    def _stopped_by(self, prompt: int, text: AnswerText, output: ChoiceOutput) -> str | int | None:
        if text.stopped:
            return text.stop_string
        if output.finish_reason is FinishReason.LENGTH:
            # The engine ends a constrained answer before max_tokens when it repeats itself.
            most = self.sampling[prompt].max_tokens
            short = most is not None and text.tokens < most
            return REPETITION if short and not self.rules.program.free else None
        # The model's end tokens are not stops that the client named.
        token = output.stop_token
        return token if token in self.sampling[prompt].stop_token_ids else None

    def _cancel_rest(self) -> None:
        for prompt, choices in enumerate(self._choices):
            if not all(c.done for c in choices):
                self._context.client.cancel(self._ids[prompt])


def _pieces(
    text: AnswerText, before: int, logprobs: Sequence[TokenLogprob] | None
) -> tuple[TokenPiece, ...]:
    if logprobs is None:
        return ()
    taken = range(before, text.tokens)
    return tuple(
        TokenPiece(logprob, text.pieces[i], text.offsets[i])
        for i, logprob in zip(taken, logprobs, strict=False)
    )


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
