"""POST /api/embed and /api/embeddings."""

from __future__ import annotations

import math
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tidemill.base.clock import monotonic
from tidemill.base.errors import bad_request
from tidemill.generation.request import Cut, EmbedRequest
from tidemill.server.access.caller import caller_of
from tidemill.server.context import ServerContext
from tidemill.server.dialects.body import read_model
from tidemill.server.dialects.keep_alive import keep_alive_of
from tidemill.server.dialects.ollama import schema
from tidemill.server.dialects.ollama.answer_format import nanoseconds
from tidemill.server.dialects.ollama.translate import name_options, served_name
from tidemill.server.dialects.respond import ModelAnswer
from tidemill.server.dialects.vectors import Embedded, embed
from tidemill.server.host.served import ServedModel
from tidemill.server.transport.pieces import Document, PiecedResponse, json_response


async def ollama_embed(context: ServerContext, request: Request) -> Response:
    """A vector of length 1 for each input."""
    arrival = monotonic()
    body = await read_model(schema.OllamaEmbed, request, context.limits, bare=True)
    name_options(request)
    inputs = [body.input] if isinstance(body.input, str) else body.input
    if len(inputs) > context.limits.max_inputs:
        raise bad_request(
            "input", f"input takes at most {context.limits.max_inputs} texts, got {len(inputs)}"
        )
    asked = EmbedRequest(
        inputs=inputs,
        dimensions=body.dimensions,
        cut=None if body.truncate is False else Cut.END,
        context=_context(body.options),
        context_param="options.num_ctx",
        caller=caller_of(request, None, arrival),
        arrival=arrival,
    )

    async def work(model: ServedModel) -> Response:
        run = await _embed(context, request, model, asked)
        placed, data = Document(), bytearray(b"[")
        if run is not None:
            async for _, vector in run.embeddings():
                data += b"," if len(data) > 1 else b""
                data += msgspec.json.encode(_normalized(vector.tolist()))
        data += b"]"
        found: dict[str, Any] = {
            "model": body.model or model.name,
            "embeddings": placed.place([data]),
            "total_duration": nanoseconds(monotonic() - arrival),
            "load_duration": nanoseconds(request.state.leased - arrival),
            "prompt_eval_count": 0 if run is None else run.prompt_tokens,
        }
        return PiecedResponse(placed.encode(found))

    name = served_name(context, body.model)
    return ModelAnswer(context, request, name, work, keep_alive_of(body.keep_alive))


async def ollama_embeddings(context: ServerContext, request: Request) -> Response:
    """The vector of one prompt, as the model makes it; the older form of /api/embed."""
    arrival = monotonic()
    body = await read_model(schema.OllamaEmbeddings, request, context.limits, bare=True)
    name_options(request)
    asked = EmbedRequest(
        inputs=[body.prompt] if body.prompt else [],
        context=_context(body.options),
        param="prompt",
        context_param="options.num_ctx",
        caller=caller_of(request, None, arrival),
        arrival=arrival,
    )

    async def work(model: ServedModel) -> Response:
        run = await _embed(context, request, model, asked)
        vectors = [] if run is None else [v.tolist() async for _, v in run.embeddings()]
        return json_response({"embedding": vectors[0] if vectors else []})

    name = served_name(context, body.model)
    return ModelAnswer(context, request, name, work, keep_alive_of(body.keep_alive))


async def _embed(
    context: ServerContext, request: Request, model: ServedModel, asked: EmbedRequest
) -> Embedded | None:
    """The vectors; None without inputs: the model is loaded, which is what was asked."""
    if asked.inputs:
        return await embed(context, request, model, asked)
    request.state.hold.close()
    return None


def _context(options: schema.OllamaOptions | None) -> int | None:
    return None if options is None else options.num_ctx


def _normalized(vector: list[float]) -> list[float]:
    """The vector in length 1, as Ollama returns it whatever the model."""
    length = math.sqrt(math.fsum(x * x for x in vector))
    return [x / length for x in vector] if length else vector
