"""GET /admin/whoami: who asks, and what this server has for them."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from tidemill.server.access.auth import principal_of
from tidemill.server.access.keys import Role
from tidemill.server.admin.chats import keeps_chats
from tidemill.server.context import ServerContext
from tidemill.server.dialects.dialect import Endpoint
from tidemill.server.transport.pieces import json_response


async def whoami(context: ServerContext, request: Request) -> Response:
    """The name and role of the key that a request has (without keys: its address, as an
    administrator), whether this server has a database and a library that changes, and whether it
    keeps the page's conversations."""
    principal = principal_of(request)
    role = principal.role
    return json_response(
        {
            "name": principal.name,
            "role": role.value if role else None,
            "keys": not principal.client_id.startswith("addr:"),
            "database": context.storage is not None,
            "library": context.manager is not None,
            "content": keeps_chats(context, principal),
            "version": context.version,
        }
    )


ENDPOINTS = (Endpoint("GET", "/admin/whoami", whoami, roles=frozenset(Role)),)
