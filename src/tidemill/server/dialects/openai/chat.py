"""POST /v1/chat/completions."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from tidemill.base.clock import monotonic
from tidemill.base.ids import new_id
from tidemill.server.context import ServerContext
from tidemill.server.dialects.body import read_model
from tidemill.server.dialects.keep_alive import keep_alive_of
from tidemill.server.dialects.openai import schema
from tidemill.server.dialects.openai.assemble import envelope_of
from tidemill.server.dialects.openai.chat_format import ChatFormat
from tidemill.server.dialects.openai.translate import (
    caller_for,
    chat_request,
    check_stream_options,
)
from tidemill.server.dialects.permitted import find_model
from tidemill.server.dialects.respond import GeneratedAnswer
from tidemill.server.dialects.times import Times
from tidemill.server.host.generation import Generation
from tidemill.server.host.served import ServedModel
from tidemill.server.recording import record_of
from tidemill.server.transport.framing import SSE


async def chat_completions(context: ServerContext, request: Request) -> Response:
    """Answer a conversation, whole or streamed."""
    arrival = monotonic()
    body = await read_model(schema.ChatRequest, request, context.limits)
    find_model(context, request, body.model)  # a wrong name is the first error
    if body.top_logprobs is not None:
        request.state.sent_as.setdefault("logprobs", "top_logprobs")
    caller = caller_for(request, body, arrival)
    check_stream_options(body)
    answer_id = new_id("chatcmpl")

    async def make_format(model: ServedModel, generation: Generation) -> ChatFormat:
        prepared = generation.prepared
        times = Times(arrival, request.state.leased, record=record_of(request))
        return ChatFormat(
            envelope_of(model, body, answer_id, generation, times),
            model.tokenizer,
            generation.num_choices,
            logprobs=prepared.request.sampling.logprobs is not None,
            tools=bool(prepared.options.use.tools),
            reasoning=prepared.options.thinking.shown,
            prompt_logprobs=body.prompt_logprobs is not None,
            prompt_ids=prepared.prompts[0],
            before=_echoed(body) if body.echo else "",
        )

    return GeneratedAnswer(
        context,
        request,
        body.model,
        chat_request(body, caller, arrival),
        answer_id,
        make_format,
        SSE if body.stream else None,
        keep_alive=keep_alive_of(body.keep_alive),
    )


def _echoed(body: schema.ChatRequest) -> str:
    """The text that `echo` puts before the answer: the final message's, where it is the
    assistant's."""
    final = body.messages[-1]
    if final.role != "assistant" or not final.content:
        return ""
    parts = [final.content] if isinstance(final.content, str) else final.content
    return "".join(part if isinstance(part, str) else part.get("text", "") for part in parts)
