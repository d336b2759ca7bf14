"""POST /tokenize, POST /detokenize."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tidemill.base.errors import bad_request
from tidemill.generation.encoding import check_ids
from tidemill.generation.pace import slices
from tidemill.generation.prepare import render_messages
from tidemill.server.context import ServerContext
from tidemill.server.dialects.body import read_model
from tidemill.server.dialects.openai import schema
from tidemill.server.dialects.openai.echo import decode_ids
from tidemill.server.dialects.openai.translate import prompt_options, template_messages
from tidemill.server.dialects.respond import ModelAnswer
from tidemill.server.host.pace import LOOP
from tidemill.server.host.served import ServedModel
from tidemill.server.transport.pieces import Document, PiecedResponse, json_response
from tidemill.server.transport.sink import Piece
from tidemill.text.tools import tool_use

MAX_TOKENIZE_CHARS = 2**20
"""Maximum characters of /tokenize; more if the context is larger."""


MAX_DETOKENIZE_TOKENS = 2**18
"""Maximum token ids of /detokenize; more if the context is larger."""

_STRINGS_AT_ONCE = 4096


async def tokenize(context: ServerContext, request: Request) -> Response:
    """Token ids of a prompt or of messages, exactly as a generation would use them."""
    body = await read_model(schema.TokenizeRequest, request, context.limits, bare=True)

    async def work(model: ServedModel) -> Response:
        ids = await _token_ids(model, body)
        request.state.hold.close()
        answer: dict[str, Any] = {"count": len(ids), "max_model_len": model.info.max_model_len}
        placed = Document()
        answer["tokens"] = placed.place(await _encoded(ids))
        if body.return_token_strs:
            strings = await _encoded(ids, model.tokenizer.id_to_token)
            answer["token_strs"] = placed.place(strings)
        return PiecedResponse(placed.encode(answer))

    return ModelAnswer(context, request, body.model, work)


async def _encoded(
    ids: Sequence[int], shown: Callable[[int], str | int | None] = lambda token: token
) -> list[Piece]:
    """The list of `shown(id)` for each token id, as JSON text in pieces."""
    found: list[Piece] = []
    async for some in slices(ids, _STRINGS_AT_ONCE, LOOP):
        values = msgspec.json.encode([shown(i) for i in some])[1:-1]
        found += (b"," if found else b"[", values)
    return [*found, b"]"] if found else [b"[]"]


async def _token_ids(model: ServedModel, body: schema.TokenizeRequest) -> tuple[int, ...]:
    if (body.prompt is None) == (body.messages is None):
        raise bad_request("prompt", "send either prompt or messages")
    if body.messages is not None:
        if body.add_special_tokens:
            raise bad_request(
                "add_special_tokens", "the chat template writes the special tokens of messages"
            )
        messages, use = template_messages(body.messages), tool_use(body.tools)
        return (await render_messages(model, messages, prompt_options(body), use, LOOP))[1]
    for name in (
        *("add_generation_prompt", "continue_final_message", "chat_template_kwargs", "tools"),
        "documents",
    ):
        if getattr(body, name) is not None:
            raise bad_request(name, f"{name} needs messages")
    add_special = body.add_special_tokens is not False
    assert body.prompt is not None
    most = max(MAX_TOKENIZE_CHARS, 16 * model.info.max_model_len)
    if len(body.prompt) > most:
        raise bad_request(
            "prompt",
            f"prompt has {len(body.prompt)} characters; at most {most} are tokenized at once: "
            "send it in parts",
        )
    encode = model.tokenizer.encode
    return tuple(await LOOP.short(len(body.prompt), encode, body.prompt, add_special=add_special))


async def detokenize(context: ServerContext, request: Request) -> Response:
    """The text of token ids."""
    body = await read_model(schema.DetokenizeRequest, request, context.limits, bare=True)

    async def work(model: ServedModel) -> Response:
        most = max(MAX_DETOKENIZE_TOKENS, model.info.max_model_len)
        if len(body.tokens) > most:
            raise bad_request(
                "tokens",
                f"tokens has {len(body.tokens)} ids; at most {most} are taken at once: send them "
                "in parts",
            )
        await check_ids(body.tokens, model.info.vocab_size, "tokens", LOOP)
        skip = body.skip_special_tokens is True
        text = await decode_ids(model.tokenizer, body.tokens, skip_special_tokens=skip)
        return json_response({"prompt": text})

    return ModelAnswer(context, request, body.model, work)
