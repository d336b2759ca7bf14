"""POST /v1/embeddings."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response

from tidemill.base.clock import monotonic
from tidemill.base.errors import bad_request
from tidemill.server.body import read_model
from tidemill.server.caller import caller_of
from tidemill.server.context import ServerContext
from tidemill.server.openai import schema
from tidemill.server.openai.completions import Source, encode_source, split_prompts
from tidemill.server.openai.models import json_response
from tidemill.server.vectors import VectorAnswer, Vectors
from tidemill.text.vectors import Input, check_dimensions, embedding_pooling, prompted

if TYPE_CHECKING:
    from tidemill.text.pooled import Float32


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
        ids = await encode_source(context, _prompted(context, body, source), name, room=0)
        inputs.append(Input(ids))
    run = Vectors(context, inputs, pooling, arrival=arrival, caller=caller)

    async def work() -> Response:
        from tidemill.text.pooled import finish_embedding  # numpy, see there

        found = await run.run()
        vectors = [finish_embedding(v, context.vectors, body.dimensions) for v in found]
        encoded = body.encoding_format == "base64"
        return json_response(
            {
                "object": "list",
                "data": [_entry(i, vector, encoded=encoded) for i, vector in enumerate(vectors)],
                "model": context.info.model,
                "usage": usage_of(run),
            }
        )

    return VectorAnswer(work, request_id=request.state.request_id)


def _prompted(context: ServerContext, body: schema.EmbeddingRequest, source: Source) -> Source:
    if isinstance(source, str):
        return prompted(source, context.vectors, body.prompt_name) if source else source
    if body.prompt_name is not None:
        raise bad_request("prompt_name", "prompt_name needs inputs that are texts")
    return source


def _entry(index: int, vector: Float32, *, encoded: bool) -> dict[str, Any]:
    # Little endian float32, as the openai client reads it.
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
