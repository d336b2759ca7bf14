"""Conversations: items that later responses continue."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tidemill.base.clock import wall
from tidemill.base.errors import bad_request
from tidemill.base.ids import new_underscored_id
from tidemill.server.access.auth import principal_of
from tidemill.server.context import ServerContext
from tidemill.server.dialects.body import read_model
from tidemill.server.dialects.openai.responses import listing, schema
from tidemill.server.dialects.openai.responses.items import REFERENCE, read_items
from tidemill.server.dialects.openai.responses.service import service_of
from tidemill.server.dialects.openai.responses.store import Conversation
from tidemill.server.dialects.query import page_of
from tidemill.server.errors import reject
from tidemill.server.transport.pieces import json_response

MAX_ADDED = 20
"""Items that one request adds, as with OpenAI."""


def _document(conversation: Conversation) -> dict[str, Any]:
    return {
        "id": conversation.id,
        "object": "conversation",
        "created_at": conversation.created,
        "metadata": conversation.metadata,
    }


async def _found(context: ServerContext, request: Request) -> Conversation:
    identity: str = request.path_params["conversation_id"]
    service, owner = service_of(context), principal_of(request).client_id
    await service.recall(owner, identity)
    found = service.store.conversation(owner, identity)
    if found is None:
        raise reject(
            404,
            f"there is no conversation {identity[:80]!r}; it was deleted or forgotten",
            param="conversation_id",
        )
    return found


def _item(conversation: Conversation, request: Request) -> dict[str, Any]:
    identity: str = request.path_params["item_id"]
    if identity not in conversation.items:
        raise reject(404, f"the conversation has no item {identity[:80]!r}", param="item_id")
    return conversation.items[identity]


def _read(conversation: Conversation, items: list[dict[str, Any]] | None) -> list[dict[str, Any]]:
    """Items to add, in their full form.

    Raises:
        TidemillError: naming the item.
    """
    items = items or []
    if len(items) > MAX_ADDED:
        raise bad_request("items", f"at most {MAX_ADDED} items are added at once, got {len(items)}")
    read = []
    for item, path in read_items("items", items):
        if item["type"] == REFERENCE:
            raise bad_request(path, f"{path}: send the item itself, not a reference to it")
        if item["id"] in conversation.items:
            raise bad_request(
                f"{path}.id", f"{path}.id {item['id'][:80]!r} is in the conversation already"
            )
        read.append(item)
    return read


async def create(context: ServerContext, request: Request) -> Response:
    """See `routes.create_conversation`."""
    body = await read_model(schema.ConversationRequest, request, context.limits)
    principal = principal_of(request)
    if principal.policy.no_content:
        raise reject(403, "what this key says is not kept: it has no conversations")
    conversation = Conversation(
        principal.client_id,
        new_underscored_id("conv"),
        int(wall()),
        dict(body.metadata or {}),
        team=principal.team,
    )
    items = _read(conversation, body.items)
    service = service_of(context)
    service.store.put(conversation)
    service.append(conversation, items)
    return json_response(_document(conversation))


async def get(context: ServerContext, request: Request) -> Response:
    """See `routes.get_conversation`."""
    return json_response(_document(await _found(context, request)))


async def update(context: ServerContext, request: Request) -> Response:
    """See `routes.update_conversation`."""
    body = await read_model(schema.ConversationUpdate, request, context.limits)
    conversation = await _found(context, request)
    conversation.metadata = dict(body.metadata)
    service_of(context).store.changed(conversation)
    return json_response(_document(conversation))


async def delete(context: ServerContext, request: Request) -> Response:
    """See `routes.delete_conversation`."""
    conversation = await _found(context, request)
    service_of(context).store.remove(conversation)
    return json_response({"id": conversation.id, "object": "conversation.deleted", "deleted": True})


async def list_items(context: ServerContext, request: Request) -> Response:
    """See `routes.list_conversation_items`."""
    return listing.page(request, list((await _found(context, request)).items.values()))


async def add_items(context: ServerContext, request: Request) -> Response:
    """See `routes.add_conversation_items`."""
    body = await read_model(schema.ConversationItems, request, context.limits)
    conversation = await _found(context, request)
    items = _read(conversation, body.items)
    service_of(context).append(conversation, items)
    return page_of(items, more=False)


async def get_item(context: ServerContext, request: Request) -> Response:
    """See `routes.get_conversation_item`."""
    return json_response(_item(await _found(context, request), request))


async def delete_item(context: ServerContext, request: Request) -> Response:
    """See `routes.delete_conversation_item`."""
    conversation = await _found(context, request)
    item = _item(conversation, request)
    del conversation.items[item["id"]]
    conversation.size -= len(msgspec.json.encode(item))
    service_of(context).store.changed(conversation)
    return json_response(_document(conversation))
