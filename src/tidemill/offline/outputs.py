"""Results of the offline API, accumulated from the engine's outputs."""

from __future__ import annotations

import reprlib
from dataclasses import dataclass, field

from tidemill.base.ids import new_call_id
from tidemill.contract.request import ChoiceOutput, EngineRequest, FinishReason, TokenLogprob
from tidemill.contract.sampling import SamplingParams
from tidemill.engine.streams import raise_error
from tidemill.text.answer import NOTHING, AnswerDelta, AnswerText
from tidemill.text.answering import AnswerRules
from tidemill.text.stops import StopSet
from tidemill.text.tokenizer import Tokenizer

TOOL_CALLS = "tool_calls"


@dataclass(slots=True)
class ToolCall:
    """A call of one of the request's tools.

    Attributes:
        id: identifies the call; its result must repeat it.
        name: the tool's name.
        arguments: JSON text; a complete object unless the output was truncated (``length``).
    """

    id: str
    name: str
    arguments: str = ""

    def message(self) -> dict[str, object]:
        """The call as an entry of a message's `tool_calls`."""
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": self.id, "type": "function", "function": function}


@dataclass(slots=True, repr=False)
class Completion:
    """One answer.

    Attributes:
        index: the choice's index.
        text: the visible text, without special tokens, stop strings, reasoning and tool calls.
        token_ids: all counted tokens, including the end token; none after a stop.
        finish_reason: ``stop``, ``length``, or ``tool_calls``.
        stop_string: the stop string that ended the answer, or None.
        logprobs: one per token, if requested.
        reasoning: the reasoning text, if the model marks its reasoning.
        reasoning_tokens: the number of reasoning tokens.
        tool_calls: in the order of generation.
        tool_call_errors: one per malformed tool call; the call's text stays in `text`.
    """

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    stop_string: str | None = None
    logprobs: list[TokenLogprob] | None = None
    reasoning: str = ""
    reasoning_tokens: int = 0
    tool_calls: list[ToolCall] = field(default_factory=list)
    tool_call_errors: list[str] = field(default_factory=list)

    def __repr__(self) -> str:
        parts = [f"text={reprlib.repr(self.text)}"]
        if self.reasoning:
            parts.append(f"reasoning={reprlib.repr(self.reasoning)}")
        if self.tool_calls:
            parts.append(f"tool_calls={reprlib.repr(self.tool_calls)}")
        ended = f"finish_reason={self.finish_reason!r}"
        return f"Completion({', '.join(parts)}, {len(self.token_ids)} tokens, {ended})"

    def message(self) -> dict[str, object]:
        """The answer as an assistant message for the next turn."""
        message: dict[str, object] = {"role": "assistant", "content": self.text}
        if self.reasoning:
            message["reasoning_content"] = self.reasoning
        if self.tool_calls:
            message["tool_calls"] = [call.message() for call in self.tool_calls]
        return message


@dataclass(slots=True, repr=False)
class RequestOutput:
    """A prompt and its answers.

    Attributes:
        prompt_token_ids: the prompt's tokens.
        sampling: the resolved parameters, including seed and max_tokens.
        outputs: one per choice.
        cached_tokens: prompt tokens found in the prefix cache.
        prompt_logprobs: one per prompt token (None for the first), if requested.
    """

    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams
    outputs: list[Completion]
    cached_tokens: int = 0
    prompt_logprobs: list[TokenLogprob | None] | None = None

    def __repr__(self) -> str:
        answers = ", ".join(map(repr, self.outputs[:2])) + (", ..." if self.outputs[2:] else "")
        return f"RequestOutput({len(self.prompt_token_ids)} prompt tokens, outputs=[{answers}])"

    @property
    def text(self) -> str:
        """The first answer's text."""
        return self.outputs[0].text


class Running:
    """A request in flight: accumulates engine outputs into a `RequestOutput`.

    Args:
        request: the request as submitted to the engine.
        tokenizer: detokenizes the outputs.
        rules: how the outputs are parsed.
        at_start: see `OutputText`.

    Attributes:
        output: the result so far.
    """

    def __init__(
        self, request: EngineRequest, tokenizer: Tokenizer, rules: AnswerRules, *, at_start: bool
    ) -> None:
        sampling = request.sampling
        logprobs = sampling.logprobs is not None
        stops = StopSet(sampling.stop)
        self._texts = [
            AnswerText(
                tokenizer,
                None if rules.parser is None else rules.parser(),
                kept=rules.kept,
                stop=stops,
                min_tokens=sampling.min_tokens,
                at_start=at_start,
            )
            for _ in range(sampling.n)
        ]
        completions = [Completion(i, logprobs=[] if logprobs else None) for i in range(sampling.n)]
        self.output = RequestOutput(request.prompt_token_ids, sampling, completions)

    def take(self, output: ChoiceOutput) -> tuple[AnswerDelta, bool]:
        """Add an engine output. Tokens after a stop are dropped.

        Returns:
            The new parts, and whether the caller must cancel the choice in the engine because it
            stopped here first.

        Raises:
            TidemillError: the engine's error.
        """
        completion, text = self.output.outputs[output.choice], self._texts[output.choice]
        if output.finish_reason is FinishReason.ERROR and output.error is not None:
            raise_error(output.error)
        if completion.finish_reason is not None:
            return NOTHING, False
        if output.cached_tokens is not None:
            self.output.cached_tokens = output.cached_tokens
        if output.prompt_logprobs is not None:
            self.output.prompt_logprobs = list(output.prompt_logprobs)
        before = text.tokens
        found, stopped = text.push(output.token_ids, hide_last=output.stop_token is not None)
        if output.finish_reason is not None and not stopped:
            found += text.finish(cut=output.finish_reason is FinishReason.LENGTH)
            stopped = text.stopped
        taken = text.tokens - before
        _add(completion, found)
        completion.reasoning_tokens = text.reasoning_tokens
        completion.token_ids += output.token_ids[:taken]
        if completion.logprobs is not None and output.logprobs is not None:
            completion.logprobs += output.logprobs[:taken]
        ended = FinishReason.STOP if stopped else output.finish_reason
        if ended is not None:
            completion.stop_string = text.stop_string
            called = ended is FinishReason.STOP and text.calls
            completion.finish_reason = TOOL_CALLS if called else ended.value
        return found, stopped and output.finish_reason is None


def _add(completion: Completion, found: AnswerDelta) -> None:
    completion.text += found.content
    completion.reasoning += found.reasoning
    completion.tool_call_errors += found.errors
    for part in found.calls:
        if part.name is not None:
            completion.tool_calls.append(ToolCall(new_call_id(), part.name))
        completion.tool_calls[part.index].arguments += part.arguments
