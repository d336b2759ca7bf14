"""POST /completion and /infill."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from tidemill.base.clock import monotonic
from tidemill.base.ids import new_id
from tidemill.generation.request import GenerateRequest
from tidemill.server.access.caller import caller_of
from tidemill.server.context import ServerContext
from tidemill.server.dialects.body import read_model
from tidemill.server.dialects.keep_alive import keep_alive_of
from tidemill.server.dialects.llamacpp import schema
from tidemill.server.dialects.llamacpp.answer_format import LlamaFormat
from tidemill.server.dialects.llamacpp.translate import (
    completion_request,
    infill_request,
    name_fields,
)
from tidemill.server.dialects.respond import GeneratedAnswer
from tidemill.server.dialects.times import Times
from tidemill.server.host.generation import Generation
from tidemill.server.host.pace import LOOP
from tidemill.server.host.served import ServedModel
from tidemill.server.transport.framing import SSE


async def llama_completion(context: ServerContext, request: Request) -> Response:
    """Continue one prompt or several, whole or streamed."""
    arrival = monotonic()
    body = await read_model(schema.LlamaCompletion, request, context.limits, bare=True)
    name_fields(request)
    caller = caller_of(request, None, arrival)
    return _answer(
        context, request, body, completion_request(body, caller, arrival, context.limits)
    )


async def llama_infill(context: ServerContext, request: Request) -> Response:
    """Fill the gap between two texts by the model's own marks."""
    arrival = monotonic()
    body = await read_model(schema.LlamaInfill, request, context.limits, bare=True)
    name_fields(request)
    return _answer(
        context, request, body, infill_request(body, caller_of(request, None, arrival), arrival)
    )


def _answer(
    context: ServerContext,
    request: Request,
    body: schema.LlamaGeneration,
    asked: GenerateRequest,
) -> Response:
    async def make_format(model: ServedModel, generation: Generation) -> LlamaFormat:
        texts = [
            await LOOP.short(len(ids), model.tokenizer.decode, ids, skip_special_tokens=False)
            for ids in generation.prepared.prompts
        ]
        texts = [text for text in texts for _ in range(asked.sampling.n)]
        times = Times(asked.arrival, request.state.leased)
        return LlamaFormat(model.name, body, generation, texts, model.tokenizer, times)

    return GeneratedAnswer(
        context,
        request,
        body.model,
        asked,
        new_id("llama"),
        make_format,
        SSE if body.stream else None,
        keep_alive=keep_alive_of(body.keep_alive),
    )
