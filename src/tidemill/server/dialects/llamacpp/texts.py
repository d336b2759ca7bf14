"""POST /apply-template, /embedding and /embeddings."""

from __future__ import annotations

import math
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tidemill.base.clock import monotonic
from tidemill.generation.prepare import render_messages
from tidemill.generation.request import EmbedRequest
from tidemill.server.access.caller import caller_of
from tidemill.server.context import ServerContext
from tidemill.server.dialects.body import read_model
from tidemill.server.dialects.keep_alive import keep_alive_of
from tidemill.server.dialects.llamacpp import schema
from tidemill.server.dialects.llamacpp.translate import sources_of
from tidemill.server.dialects.respond import ModelAnswer
from tidemill.server.dialects.vectors import embed
from tidemill.server.host.pace import LOOP
from tidemill.server.host.served import ServedModel
from tidemill.server.transport.pieces import PiecedResponse, json_response
from tidemill.text.prompt_options import PromptOptions
from tidemill.text.tools import tool_use


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
        embedded = await embed(context, request, model, asked)
        data = bytearray(b"[")
        async for index, vector in embedded.embeddings():
            data += b"," if index else b""
            scaled = _scaled(vector.tolist(), norm)
            data += msgspec.json.encode({"index": index, "embedding": [scaled]})
        return PiecedResponse([data, b"]"])

    return ModelAnswer(context, request, body.model, work, keep_alive_of(body.keep_alive))


def _scaled(vector: list[float], norm: int) -> list[float]:
    """A vector whose norm of that order is 1; -1: as it is."""
    if norm == -1:
        return vector
    size: Any = math.fsum(map(abs, vector)) if norm == 1 else math.hypot(*vector)
    return [x / size for x in vector] if size else vector
