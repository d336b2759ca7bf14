"""POST /v1/embeddings."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tidemill.base.clock import monotonic
from tidemill.base.errors import bad_request
from tidemill.generation.request import EmbedRequest
from tidemill.generation.vectors import embedding_of, prepare_embedding
from tidemill.server.access.caller import caller_of
from tidemill.server.admission.answers import AnswerSize, vectors_size
from tidemill.server.context import ServerContext
from tidemill.server.dialects.body import read_model
from tidemill.server.dialects.keep_alive import keep_alive_of
from tidemill.server.dialects.openai import schema
from tidemill.server.dialects.openai.translate import split_prompts
from tidemill.server.dialects.respond import ModelAnswer
from tidemill.server.host.pace import LOOP
from tidemill.server.host.served import ServedModel
from tidemill.server.host.vectors import Vectors
from tidemill.server.transport.pieces import Document, PiecedResponse
from tidemill.server.transport.slices import slices

if TYPE_CHECKING:
    from tidemill.text.pooled import Float32


VECTORS_AT_ONCE = 8
"""Vectors that are encoded without yielding to the event loop."""


async def embeddings(context: ServerContext, request: Request) -> Response:
    """A vector for each input."""
    arrival = monotonic()
    body = await read_model(schema.EmbeddingRequest, request, context.limits)
    context.host.find(body.model)  # a wrong name is the first error
    asked = EmbedRequest(
        inputs=split_prompts(body.input, context.limits.max_inputs, param="input"),
        dimensions=body.dimensions,
        prompt_name=body.prompt_name,
        caller=caller_of(
            request, body.timeout, arrival, cache_salt=body.cache_salt, user=body.user
        ),
        arrival=arrival,
    )
    encoded = body.encoding_format == "base64"

    async def work(model: ServedModel) -> Response:
        prepared = await prepare_embedding(model, asked, LOOP)
        request.state.hold.close()
        size = _size(context, asked, asked.dimensions or model.info.hidden_size, encoded=encoded)
        run = Vectors(model, prepared, size)
        found = await run.run()
        placed, data = Document(), bytearray(b"[")
        async for some in slices(range(len(found)), VECTORS_AT_ONCE):
            for i in some:
                vector = embedding_of(model, found[i], asked.dimensions)
                data += b"," if i else b""
                data += msgspec.json.encode(_entry(i, vector, encoded=encoded))
        data += b"]"
        return PiecedResponse(
            placed.encode(
                {
                    "object": "list",
                    "data": placed.place([data]),
                    "model": model.name,
                    "usage": usage_of(run),
                }
            )
        )

    return ModelAnswer(context, request, body.model, work, keep_alive_of(body.keep_alive))


def _size(context: ServerContext, asked: EmbedRequest, length: int, *, encoded: bool) -> AnswerSize:
    """The size of the answer; raises BAD_REQUEST where it is too much."""
    count, most = len(asked.inputs), context.limits.max_answer_bytes
    size = vectors_size(count, length, encoded=encoded)
    if size.most > most:
        raise bad_request(
            "input",
            f"{count} vectors of {length} numbers could have {size.most} bytes, and at most "
            f"{most} are sent (max_answer_bytes): send fewer inputs, or "
            'ask for encoding_format "base64"',
        )
    return size


def _entry(index: int, vector: Float32, *, encoded: bool) -> dict[str, Any]:
    # Little-endian float32, as the openai client expects.
    data = vector.astype("<f4")
    value = base64.b64encode(data.tobytes()).decode() if encoded else data.tolist()
    return {"object": "embedding", "index": index, "embedding": value}


def usage_of(run: Vectors) -> dict[str, Any]:
    """The `usage` of an answer without generated tokens."""
    return {
        "prompt_tokens": run.prompt_tokens,
        "total_tokens": run.prompt_tokens,
        "prompt_tokens_details": {"cached_tokens": run.cached_tokens},
    }
