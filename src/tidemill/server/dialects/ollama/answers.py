"""POST /api/chat and /api/generate."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from tidemill.base.clock import monotonic, wall
from tidemill.base.ids import new_id
from tidemill.generation.request import GenerateRequest
from tidemill.server.access.caller import caller_of
from tidemill.server.context import ServerContext
from tidemill.server.dialects.body import read_model
from tidemill.server.dialects.keep_alive import keep_alive_of
from tidemill.server.dialects.ollama import schema
from tidemill.server.dialects.ollama.answer_format import (
    Members,
    OllamaFormat,
    Part,
    chat_members,
    generate_members,
    timestamp,
)
from tidemill.server.dialects.ollama.translate import (
    chat_request,
    generate_request,
    name_options,
    served_name,
)
from tidemill.server.dialects.permitted import find_model
from tidemill.server.dialects.respond import GeneratedAnswer, ModelAnswer
from tidemill.server.dialects.times import Times
from tidemill.server.host.generation import Generation
from tidemill.server.host.served import ServedModel
from tidemill.server.transport.framing import NDJSON
from tidemill.server.transport.pieces import json_response


async def ollama_chat(context: ServerContext, request: Request) -> Response:
    """Answer a conversation, as a stream unless `stream` is false; without messages, load the
    model."""
    arrival = monotonic()
    body = await read_model(schema.OllamaChat, request, context.limits, bare=True)
    name_options(request)
    if not body.messages:
        return _only_load(context, request, body, chat_members)
    asked = chat_request(body, caller_of(request, None, arrival), arrival, context.limits)
    return _answer(context, request, body, asked, chat_members)


async def ollama_generate(context: ServerContext, request: Request) -> Response:
    """Answer a prompt, as a stream unless `stream` is false; without one, load the model."""
    arrival = monotonic()
    body = await read_model(schema.OllamaGenerate, request, context.limits, bare=True)
    name_options(request)
    if not body.prompt and body.suffix is None:
        return _only_load(context, request, body, generate_members)
    asked = generate_request(body, caller_of(request, None, arrival), arrival, context.limits)
    return _answer(context, request, body, asked, generate_members)


def _answer(
    context: ServerContext,
    request: Request,
    body: schema.OllamaGeneration,
    asked: GenerateRequest,
    members: Members,
) -> Response:
    async def make_format(model: ServedModel, generation: Generation) -> OllamaFormat:
        times = Times(asked.arrival, request.state.leased)
        return OllamaFormat(body.model or model.name, model.tokenizer, times, members)

    return GeneratedAnswer(
        context,
        request,
        served_name(context, body.model),
        asked,
        new_id("ollama"),
        make_format,
        NDJSON if body.streamed else None,
        keep_alive=keep_alive_of(body.keep_alive),
    )


def _only_load(
    context: ServerContext, request: Request, body: schema.OllamaGeneration, members: Members
) -> Response:
    """Load the model, or with a `keep_alive` of 0 unload it."""
    slot = find_model(context, request, served_name(context, body.model))
    keep_alive = keep_alive_of(body.keep_alive)
    reason = "unload" if keep_alive == 0 else "load"

    def done() -> Response:
        head = {"model": body.model or slot.name, "created_at": timestamp(wall())}
        return json_response({**head, **members(Part()), "done": True, "done_reason": reason})

    async def work(model: ServedModel) -> Response:
        request.state.hold.close()
        return done()

    if keep_alive == 0 and slot.loaded is None:
        return done()
    return ModelAnswer(context, request, slot.name, work, keep_alive)
