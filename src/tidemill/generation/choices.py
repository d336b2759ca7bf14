"""Reads the engine's outputs of one prompt: tokens become text, thinking and tool calls.

It knows no dialect: it yields `ChoiceDelta`s, from which streamed and whole answers are assembled
by the same rules (promise 8), over HTTP and offline.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.contract.request import ChoiceOutput, FinishReason, TokenLogprob, exception_of
from tidemill.contract.sampling import SamplingParams
from tidemill.generation.prepare import Prepared
from tidemill.text.answer import AnswerDelta, AnswerText, CallPart, TextLook
from tidemill.text.repetition import RepetitionFinder
from tidemill.text.stops import StopSet
from tidemill.text.tokenizer import Tokenizer

TOOL_CALLS = "tool_calls"
"""Finish reason of an answer that calls tools."""

REPETITION = "repetition"
"""The stop_reason of an answer that repeated itself: of a constrained one without max_tokens, and
of any one where `repetition_detection` asks for it."""


class TokenPiece(msgspec.Struct, frozen=True):
    """A token with its logprob, its bytes, and the characters of output before it."""

    logprob: TokenLogprob
    piece: bytes
    offset: int


class ChoiceDelta(msgspec.Struct, frozen=True):
    """The output of one step for one choice.

    Attributes:
        index: over all prompts: prompt * n + choice.
        text: new characters of the answer; can be empty.
        token_ids: new tokens that count in the usage.
        reasoning: new characters of the thinking.
        calls: new parts of tool calls.
        errors: reasons why something that began like a tool call is none.
        parts: text, thinking and calls as written, where they are of several kinds.
        pieces: one per counted token, if logprobs were requested.
        first: the choice's first delta.
        prompt_logprobs: in the first delta, if requested; shared by all choices of a prompt.
        finish: ``stop``, ``length`` or ``tool_calls`` in the choice's last delta.
        stopped_by: in the last delta, the stop string or stop token id that ended the choice.
        stopped_here: a stop string ended the choice before the engine did: it must be cancelled
            there.
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    reasoning: str = ""
    calls: tuple[CallPart, ...] = ()
    errors: tuple[str, ...] = ()
    parts: tuple[AnswerDelta, ...] = ()
    pieces: tuple[TokenPiece, ...] = ()
    first: bool = False
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
    finish: str | None = None
    stopped_by: str | int | None = None
    stopped_here: bool = False

    def answer(self) -> AnswerDelta:
        """Its parts of the answer."""
        return AnswerDelta(self.text, self.reasoning, self.calls, self.errors, self.parts)


@dataclass(slots=True)
class _Choice:
    text: AnswerText
    repetition: RepetitionFinder | None = None
    repeated: bool = False
    started: bool = False
    done: bool = False


class _BestOf:
    """`best_of`: holds the choices of one prompt back until all have ended; those with the highest
    mean logprob are the output.

    Args:
        computed: how many choices are sampled.
        n: how many of them are the output.
        base: index of the first of these over all prompts.
    """

    def __init__(self, computed: int, n: int, base: int) -> None:
        self._held: list[list[ChoiceDelta]] = [[] for _ in range(computed)]
        self._sums = [0.0] * computed
        self._tokens = [0] * computed
        self._n, self._base = n, base
        self._open = computed
        self.order: list[int] = []
        """The output's choices, best first, once all have ended."""

    def count(self, choice: int, logprobs: list[float]) -> None:
        """Add the logprobs of a choice's new tokens."""
        self._sums[choice] += sum(logprobs)
        self._tokens[choice] += len(logprobs)

    def mean(self, choice: int) -> float:
        """Mean logprob of a choice's tokens; of none, 0."""
        return self._sums[choice] / max(1, self._tokens[choice])

    def add(self, choice: int, delta: ChoiceDelta) -> list[ChoiceDelta]:
        """Hold a delta; the whole output, one delta a choice, when it is the last."""
        self._held[choice].append(delta)
        self._open -= delta.finish is not None
        if self._open:
            return []
        ranked = sorted(range(len(self._held)), key=lambda i: (-self.mean(i), i))
        self.order = ranked[: self._n]
        return [_joined(self._held[c], self._base + i) for i, c in enumerate(self.order)]


