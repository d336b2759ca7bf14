"""POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import asdict
from starlette.requests import Request
from starlette.responses import Response

from tidemill.base.clock import monotonic, wall
from tidemill.base.ids import new_id
from tidemill.server.access.caller import caller_of
from tidemill.server.context import ServerContext
from tidemill.server.dialects.body import read_model
from tidemill.server.dialects.openai import schema
from tidemill.server.dialects.openai.assemble import Envelope, running_usage
from tidemill.server.dialects.openai.chat_format import ChatFormat
from tidemill.server.dialects.openai.prompting import chat_prompt, prompt_options
from tidemill.server.dialects.openai.resolve import (
    chat_logprobs,
    chat_max_tokens,
    check_stream_options,
    effective,
    priority_of,
    resolve_all,
    sampling_of,
    whole_prompt_logprobs,
)
from tidemill.server.host.generation import Generation
from tidemill.server.transport.stream import Answer
from tidemill.text.answering import OutputOptions, read_output_options, rules_of


def effective_of(
    context: ServerContext, body: schema.Generation
) -> Callable[[Generation], dict[str, Any]] | None:
    """A function for the `tidemill` object of a response, if requested."""
    if not body.include_effective:
        return None
    return lambda generation: effective(context, body, generation)


async def chat_completions(context: ServerContext, request: Request) -> Response:
    """Answer a conversation, whole or streamed."""
    arrival = monotonic()
    body = await read_model(schema.ChatRequest, request, context.limits)
    context.check_model(body.model)
    context.check_generates()
    caller = caller_of(
        request,
        body.timeout,
        arrival,
        cache_salt=body.cache_salt,
        priority=priority_of(body),
    )
    include_usage = check_stream_options(body)
    max_tokens, max_tokens_param = chat_max_tokens(body)
    params = sampling_of(
        body,
        context,
        max_tokens=max_tokens,
        logprobs=chat_logprobs(body),
        prompt_logprobs=whole_prompt_logprobs(body),
    )
    params.validate(context.info.vocab_size)
    output_options = output_options_of(body, context)
    prompt = await chat_prompt(
        context,
        body.messages,
        prompt_options(body, output_options.variables),
        output_options.use,
    )
    rules = rules_of(
        context.chat, output_options, prompt.text, continued=bool(body.continue_final_message)
    )
    ids = prompt.token_ids
    sampling = resolve_all(
        params, [ids], context, prompt_param="messages", max_tokens_param=max_tokens_param
    )
    answer_id = new_id("chatcmpl")
    generation = Generation(
        context,
        answer_id,
        [ids],
        sampling,
        rules=rules,
        at_start=not body.continue_final_message,
        arrival=arrival,
        caller=caller,
        streamed=bool(body.stream),
    )
    envelope = Envelope(
        answer_id,
        int(wall()),
        context.info.model,
        context.fingerprint,
        include_usage,
        effective_of(context, body),
        running_usage(body, generation),
    )
    form = ChatFormat(
        envelope,
        context.tokenizer,
        generation.num_choices,
        logprobs=params.logprobs is not None,
        tools=bool(output_options.use.tools),
        reasoning=output_options.thinking.shown,
        prompt_logprobs=body.prompt_logprobs is not None,
    )
    return Answer(generation, form, stream=bool(body.stream), request_id=request.state.request_id)


def output_options_of(body: schema.ChatRequest, context: ServerContext) -> OutputOptions:
    """The request's options for tools, thinking and constraints on its answer.

    Raises:
        TidemillError: kind BAD_REQUEST naming the member, or both of two that exclude each other.
    """
    return read_output_options(context.chat, asdict(body))
