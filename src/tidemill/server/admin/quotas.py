"""/admin/quotas: limits of single teams, users and keys, and what is used of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response

from tidemill.server.access.auth import principal_of
from tidemill.server.access.keys import Role
from tidemill.server.context import ServerContext
from tidemill.server.dialects.body import read_model
from tidemill.server.dialects.dialect import Endpoint
from tidemill.server.dialects.members import Body
from tidemill.server.errors import reject
from tidemill.server.transport.pieces import json_response

if TYPE_CHECKING:
    from tidemill.store.actors import Actor
    from tidemill.store.database import Database

READERS = frozenset({Role.ADMIN, Role.MANAGER, Role.AUDITOR})
WRITERS = frozenset({Role.ADMIN, Role.MANAGER})


class QuotaBody(Body, kw_only=True):
    """Body of POST /admin/quotas.

    Attributes:
        level: server, organisation, team, user or key.
        name: of the subject, or its id; empty for the server. `key:NAME` is a key of a key file,
            `addr:ADDRESS` a client without a key.
        limits: by name, such as `tokens_per_day`; "none": no limit, "default": the level's again.
    """

    level: str
    name: str = ""
    limits: dict[str, Any]


async def list_quotas(context: ServerContext, request: Request) -> Response:
    """Every subject with limits of its own, with what is taken of its day's and month's amounts
    (with what servers have drawn ahead). Managers see their team's."""
    from tidemill.store.limit_acts import list_limits

    database, actor = await _database(context), _actor(request)
    return json_response({"quotas": await database.read(lambda c: list_limits(c, actor))})


async def get_quota(context: ServerContext, request: Request) -> Response:
    """The limits of one subject."""
    from tidemill.store.limit_acts import describe_limits

    database, actor = await _database(context), _actor(request)
    level, name = request.path_params["level"], request.path_params["name"]
    return json_response(await database.read(lambda c: describe_limits(c, actor, level, name)))


async def set_quota(context: ServerContext, request: Request) -> Response:
    """Set limits of one subject; servers follow within a second or two. Limits of teams and above
    are set by administrators, those of keys and users by their team's managers too."""
    from tidemill.store.limit_acts import change_limits

    body = await read_model(QuotaBody, request, context.limits)
    database, actor = await _database(context), _actor(request)
    found = await database.write(
        lambda c: change_limits(c, actor, body.level, body.name, body.limits)
    )
    return json_response(found)


async def _database(context: ServerContext) -> Database:
    if context.storage is None:
        raise reject(
            501,
            "limits of single subjects are kept in a database, and this server has none; start it "
            "without --database none, or set them in its deployment file and key file",
            code="no_database",
        )
    return await context.storage.opened()


def _actor(request: Request) -> Actor:
    from tidemill.store.actors import Actor

    principal = principal_of(request)
    role = principal.role
    return Actor(principal.client_id, role.value if role else "", principal.team)


ENDPOINTS = (
    Endpoint("GET", "/admin/quotas", list_quotas, roles=READERS),
    Endpoint("POST", "/admin/quotas", set_quota, QuotaBody, WRITERS),
    Endpoint("GET", "/admin/quotas/{level}/{name:path}", get_quota, roles=READERS),
)
