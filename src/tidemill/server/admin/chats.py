"""/v1/chats: the page's conversations, for people who want them on the server.

A conversation is a row and so is each message, encrypted; what is in them only the page reads. They
are kept where stored content is (docs/content.md), with its retention.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tidemill.base.clock import wall
from tidemill.base.errors import bad_request
from tidemill.server.access.auth import Principal, principal_of
from tidemill.server.context import ServerContext
from tidemill.server.dialects.body import read_model
from tidemill.server.dialects.dialect import Endpoint
from tidemill.server.dialects.members import Body
from tidemill.server.errors import reject
from tidemill.server.transport.pieces import json_response

if TYPE_CHECKING:
    from tidemill.store.cipher import Cipher

T = TypeVar("T")

MAX_CHATS = 10_000
"""Of one client."""

MAX_ID = 48
PREFIX = "chat-"
"""Before the page's ids: conversations of the API are in the same tables."""


class ChatMessage(msgspec.Struct, kw_only=True):
    """A message: its id, its place in the order of creation, and what the page keeps of it."""

    id: str
    number: int
    data: str


class ChatBody(Body, kw_only=True):
    """Body of PUT /v1/chats/{chat}.

    Attributes:
        data: what the page keeps of the conversation, as text.
        messages: new or changed ones: `id`, `number` and `data`.
        gone: ids of messages that were removed.
    """

    data: str
    messages: list[dict[str, Any]] | None = None
    gone: list[str] | None = None


async def list_chats(context: ServerContext, request: Request) -> Response:
    """The conversations that the page keeps here for this key, without their messages."""
    from tidemill.store import content

    cipher, principal = _cipher(context, request), principal_of(request)
    owner = principal.client_id
    rows = await _read(context, lambda c: content.conversations(c, owner, PREFIX, MAX_CHATS))
    chats = [
        {"id": row.id.removeprefix(PREFIX), "data": _opened(cipher, owner, row.id, row.metadata)}
        for row in rows
    ]
    return json_response({"chats": chats})


async def get_chat(context: ServerContext, request: Request) -> Response:
    """The messages of a conversation, in the order of their creation."""
    from tidemill.store import content

    cipher, owner = _cipher(context, request), principal_of(request).client_id
    chat = _id_of(request)
    found = await _read(context, lambda c: content.conversation(c, owner, chat))
    if found is None:
        raise reject(404, "there is no such conversation of this key", code="chat_not_found")
    messages = [
        {
            "id": item.item_id,
            "number": item.number,
            "data": _opened(cipher, owner, f"{chat}/{item.item_id}", item.item),
        }
        for item in found[1]
    ]
    return json_response({"messages": messages})


async def put_chat(context: ServerContext, request: Request) -> Response:
    """Keep a conversation: its own data, messages that are new or changed, and without those that
    are gone. The others stay as they are."""
    from tidemill.store import content

    cipher, principal = _cipher(context, request), principal_of(request)
    body = await read_model(ChatBody, request, context.limits)
    chat, owner, now = _id_of(request), principal.client_id, int(wall())
    row = content.ConversationRow(
        *(chat, owner, principal.team, now, now),
        _sealed(cipher, owner, chat, body.data),
    )
    items = [
        content.ItemRow(
            message.id, message.number, _sealed(cipher, owner, f"{chat}/{message.id}", message.data)
        )
        for message in _messages(body)
    ]

    def work(connection: Any) -> None:
        of = content.owner_of(connection, chat)
        if of is not None and of != owner:
            raise reject(404, "there is no such conversation of this key", code="chat_not_found")
        if of is None and content.counted(connection, [owner])["conversations"] >= MAX_CHATS:
            raise reject(429, f"a client may keep {MAX_CHATS} conversations: delete some")
        content.save_conversation(connection, row, items, body.gone or ())

    await _write(context, work)
    return Response(status_code=204)


async def delete_chat(context: ServerContext, request: Request) -> Response:
    """Remove a conversation with its messages."""
    from tidemill.store import content

    _cipher(context, request)
    chat, owner = _id_of(request), principal_of(request).client_id
    await _write(context, lambda c: content.remove(c, owner, chat))
    return Response(status_code=204)


def keeps_chats(context: ServerContext, principal: Principal) -> bool:
    """Whether conversations of this client may be kept here."""
    return context.cipher is not None and not principal.policy.no_content


def _cipher(context: ServerContext, request: Request) -> Cipher:
    if context.cipher is None or context.storage is None:
        raise reject(
            501,
            "this server keeps no conversations; start it with --content database",
            code="no_content_kept",
        )
    if principal_of(request).policy.no_content:
        raise reject(403, "what this key says is not kept: it has no conversations")
    return context.cipher


def _id_of(request: Request) -> str:
    chat: str = request.path_params["chat"]
    if not (chat.isalnum() and chat.isascii() and len(chat) <= MAX_ID):
        raise bad_request("chat", f"chat must be up to {MAX_ID} letters and digits")
    return PREFIX + chat


def _messages(body: ChatBody) -> list[ChatMessage]:
    try:
        found = msgspec.convert(body.messages or [], list[ChatMessage])
    except msgspec.ValidationError as error:
        raise bad_request("messages", f"messages: {error}") from None
    for index, message in enumerate(found):
        if not 0 < len(message.id) <= MAX_ID or not 0 <= message.number < 2**31:
            raise bad_request("messages", f"messages[{index}] has no valid id and number")
    return found


def _sealed(cipher: Cipher, owner: str, place: str, text: str) -> bytes:
    return cipher.encrypt(text.encode(), f"page\0{owner}\0{place}")


def _opened(cipher: Cipher, owner: str, place: str, data: bytes) -> str:
    return cipher.decrypt(data, f"page\0{owner}\0{place}").decode()


async def _read(context: ServerContext, work: Callable[[Any], T]) -> T:
    assert context.storage is not None
    return await (await context.storage.opened()).read(work)


async def _write(context: ServerContext, work: Callable[[Any], T]) -> T:
    assert context.storage is not None
    return await (await context.storage.opened()).write(work)


ENDPOINTS = (
    Endpoint("GET", "/v1/chats", list_chats),
    Endpoint("GET", "/v1/chats/{chat}", get_chat),
    Endpoint("PUT", "/v1/chats/{chat}", put_chat, ChatBody),
    Endpoint("DELETE", "/v1/chats/{chat}", delete_chat),
)
