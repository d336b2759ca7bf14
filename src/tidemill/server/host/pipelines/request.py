"""A request as a pipeline takes it: the conversation itself, and the fields that steer it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from tidemill.base.errors import bad_request, unsupported
from tidemill.generation.prepare import Prepared
from tidemill.generation.request import GenerateRequest
from tidemill.text.answering import PLAIN


@dataclass(frozen=True, slots=True)
class Conversation:
    """What the file sees of a request; see `pipelines.messages.Start`."""

    messages: list[dict[str, Any]]
    sampling: dict[str, Any]


def conversation_of(name: str, asked: GenerateRequest) -> Conversation:
    """A request for the pipeline of that name.

    Raises:
        TidemillError: BAD_REQUEST or UNSUPPORTED, naming a field that no pipeline can obey.
    """
    for field in _beyond(asked):
        raise unsupported(
            field,
            f"{field}: {name!r} is a pipeline: it answers a conversation with one text; leave "
            f"{field} out, or send the request to a model",
        )
    return Conversation(_messages(asked), _steering(asked))


def prepared_of(asked: GenerateRequest) -> Prepared:
    """The request in the form that dialects read; a pipeline's prompt has no tokens."""
    return Prepared(asked, [()], [asked.sampling.filled()], PLAIN)


def _messages(asked: GenerateRequest) -> list[dict[str, Any]]:
    if asked.messages is not None:
        if not asked.messages:
            raise bad_request(asked.names.prompt, f"{asked.names.prompt} is empty")
        return [dict(message) for message in asked.messages]
    prompt = asked.prompts[0]
    if not isinstance(prompt, str):
        param = asked.names.prompt
        raise unsupported(param, f"{param}: a pipeline takes a text, not token ids")
    return [{"role": "user", "content": prompt}]


def _beyond(asked: GenerateRequest) -> Iterator[str]:
    """Fields that ask for what only an engine does."""
    sampling, output, options = asked.sampling, asked.output, asked.prompt_options
    if asked.num_prompts != 1:
        yield asked.names.prompt
    if sampling.n != 1:
        yield "n"
    if sampling.logprobs is not None:
        yield "logprobs"
    if sampling.prompt_logprobs is not None:
        yield "prompt_logprobs"
    if asked.scored:
        yield asked.names.max_tokens
    if output.constraint is not None:
        yield output.constraint.field
    if output.use.tools:
        yield "tools"
    if options.continue_final_message:
        yield "continue_final_message"
    if options.add_generation_prompt is False:
        yield "add_generation_prompt"
    if options.documents:
        yield "documents"
    if options.kwargs:
        yield "chat_template_kwargs"
    if asked.keep_last is not None:
        yield "truncate_prompt_tokens"
    if asked.add_special is not None:
        yield "add_special_tokens"
    if asked.texts.biased:
        yield "logit_bias"
    if asked.texts.no_ends:
        yield "ban_eos_token"
    if asked.texts.banned:
        yield "bad_words"
    if asked.adapters:
        yield "adapter"
    if asked.program is not None:
        yield "program"
    if asked.gap is not None:
        yield asked.names.suffix
    if asked.context is not None:
        yield asked.names.context


def _steering(asked: GenerateRequest) -> dict[str, Any]:
    """The sampling and thinking fields that were sent, under the chat API's names."""
    thinking = asked.output.thinking
    found: dict[str, Any] = msgspec.to_builtins(asked.sampling)
    more: Mapping[str, Any] = {
        "enable_thinking": thinking.enable,
        "reasoning_effort": thinking.effort,
        "thinking_token_budget": thinking.budget,
        "verbosity": asked.output.verbosity,
    }
    return {**found, **{name: value for name, value in more.items() if value is not None}}


def tuples(values: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """The values, with those of some names as tuples: msgpack has lists alone."""
    return {k: tuple(v) if k in names and isinstance(v, list) else v for k, v in values.items()}
