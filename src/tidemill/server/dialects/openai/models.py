"""GET /v1/models, POST /tokenize, POST /detokenize."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tidemill.base.errors import bad_request
from tidemill.server.context import ServerContext
from tidemill.server.dialects.body import read_model
from tidemill.server.dialects.openai import schema
from tidemill.server.dialects.openai.prompting import (
    chat_prompt,
    check_ids,
    decode_ids,
    prompt_options,
)
from tidemill.server.errors import JSON
from tidemill.server.transport.pieces import Document, Piece, PiecedResponse
from tidemill.server.transport.slices import slices
from tidemill.text.tools import tool_use

MAX_TOKENIZE_CHARS = 2**20
"""Maximum characters of /tokenize; more if the context is larger."""


MAX_DETOKENIZE_TOKENS = 2**18
"""Maximum token ids of /detokenize; more if the context is larger."""

_STRINGS_AT_ONCE = 4096


def json_response(document: object, status: int = 200) -> Response:
    """A JSON response."""
    return Response(msgspec.json.encode(document), status_code=status, media_type=JSON)


def _card(context: ServerContext, name: str) -> dict[str, Any]:
    info = context.info
    return {
        "id": name,
        "object": "model",
        "created": context.created,
        "owned_by": "tidemill",
        "max_model_len": info.max_model_len,
        "has_chat_template": context.template.exists,
        "defaults": dict(context.defaults),
        "backend": info.backend,
        "device": info.device,
        "dtype": info.dtype,
        "quantization": info.quantization,
        "kv_dtype": info.kv_dtype,
        "tasks": list(_tasks(context)),
        "embedding_size": info.hidden_size if context.vectors.head != "score" else None,
    }


def _tasks(context: ServerContext) -> tuple[str, ...]:
    """Tasks of the model: `generate`, `embed`, `score`."""
    generates = ("generate",) if context.info.generates else ()
    return (*generates, *(("score",) if context.vectors.head == "score" else ("embed", "score")))


async def list_models(context: ServerContext, request: Request) -> Response:
    """The served model under each of its names."""
    cards = [_card(context, name) for name in context.names]
    return json_response({"object": "list", "data": cards})


async def get_model(context: ServerContext, request: Request) -> Response:
    """The served model by name; names may contain slashes."""
    name: str = request.path_params["model"]
    context.check_model(name)
    return json_response(_card(context, name))


async def tokenize(context: ServerContext, request: Request) -> Response:
    """Token ids of a prompt or of messages, exactly as a generation would use them."""
    body = await read_model(schema.TokenizeRequest, request, context.limits, bare=True)
    context.check_model(body.model)
    ids = await _token_ids(context, body)
    answer: dict[str, Any] = {
        "count": len(ids),
        "max_model_len": context.info.max_model_len,
    }
    placed = Document()
    answer["tokens"] = placed.place(await _encoded(ids))
    if body.return_token_strs:
        strings = await _encoded(ids, context.tokenizer.id_to_token)
        answer["token_strs"] = placed.place(strings)
    return PiecedResponse(placed.encode(answer))


async def _encoded(
    ids: Sequence[int], shown: Callable[[int], str | int | None] = lambda token: token
) -> list[Piece]:
    """The list of `shown(id)` for each token id, as JSON text in pieces."""
    found: list[Piece] = []
    async for some in slices(ids, _STRINGS_AT_ONCE):
        values = msgspec.json.encode([shown(i) for i in some])[1:-1]
        found += (b"," if found else b"[", values)
    return [*found, b"]"] if found else [b"[]"]


async def _token_ids(context: ServerContext, body: schema.TokenizeRequest) -> tuple[int, ...]:
    if (body.prompt is None) == (body.messages is None):
        raise bad_request("prompt", "send either prompt or messages")
    if body.messages is not None:
        if body.add_special_tokens:
            raise bad_request(
                "add_special_tokens", "the chat template writes the special tokens of messages"
            )
        prompt = await chat_prompt(
            context, body.messages, prompt_options(body), tool_use(body.tools)
        )
        return prompt.token_ids
    for name in (
        *("add_generation_prompt", "continue_final_message", "chat_template_kwargs", "tools"),
        "documents",
    ):
        if getattr(body, name) is not None:
            raise bad_request(name, f"{name} needs messages")
    add_special = body.add_special_tokens is not False
    assert body.prompt is not None
    most = max(MAX_TOKENIZE_CHARS, 16 * context.info.max_model_len)
    if len(body.prompt) > most:
        raise bad_request(
            "prompt",
            f"prompt has {len(body.prompt)} characters; at most {most} are tokenized at once: "
            "send it in parts",
        )
    return tuple(await context.tokenizer.encode_async(body.prompt, add_special=add_special))


async def detokenize(context: ServerContext, request: Request) -> Response:
    """The text of token ids."""
    body = await read_model(schema.DetokenizeRequest, request, context.limits, bare=True)
    context.check_model(body.model)
    most = max(MAX_DETOKENIZE_TOKENS, context.info.max_model_len)
    if len(body.tokens) > most:
        raise bad_request(
            "tokens",
            f"tokens has {len(body.tokens)} ids; at most {most} are taken at once: send them in "
            "parts",
        )
    await check_ids(body.tokens, context.info.vocab_size, "tokens")
    skip = body.skip_special_tokens is True
    text = await decode_ids(context.tokenizer, body.tokens, skip_special_tokens=skip)
    return json_response({"prompt": text})
