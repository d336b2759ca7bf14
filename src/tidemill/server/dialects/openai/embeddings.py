"""POST /v1/embeddings."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tidemill.base.clock import monotonic
from tidemill.generation.request import EmbedRequest
from tidemill.server.access.caller import caller_of
from tidemill.server.context import ServerContext
from tidemill.server.dialects.body import read_model
from tidemill.server.dialects.keep_alive import keep_alive_of
from tidemill.server.dialects.openai import schema
from tidemill.server.dialects.openai.translate import split_prompts
from tidemill.server.dialects.permitted import find_model
from tidemill.server.dialects.respond import ModelAnswer
from tidemill.server.dialects.vectors import Embedded, Scored, VectorForm, embed
from tidemill.server.host.served import ServedModel
from tidemill.server.transport.pieces import Document, PiecedResponse

if TYPE_CHECKING:
    from tidemill.text.pooled import Float32

_DECIMAL = VectorForm(shorter='encoding_format "base64"')
_ENCODED = VectorForm(decimal=False, encoded=True)


async def embeddings(context: ServerContext, request: Request) -> Response:
    """A vector for each input."""
    arrival = monotonic()
    body = await read_model(schema.EmbeddingRequest, request, context.limits)
    find_model(context, request, body.model)  # a wrong name is the first error
    asked = EmbedRequest(
        inputs=split_prompts(body.input, context.limits.max_inputs, param="input"),
        dimensions=body.dimensions,
        prompt_name=body.prompt_name,
        cut=body.cut,
        context=body.context,
        context_param="truncate_prompt_tokens",
        caller=caller_of(
            request, body.timeout, arrival, cache_salt=body.cache_salt, user=body.user
        ),
        arrival=arrival,
    )
    encoded = body.encoding_format == "base64"

    async def work(model: ServedModel) -> Response:
        run = await embed(context, request, model, asked, _ENCODED if encoded else _DECIMAL)
        placed, data = Document(), bytearray(b"[")
        async for i, vector in run.embeddings():
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
                    **truncated(run),
                }
            )
        )

    return ModelAnswer(context, request, body.model, work, keep_alive_of(body.keep_alive))


def _entry(index: int, vector: Float32, *, encoded: bool) -> dict[str, Any]:
    # Little-endian float32, as the openai client expects.
    data = vector.astype("<f4")
    value = base64.b64encode(data.tobytes()).decode() if encoded else data.tolist()
    return {"object": "embedding", "index": index, "embedding": value}


def usage_of(run: Embedded | Scored) -> dict[str, Any]:
    """The `usage` of an answer without generated tokens."""
    return {
        "prompt_tokens": run.prompt_tokens,
        "total_tokens": run.prompt_tokens,
        "prompt_tokens_details": {"cached_tokens": run.cached_tokens},
    }


def truncated(run: Embedded | Scored) -> dict[str, Any]:
    """The member of an answer that names the inputs of which a part was left out, if there are any
    (an extension)."""
    return {"truncated": list(run.cut)} if run.cut else {}
