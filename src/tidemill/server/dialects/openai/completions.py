"""POST /v1/completions."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from tidemill.base.clock import monotonic
from tidemill.base.ids import new_id
from tidemill.server.context import ServerContext
from tidemill.server.dialects.body import read_model
from tidemill.server.dialects.keep_alive import keep_alive_of
from tidemill.server.dialects.openai import schema
from tidemill.server.dialects.openai.assemble import CompletionFormat, envelope_of
from tidemill.server.dialects.openai.echo import echo_prompt
from tidemill.server.dialects.openai.translate import (
    caller_for,
    check_stream_options,
    completion_request,
    split_prompts,
)
from tidemill.server.dialects.permitted import find_model
from tidemill.server.dialects.respond import GeneratedAnswer
from tidemill.server.dialects.times import Times
from tidemill.server.host.generation import Generation
from tidemill.server.host.served import ServedModel
from tidemill.server.recording import record_of
from tidemill.server.transport.framing import SSE


async def completions(context: ServerContext, request: Request) -> Response:
    """Continue one prompt or several, whole or streamed."""
    arrival = monotonic()
    body = await read_model(schema.CompletionRequest, request, context.limits)
    find_model(context, request, body.model)  # a wrong name is the first error
    caller = caller_for(request, body, arrival)
    check_stream_options(body)
    sources = split_prompts(body.prompt, context.limits.max_prompts)
    answer_id = new_id("cmpl")

    async def make_format(model: ServedModel, generation: Generation) -> CompletionFormat:
        prepared = generation.prepared
        times = Times(arrival, request.state.leased, record=record_of(request))
        sampling = prepared.request.sampling
        with_logprobs = sampling.logprobs is not None
        echo = [
            await echo_prompt(model.tokenizer, source, prompt, pieces=with_logprobs)
            for source, prompt in zip(sources, prepared.prompts, strict=True)
            if body.echo
        ]
        return CompletionFormat(
            envelope_of(model, body, answer_id, generation, times),
            model.tokenizer,
            generation.num_choices,
            logprobs=with_logprobs,
            echo=echo,
            prompt_logprobs=body.prompt_logprobs is not None,
            scored=prepared.request.scored,
            per_prompt=sampling.n,
            prompt_ids=prepared.prompts,
        )

    return GeneratedAnswer(
        context,
        request,
        body.model,
        completion_request(body, sources, caller, arrival),
        answer_id,
        make_format,
        SSE if body.stream else None,
        keep_alive=keep_alive_of(body.keep_alive),
    )
