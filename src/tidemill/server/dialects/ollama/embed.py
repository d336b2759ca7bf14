"""POST /api/embed and /api/embeddings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tidemill.base.clock import monotonic
from tidemill.base.errors import bad_request
from tidemill.generation.pace import slices
from tidemill.generation.request import EmbedRequest
from tidemill.generation.vectors import embedding_of, prepare_embedding
from tidemill.server.access.caller import caller_of
from tidemill.server.admission.answers import vectors_size
from tidemill.server.context import ServerContext
from tidemill.server.dialects.body import read_model
from tidemill.server.dialects.keep_alive import keep_alive_of
from tidemill.server.dialects.ollama import schema
from tidemill.server.dialects.ollama.answer_format import nanoseconds
from tidemill.server.dialects.ollama.translate import name_options, served_name
from tidemill.server.dialects.respond import ModelAnswer
from tidemill.server.host.pace import LOOP
from tidemill.server.host.served import ServedModel
from tidemill.server.host.vectors import Vectors
from tidemill.server.transport.pieces import Document, PiecedResponse, json_response

VECTORS_AT_ONCE = 8
"""Vectors that are encoded without yielding to the event loop."""


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
        caller=caller_of(request, None, arrival),
        arrival=arrival,
    )

    async def work(model: ServedModel) -> Response:
        vectors, count = await _vectors(context, request, model, asked, body.options)
        placed, data = Document(), bytearray(b"[")
        async for some in slices(vectors, VECTORS_AT_ONCE, LOOP):
            for vector in some:
                data += b"," if len(data) > 1 else b""
                data += msgspec.json.encode(_normalized(vector))
        data += b"]"
        found: dict[str, Any] = {
            "model": body.model or model.name,
            "embeddings": placed.place([data]),
            "total_duration": nanoseconds(monotonic() - arrival),
            "load_duration": nanoseconds(request.state.leased - arrival),
            "prompt_eval_count": count,
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
        param="prompt",
        caller=caller_of(request, None, arrival),
        arrival=arrival,
    )

    async def work(model: ServedModel) -> Response:
        vectors, _ = await _vectors(context, request, model, asked, body.options)
        return json_response({"embedding": vectors[0] if vectors else []})

    name = served_name(context, body.model)
    return ModelAnswer(context, request, name, work, keep_alive_of(body.keep_alive))


async def _vectors(
    context: ServerContext,
    request: Request,
    model: ServedModel,
    asked: EmbedRequest,
    options: schema.OllamaOptions | None,
) -> tuple[list[list[float]], int]:
    """The vector of each input, and the number of their tokens."""
    if not asked.inputs:  # the model is loaded, which is what was asked
        request.state.hold.close()
        return [], 0
    prepared = await prepare_embedding(model, asked, LOOP)
    request.state.hold.close()
    _check_context(model, [len(item.token_ids) for item in prepared.inputs], asked.param, options)
    length = asked.dimensions or model.info.hidden_size
    size, most = vectors_size(len(asked.inputs), length, encoded=False), context.limits
    if size.most > most.max_answer_bytes:
        raise bad_request(
            asked.param,
            f"{len(asked.inputs)} vectors of {length} numbers could have {size.most} bytes, and at "
            f"most {most.max_answer_bytes} are sent (max_answer_bytes): send fewer at once",
        )
    run = Vectors(model, prepared, size)
    pooled = await run.run()
    found: list[list[float]] = []
    async for some in slices(pooled, VECTORS_AT_ONCE, LOOP):
        found += [embedding_of(model, one, asked.dimensions).tolist() for one in some]
    return found, run.prompt_tokens


def _check_context(
    model: ServedModel, counts: Sequence[int], param: str, options: schema.OllamaOptions | None
) -> None:
    """Raise BAD_REQUEST where `num_ctx` is more than the model's, or less than an input."""
    wanted, most = options.num_ctx if options is not None else None, model.info.max_model_len
    if wanted is None:
        return
    if not 1 <= wanted <= most:
        raise bad_request(
            "options.num_ctx",
            f"options.num_ctx must be between 1 and {most}, the context that the model is served "
            f"with (--max-model-len), got {wanted}",
        )
    if max(counts) > wanted:
        raise bad_request(
            param, f"an input has {max(counts)} tokens, and options.num_ctx is {wanted}"
        )


def _normalized(vector: list[float]) -> list[float]:
    """The vector in length 1, as Ollama returns it whatever the model."""
    length = math.sqrt(math.fsum(x * x for x in vector))
    return [x / length for x in vector] if length else vector
