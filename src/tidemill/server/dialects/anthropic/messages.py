"""POST /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

import re

from starlette.requests import Request
from starlette.responses import Response

from tidemill.base.clock import monotonic
from tidemill.generation.encoding import encode_text
from tidemill.generation.prepare import check_generates, rendered
from tidemill.server.access.caller import caller_of
from tidemill.server.context import ServerContext
from tidemill.server.dialects.anthropic import schema
from tidemill.server.dialects.anthropic.blocks import BlockWriter, new_message_id
from tidemill.server.dialects.anthropic.errors import error_body
from tidemill.server.dialects.anthropic.format import EVENTS, MessageFormat
from tidemill.server.dialects.anthropic.signatures import Signer
from tidemill.server.dialects.anthropic.translate import (
    check_format,
    count_request,
    has_cache_marks,
    message_request,
)
from tidemill.server.dialects.body import read_model
from tidemill.server.dialects.permitted import find_model
from tidemill.server.dialects.respond import GeneratedAnswer, ModelAnswer
from tidemill.server.errors import Problem, reject
from tidemill.server.host.generation import Generation
from tidemill.server.host.pace import LOOP
from tidemill.server.host.served import ServedModel
from tidemill.server.transport.pieces import json_response

VERSION_HEADER = "anthropic-version"
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")


def check_version(request: Request) -> None:
    """Raise a 400 for a version that is no date; every date means the API as it is now."""
    version = request.headers.get(VERSION_HEADER)
    if version is not None and not _DATE.fullmatch(version.strip()):
        raise reject(
            400,
            f"the header {VERSION_HEADER} must be a date such as 2023-06-01, or be left out",
            param=VERSION_HEADER,
        )


def make_signer(context: ServerContext) -> Signer:
    """One for each server."""
    return Signer.from_environment()


def _failure(problem: Problem) -> bytes:
    return EVENTS.part(b"event: error\ndata: " + error_body(problem))


async def create_message(context: ServerContext, request: Request) -> Response:
    """Answer a conversation with a message, whole or streamed."""
    arrival = monotonic()
    check_version(request)
    body = await read_model(schema.MessagesRequest, request, context.limits)
    find_model(context, request, body.model)  # a wrong name is the first error
    user = (body.metadata or {}).get("user_id")
    caller = caller_of(request, None, arrival, user=user)
    signer = context.kept(make_signer)
    check_format(body, context.limits)
    asked = message_request(body, signer, request.state.sent_as, caller, arrival)
    answer_id = new_message_id()

    async def make_format(model: ServedModel, generation: Generation) -> MessageFormat:
        shown = body.thinking is None or body.thinking.display != "omitted"
        info = model.info
        return MessageFormat(
            answer_id,
            model.name,
            BlockWriter(signer, show_thinking=shown),
            max_tokens=body.max_tokens,
            caching=has_cache_marks(body),
            block_size=info.block_size if info.prefix_caching else 0,
        )

    framing = EVENTS if body.stream else None
    return GeneratedAnswer(
        context, request, body.model, asked, answer_id, make_format, framing, _failure
    )


async def count_tokens(context: ServerContext, request: Request) -> Response:
    """Count the tokens of a prompt, exactly as a message's usage would."""
    check_version(request)
    body = await read_model(schema.CountTokensRequest, request, context.limits)
    find_model(context, request, body.model)
    check_format(body, context.limits)
    asked = count_request(body, context.kept(make_signer), request.state.sent_as)

    async def work(model: ServedModel) -> Response:
        check_generates(model)
        text, _ = await LOOP.call(rendered, model.template, model.chat, asked)
        ids = await encode_text(model, text, asked.names.prompt, LOOP, add_special=False)
        request.state.hold.close()
        return json_response({"input_tokens": len(ids)})

    return ModelAnswer(context, request, body.model, work)
