"""The routes of Responses and Conversations."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from tidemill.server.context import ServerContext
from tidemill.server.dialects.dialect import Endpoint
from tidemill.server.dialects.openai.responses import schema

_EVENTS = ("text/event-stream",)

# What answers is imported when it is first needed: a server that nobody asks for responses starts
# without it.


async def create_response(context: ServerContext, request: Request) -> Response:
    """Answer a conversation, whole, streamed, or in the background."""
    from tidemill.server.dialects.openai.responses.create import create

    return await create(context, request)


async def open_socket(context: ServerContext, request: Request) -> Response:
    """Open a WebSocket: each event `response.create` is answered with the events of a response."""
    from tidemill.server.dialects.openai.responses.socket import connect

    return connect(context, request)


async def count_input_tokens(context: ServerContext, request: Request) -> Response:
    """Count the tokens of the prompt that a response would be generated from."""
    from tidemill.server.dialects.openai.responses.retrieve import input_tokens

    return await input_tokens(context, request)


async def compact_response(context: ServerContext, request: Request) -> Response:
    """Have the model sum a conversation up: the users' messages, and one item for all else."""
    from tidemill.server.dialects.openai.responses.compact import compact

    return await compact(context, request)


async def get_response(context: ServerContext, request: Request) -> Response:
    """A stored response; with stream=true the events of a background response."""
    from tidemill.server.dialects.openai.responses.retrieve import get

    return await get(context, request)


async def delete_response(context: ServerContext, request: Request) -> Response:
    """Forget a response; one in the background ends."""
    from tidemill.server.dialects.openai.responses.retrieve import delete

    return await delete(context, request)


async def cancel_response(context: ServerContext, request: Request) -> Response:
    """End a background response."""
    from tidemill.server.dialects.openai.responses.retrieve import cancel

    return await cancel(context, request)


async def list_input_items(context: ServerContext, request: Request) -> Response:
    """The items that a response was generated from."""
    from tidemill.server.dialects.openai.responses.retrieve import input_items

    return await input_items(context, request)


async def create_conversation(context: ServerContext, request: Request) -> Response:
    """Begin a conversation."""
    from tidemill.server.dialects.openai.responses.conversations import create

    return await create(context, request)


async def get_conversation(context: ServerContext, request: Request) -> Response:
    """A conversation without its items."""
    from tidemill.server.dialects.openai.responses.conversations import get

    return await get(context, request)


async def update_conversation(context: ServerContext, request: Request) -> Response:
    """Replace a conversation's metadata."""
    from tidemill.server.dialects.openai.responses.conversations import update

    return await update(context, request)


async def delete_conversation(context: ServerContext, request: Request) -> Response:
    """Forget a conversation and its items."""
    from tidemill.server.dialects.openai.responses.conversations import delete

    return await delete(context, request)


async def list_conversation_items(context: ServerContext, request: Request) -> Response:
    """The items of a conversation."""
    from tidemill.server.dialects.openai.responses.conversations import list_items

    return await list_items(context, request)


async def add_conversation_items(context: ServerContext, request: Request) -> Response:
    """Add items to a conversation."""
    from tidemill.server.dialects.openai.responses.conversations import add_items

    return await add_items(context, request)


async def get_conversation_item(context: ServerContext, request: Request) -> Response:
    """One item of a conversation."""
    from tidemill.server.dialects.openai.responses.conversations import get_item

    return await get_item(context, request)


async def delete_conversation_item(context: ServerContext, request: Request) -> Response:
    """Take an item out of a conversation."""
    from tidemill.server.dialects.openai.responses.conversations import delete_item

    return await delete_item(context, request)


_RESPONSE = "/v1/responses/{response_id}"
_CONVERSATION = "/v1/conversations/{conversation_id}"

ENDPOINTS = (
    Endpoint("POST", "/v1/responses", create_response, schema.ResponseRequest, streams=_EVENTS),
    Endpoint("GET", "/v1/responses", open_socket),
    Endpoint("POST", "/v1/responses/input_tokens", count_input_tokens, schema.InputTokensRequest),
    Endpoint("POST", "/v1/responses/compact", compact_response, schema.CompactRequest),
    Endpoint("GET", _RESPONSE, get_response, streams=_EVENTS),
    Endpoint("DELETE", _RESPONSE, delete_response),
    Endpoint("POST", f"{_RESPONSE}/cancel", cancel_response),
    Endpoint("GET", f"{_RESPONSE}/input_items", list_input_items),
    Endpoint("POST", "/v1/conversations", create_conversation, schema.ConversationRequest),
    Endpoint("GET", _CONVERSATION, get_conversation),
    Endpoint("POST", _CONVERSATION, update_conversation, schema.ConversationUpdate),
    Endpoint("DELETE", _CONVERSATION, delete_conversation),
    Endpoint("GET", f"{_CONVERSATION}/items", list_conversation_items),
    Endpoint("POST", f"{_CONVERSATION}/items", add_conversation_items, schema.ConversationItems),
    Endpoint("GET", f"{_CONVERSATION}/items/{{item_id}}", get_conversation_item),
    Endpoint("DELETE", f"{_CONVERSATION}/items/{{item_id}}", delete_conversation_item),
)
