"""The routes of Anthropic's dialect."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from tidemill.server.context import ServerContext
from tidemill.server.dialects.anthropic import schema
from tidemill.server.dialects.anthropic.batches import ENDPOINTS as BATCHES
from tidemill.server.dialects.anthropic.errors import ERROR_SCHEMA, error_body
from tidemill.server.dialects.anthropic.limit_headers import anthropic_headers
from tidemill.server.dialects.dialect import Dialect, Endpoint
from tidemill.text.answering import ChatSide
from tidemill.text.template import ChatTemplate

# What answers is imported when it is first needed: a server that nobody asks for messages starts
# without it.


async def create_message(context: ServerContext, request: Request) -> Response:
    """Answer a conversation with a message, whole or streamed."""
    from tidemill.server.dialects.anthropic import messages

    return await messages.create_message(context, request)


async def count_tokens(context: ServerContext, request: Request) -> Response:
    """Count the tokens of a prompt, exactly as a message's usage would."""
    from tidemill.server.dialects.anthropic import messages

    return await messages.count_tokens(context, request)


async def anthropic_models(context: ServerContext, request: Request) -> Response:
    """The models in Anthropic's shape, a page of them."""
    from tidemill.server.dialects.anthropic import models

    return await models.list_models(context, request)


async def anthropic_model(context: ServerContext, request: Request) -> Response:
    """A model by name, in Anthropic's shape."""
    from tidemill.server.dialects.anthropic import models

    return await models.get_model(context, request)


def prompt_text(template: ChatTemplate, chat: ChatSide, data: bytes) -> str:
    """See `translate.prompt_text`."""
    from tidemill.server.dialects.anthropic import translate

    return translate.prompt_text(template, chat, data)


ANTHROPIC = Dialect(
    "anthropic",
    (
        Endpoint(
            "POST",
            "/v1/messages",
            create_message,
            schema.MessagesRequest,
            streams=("text/event-stream",),
        ),
        Endpoint("POST", "/v1/messages/count_tokens", count_tokens, schema.CountTokensRequest),
        *BATCHES,
        Endpoint("GET", "/v1/models", anthropic_models),
        Endpoint("GET", "/v1/models/{model:path}", anthropic_model),
    ),
    error_body,
    prefixes=("/v1/messages",),
    render=prompt_text,
    not_served={"/v1/complete": "/v1/messages"},
    error_schema=ERROR_SCHEMA,
    header="anthropic-version",
    id_header="request-id",
    limit_headers=anthropic_headers,
)
