"""What a dialect consists of: routes, the shape of its errors, and its names for what exists."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from tidemill.server.access.keys import Role
from tidemill.server.context import ServerContext
from tidemill.server.dialects.limit_headers import LimitHeaders, openai_headers
from tidemill.server.dialects.members import Body
from tidemill.server.errors import ErrorBody
from tidemill.text.answering import ChatSide
from tidemill.text.template import ChatTemplate

Handler = Callable[[ServerContext, Request], Awaitable[Response]]

PUBLIC: frozenset[Role] = frozenset()
USERS = frozenset({Role.ADMIN, Role.MANAGER, Role.USER})
ADMINS = frozenset({Role.ADMIN})
MANAGERS = frozenset({Role.ADMIN, Role.MANAGER})
READERS = frozenset({Role.ADMIN, Role.MANAGER, Role.AUDITOR})
METRICS_READERS = frozenset({Role.ADMIN, Role.METRICS})


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One route.

    Attributes:
        method, path: as Starlette routes them; path parameters are `{name}` or `{name:path}`.
        handler: answers it; its docstring describes it in the OpenAPI document.
        body: type of the JSON body, or None.
        roles: who may call it; empty: everybody, without a key.
        streams: content types of its answers that are streams, for the OpenAPI document.
    """

    method: str
    path: str
    handler: Handler
    body: type[Body] | None = None
    roles: frozenset[Role] = USERS
    streams: tuple[str, ...] = ()


def is_act(endpoint: Endpoint) -> bool:
    """Whether a route changes the server, which takes a role that users have not."""
    roles = endpoint.roles
    return endpoint.method not in ("GET", "HEAD") and bool(roles) and Role.USER not in roles


@dataclass(frozen=True, slots=True)
class Dialect:
    """One API that clients speak.

    Attributes:
        name: in the documentation.
        endpoints: its routes.
        error_body: its document for an error.
        error_schema: the JSON schema of that document; empty: OpenAI's.
        prefixes: paths of which even unknown ones get errors in this shape.
        render: the prompt that the JSON text of a body becomes, for `tidemill render`; or None.
        not_served: paths of other servers' APIs that no dialect serves, and the route that does
            the same.
        header: a header that its clients send, and no others. Errors of requests with it take this
            shape everywhere, and its routes may be other dialects' too: they get the requests
            without it. Empty: there is none.
        id_header: a further response header for the request's id; empty: there is none.
        limit_headers: writes what is left of the client's limits as response headers.
    """

    name: str
    endpoints: tuple[Endpoint, ...]
    error_body: ErrorBody
    prefixes: tuple[str, ...] = ()
    render: Callable[[ChatTemplate, ChatSide, bytes], str] | None = None
    not_served: Mapping[str, str] = field(default_factory=dict)
    error_schema: Mapping[str, Any] = field(default_factory=dict)
    header: str = ""
    id_header: str = ""
    limit_headers: LimitHeaders = openai_headers
