"""POST /apply-template, /embedding and /embeddings."""

from __future__ import annotations

import math
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tidemill.base.clock import monotonic
from tidemill.base.errors import bad_request
from tidemill.generation.prepare import render_messages
from tidemill.generation.request import EmbedRequest
from tidemill.generation.vectors import embedding_of, prepare_embedding
from tidemill.server.access.caller import caller_of
from tidemill.server.admission.answers import vectors_size
from tidemill.server.context import ServerContext
from tidemill.server.dialects.body import read_model
from tidemill.server.dialects.keep_alive import keep_alive_of
from tidemill.server.dialects.llamacpp import schema
from tidemill.server.dialects.llamacpp.translate import sources_of
from tidemill.server.dialects.respond import ModelAnswer
from tidemill.server.host.pace import LOOP
from tidemill.server.host.served import ServedModel
from tidemill.server.host.vectors import Vectors
from tidemill.server.transport.pieces import PiecedResponse, json_response
from tidemill.server.transport.slices import slices
from tidemill.text.prompt_options import PromptOptions
from tidemill.text.tools import tool_use

VECTORS_AT_ONCE = 8
"""Vectors that are encoded without yielding to the event loop."""


async def llama_apply_template(context: ServerContext, request: Request) -> Response:
    """The prompt that a conversation becomes by the chat template."""
    body = await read_model(schema.LlamaTemplate, request, context.limits, bare=True)
    options = PromptOptions(
        add_generation_prompt=body.add_generation_prompt, kwargs=body.chat_template_kwargs
    )
    use = tool_use(body.tools)

    async def work(model: ServedModel) -> Response:
        text, _ = await render_messages(model, body.messages, options, use, LOOP)
        request.state.hold.close()
        return json_response({"prompt": text})

    return ModelAnswer(context, request, body.model, work)


async def llama_embedding(context: ServerContext, request: Request) -> Response:
    """A vector for each text, in a list of its own."""
    arrival = monotonic()
    body = await read_model(schema.LlamaEmbedding, request, context.limits, bare=True)
    param = "input" if body.content is None else "content"
    prompt = body.input if body.content is None else body.content
    asked = EmbedRequest(
        inputs=sources_of(prompt, context.limits.max_inputs, param),
        param=param,
        caller=caller_of(request, None, arrival),
        arrival=arrival,
    )
    norm = 2 if body.embd_normalize is None else body.embd_normalize

    async def work(model: ServedModel) -> Response:
        prepared = await prepare_embedding(model, asked, LOOP)
        request.state.hold.close()
        size = vectors_size(len(asked.inputs), model.info.hidden_size, encoded=False)
        if size.most > context.limits.max_answer_bytes:
            raise bad_request(param, f"{param}: the answer would be too large; send fewer at once")
        pooled = await Vectors(model, prepared, size).run()
        data = bytearray(b"[")
        async for some in slices(range(len(pooled)), VECTORS_AT_ONCE):
            for index in some:
                vector = _scaled(embedding_of(model, pooled[index], None).tolist(), norm)
                data += b"," if index else b""
                data += msgspec.json.encode({"index": index, "embedding": [vector]})
        return PiecedResponse([data, b"]"])

    return ModelAnswer(context, request, body.model, work, keep_alive_of(body.keep_alive))


def _scaled(vector: list[float], norm: int) -> list[float]:
    """A vector whose norm of that order is 1; -1: as it is."""
    if norm == -1:
        return vector
    size: Any = math.fsum(map(abs, vector)) if norm == 1 else math.hypot(*vector)
    return [x / size for x in vector] if size else vector