def _joined(deltas: list[ChoiceDelta], index: int) -> ChoiceDelta:
    """All deltas of a choice as one."""
    first, last = deltas[0], deltas[-1]
    answer = AnswerDelta.joined(delta.answer() for delta in deltas)
    return msgspec.structs.replace(
        last,
        index=index,
        text=answer.content,
        token_ids=tuple(token for delta in deltas for token in delta.token_ids),
        reasoning=answer.reasoning,
        calls=answer.calls,
        errors=answer.errors,
        parts=answer.parts,
        pieces=tuple(piece for delta in deltas for piece in delta.pieces),
        first=True,
        prompt_logprobs=first.prompt_logprobs,
    )


class PromptChoices:
    """The choices of one prompt of a request.

    Args:
        tokenizer: the model's.
        prepared: the request.
        prompt: index of the prompt.
        stops: the request's stop strings; the same for all prompts, so made once.

    Attributes:
        cached_tokens: prompt tokens found in the prefix cache, by the choice that found fewest.
        drafted, drafts_accepted: drafts that were verified for its choices, and those of them that
            became tokens.
    """

    def __init__(
        self, tokenizer: Tokenizer, prepared: Prepared, prompt: int, stops: StopSet | None = None
    ) -> None:
        self.cached_tokens = self.drafted = self.drafts_accepted = 0
        self._sampling: SamplingParams = prepared.sampling[prompt]
        self._free = prepared.rules.program.free
        computed = self._sampling.outputs
        self._base = prompt * computed
        self._tracked = self._sampling.logprobs is not None
        self._best = None
        if self._sampling.chosen:
            self._best = _BestOf(computed, self._sampling.n, prompt * self._sampling.n)
        self._cached: int | None = None
        self._prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
        rules, sampling = prepared.rules, self._sampling
        stops = StopSet(sampling.stop) if stops is None else stops
        repetition = sampling.repetition_detection
        look = TextLook(
            sampling.include_stop_str_in_output,
            sampling.skip_special_tokens,
            sampling.spaces_between_special_tokens,
        )
        self._choices = [
            _Choice(
                AnswerText(
                    tokenizer,
                    None if rules.parser is None else rules.parser(),
                    kept=rules.kept,
                    look=look,
                    stop=stops,
                    min_tokens=sampling.min_tokens,
                    at_start=prepared.at_start,
                    track=self._tracked,
                ),
                None if repetition is None else RepetitionFinder(repetition, sampling.min_tokens),
            )
            for _ in range(computed)
        ]

    @property
    def tokens(self) -> int:
        """Tokens generated and counted."""
        return sum(c.text.tokens for c in self._choices)

    @property
    def reasoning_tokens(self) -> int:
        """Tokens of the thinking."""
        return sum(c.text.reasoning_tokens for c in self._choices)

    @property
    def done(self) -> bool:
        """Every choice has ended."""
        return all(c.done for c in self._choices)

    def finished_lengths(self) -> list[int]:
        """Tokens of each choice that has ended."""
        return [c.text.tokens for c in self._choices if c.done]

    def reasoning_of(self, choice: int) -> int:
        """Tokens of the thinking of one of the output's choices."""
        return self._computed(choice).text.reasoning_tokens

    def stop_string_of(self, choice: int) -> str | None:
        """The stop string that ended one of the output's choices."""
        return self._computed(choice).text.stop_string

    def _computed(self, choice: int) -> _Choice:
        return self._choices[choice if self._best is None else self._best.order[choice]]

    def output(self, delta: ChoiceDelta) -> list[ChoiceDelta]:
        """What a delta of `take` adds to the output: itself, or, of `best_of` choices, nothing
        before all have ended, and then the best ones whole."""
        if self._best is None:
            return [delta]
        return self._best.add(delta.index - self._base, delta)

    def take(self, output: ChoiceOutput) -> ChoiceDelta | None:
        """Process one output; None when the choice has already ended here (surplus). Its index
        counts the computed choices; see `output`.

        Raises:
            TidemillError: the engine's error.
        """
        choice = self._choices[output.choice]
        if choice.done:
            return None
        if output.finish_reason is FinishReason.ERROR:
            raise exception_of(output.error)
        if output.finish_reason is FinishReason.CANCELLED:
            raise TidemillError(
                ErrorKind.UNAVAILABLE, "the engine is shutting down", retryable=True
            )
        self.drafted += output.drafted
        self.drafts_accepted += output.drafts_accepted
        if output.cached_tokens is not None:
            known, cached = self._cached, output.cached_tokens
            self._cached = cached if known is None else min(known, cached)
            self.cached_tokens = self._cached
        if output.prompt_logprobs is not None:
            self._prompt_logprobs = output.prompt_logprobs
        text = choice.text
        before = text.tokens
        token_ids, engine_ended = _until_repetition(choice, output)
        whole = len(token_ids) == len(output.token_ids)
        shown = self._sampling.include_stop_str_in_output
        hidden = output.stop_token is not None and whole and not shown
        found, stopped = text.push(token_ids, hide_last=hidden)
        if engine_ended is not None and not stopped:
            found += text.finish(cut=engine_ended is FinishReason.LENGTH)
            stopped = text.stopped
        taken = text.tokens - before
        ended = FinishReason.STOP if stopped else engine_ended
        finish = None if ended is None else ended.value
        if ended is FinishReason.STOP and text.calls:
            finish = TOOL_CALLS
        if self._best is not None and output.logprobs is not None:
            self._best.count(output.choice, [lp.logprob for lp in output.logprobs[:taken]])
        first, choice.started = not choice.started, True
        choice.done = finish is not None
        return ChoiceDelta(
            index=self._base + output.choice,
            text=found.content,
            token_ids=token_ids if taken == len(token_ids) else token_ids[:taken],
            reasoning=found.reasoning,
            calls=found.calls,
            errors=found.errors,
            parts=found.parts,
            pieces=_pieces(text, before, output.logprobs if self._tracked else None),
            first=first,
            prompt_logprobs=self._prompt_logprobs if first else None,
            finish=finish,
            stopped_by=None if finish is None else self._stopped_by(choice, output),
            stopped_here=finish is not None and output.finish_reason is None,
        )

    def _stopped_by(self, choice: _Choice, output: ChoiceOutput) -> str | int | None:
        text = choice.text
        if text.stopped:
            return text.stop_string
        if choice.repeated:
            return REPETITION
        if output.finish_reason is FinishReason.LENGTH:
            # The engine ends a constrained answer before max_tokens when it repeats itself.
            most = self._sampling.max_tokens
            short = most is not None and text.tokens < most
            return REPETITION if short and not self._free else None
        # The model's end tokens are not stops that the client named.
        token = output.stop_token
        return token if token in self._sampling.stop_token_ids else None


def _until_repetition(
    choice: _Choice, output: ChoiceOutput
) -> tuple[tuple[int, ...], FinishReason | None]:
    """The tokens of an output that count, and what ended the choice after them. A repetition ends
    it at the same token however many a step produces; an end token that completes one ends it as
    it would any output."""
    token_ids, ended = output.token_ids, output.finish_reason
    if choice.repetition is None:
        return token_ids, ended
    until = choice.repetition.push(token_ids)
    if until is None or (ended is FinishReason.STOP and until == len(token_ids)):
        return token_ids, ended
    choice.repeated = True
    return token_ids[:until], FinishReason.LENGTH


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
