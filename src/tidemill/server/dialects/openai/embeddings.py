"""POST /v1/embeddings."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tidemill.base.clock import monotonic
from tidemill.base.errors import bad_request
from tidemill.server.access.caller import caller_of
from tidemill.server.admission.answers import vectors_size
from tidemill.server.context import ServerContext
from tidemill.server.dialects.body import read_model
from tidemill.server.dialects.openai import schema
from tidemill.server.dialects.openai.completions import Source, encode_source, split_prompts
from tidemill.server.host.vectors import VectorAnswer, Vectors
from tidemill.server.transport.pieces import Document, PiecedResponse
from tidemill.server.transport.slices import slices
from tidemill.text.vectors import Input, check_dimensions, embedding_pooling, prompted

if TYPE_CHECKING:
    from tidemill.text.pooled import Float32


VECTORS_AT_ONCE = 8
"""Vectors that are encoded without yielding to the event loop."""


async def embeddings(context: ServerContext, request: Request) -> Response:
    """A vector for each input."""
    arrival = monotonic()
    body = await read_model(schema.EmbeddingRequest, request, context.limits)
    context.check_model(body.model)
    caller = caller_of(request, body.timeout, arrival, cache_salt=body.cache_salt)
    pooling = embedding_pooling(context.vectors)
    check_dimensions(body.dimensions, context.info.hidden_size)
    sources = split_prompts(body.input, context.limits.max_inputs, param="input")
    inputs = []
    for index, source in enumerate(sources):
        name = "input" if len(sources) == 1 else f"input[{index}]"
        ids = await encode_source(context, _prompted(context, body, source), name, output_tokens=0)
        inputs.append(Input(ids))
    encoded = body.encoding_format == "base64"
    length = body.dimensions or context.info.hidden_size
    size = vectors_size(len(inputs), length, encoded=encoded)
    if size.most > context.limits.max_answer_bytes:
        raise bad_request(
            "input",
            f"{len(inputs)} vectors of {length} numbers could have {size.most} bytes, and at most "
            f"{context.limits.max_answer_bytes} are sent (max_answer_bytes): send fewer inputs, or "
            'ask for encoding_format "base64"',
        )
    run = Vectors(context, inputs, pooling, arrival=arrival, caller=caller, size=size)

    async def work() -> Response:
        from tidemill.text.pooled import finish_embedding  # numpy, see there

        found = await run.run()
        placed, data = Document(), bytearray(b"[")
        async for some in slices(range(len(found)), VECTORS_AT_ONCE):
            for i in some:
                vector = finish_embedding(found[i], context.vectors, body.dimensions)
                data += b"," if i else b""
                data += msgspec.json.encode(_entry(i, vector, encoded=encoded))
        data += b"]"
        return PiecedResponse(
            placed.encode(
                {
                    "object": "list",
                    "data": placed.place([data]),
                    "model": context.info.model,
                    "usage": usage_of(run),
                }
            )
        )

    return VectorAnswer(work, request_id=request.state.request_id)


def _prompted(context: ServerContext, body: schema.EmbeddingRequest, source: Source) -> Source:
    if isinstance(source, str):
        return prompted(source, context.vectors, body.prompt_name) if source else source
    if body.prompt_name is not None:
        raise bad_request("prompt_name", "prompt_name needs inputs that are texts")
    return source


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
