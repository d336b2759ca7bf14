"""Results of the offline API, accumulated from the engine's outputs."""

from __future__ import annotations

import reprlib
from dataclasses import dataclass, field

from tidemill.base.ids import new_call_id
from tidemill.contract.request import ChoiceOutput, TokenLogprob
from tidemill.contract.sampling import SamplingParams
from tidemill.generation.choices import ChoiceDelta, PromptChoices
from tidemill.generation.prepare import Prepared
from tidemill.text.tokenizer import Tokenizer


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
        prepared: the request; its one prompt.
        tokenizer: detokenizes the outputs.

    Attributes:
        output: the result so far.
    """

    def __init__(self, prepared: Prepared, tokenizer: Tokenizer) -> None:
        sampling = prepared.sampling[0]
        logprobs = sampling.logprobs is not None
        self._choices = PromptChoices(tokenizer, prepared, 0)
        completions = [Completion(i, logprobs=[] if logprobs else None) for i in range(sampling.n)]
        self.output = RequestOutput(prepared.prompts[0], sampling, completions)

    def take(self, output: ChoiceOutput) -> ChoiceDelta | None:
        """Add an engine output; None when the choice had already ended here.

        Raises:
            TidemillError: the engine's error.
        """
        delta = self._choices.take(output)
        if delta is not None:
            for shown in self._choices.output(delta):
                self._add(shown)
        return delta

    def _add(self, delta: ChoiceDelta) -> None:
        completion = self.output.outputs[delta.index]
        self.output.cached_tokens = self._choices.cached_tokens
        if delta.prompt_logprobs is not None:
            self.output.prompt_logprobs = list(delta.prompt_logprobs)
        completion.text += delta.text
        completion.reasoning += delta.reasoning
        completion.tool_call_errors += delta.errors
        for part in delta.calls:
            if part.name is not None:
                completion.tool_calls.append(ToolCall(new_call_id(), part.name))
            completion.tool_calls[part.index].arguments += part.arguments
        completion.reasoning_tokens = self._choices.reasoning_of(delta.index)
        completion.token_ids += delta.token_ids
        if completion.logprobs is not None:
            completion.logprobs += [piece.logprob for piece in delta.pieces]
        if delta.finish is not None:
            completion.finish_reason = delta.finish
            completion.stop_string = self._choices.stop_string_of(delta.index)
