"""/admin/keys, /admin/teams, /admin/users: what `tidemill keys`, `teams` and `users` do, over HTTP.

Administrators may everything, managers what is their team's, auditors look.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tidemill.base.errors import bad_request
from tidemill.server.access.auth import principal_of
from tidemill.server.context import ServerContext
from tidemill.server.dialects.body import read_model
from tidemill.server.dialects.dialect import ADMINS, MANAGERS, READERS, Endpoint
from tidemill.server.dialects.members import Body
from tidemill.server.errors import reject
from tidemill.server.transport.pieces import json_response

if TYPE_CHECKING:
    from tidemill.store.actors import Actor
    from tidemill.store.database import Database
    from tidemill.store.key_values import KeyValues
    from tidemill.store.secret import KeyHash


class KeyRules(Body, kw_only=True):
    """What a key may. Absent members stay as they are (of a new key: forbid nothing). Of a change,
    an empty list or text, and 0, lift what there was; of a new key they are refused.

    Attributes:
        role: admin, manager, user, metrics or auditor.
        expires: seconds since the epoch.
        models: patterns of the models that it may use.
        routes: patterns of the paths that it may call.
        addresses: networks that it may be used from.
        max_tokens: the most that one answer may have.
        priority: `normal`, or `background`: waits for capacity that no others want.
        weight: its share of the engine relative to other clients.
        residency: served only where the server's region is the same.
        no_content: nothing that its requests say or are answered is kept.
        limits: such as `{"rpm": 60}` (docs/quotas.md).
    """

    role: str | None = None
    expires: int | None = None
    models: list[str] | None = None
    routes: list[str] | None = None
    addresses: list[str] | None = None
    max_tokens: int | None = None
    priority: str | None = None
    weight: float | None = None
    residency: str | None = None
    no_content: bool | None = None
    limits: dict[str, Any] | None = None


class NewKey(KeyRules, kw_only=True):
    """Body of POST /admin/keys.

    Attributes:
        name: unique among keys that are not revoked.
        team: its team, by name or id; default: the caller's, or the user's, or `default`.
        user: whom it belongs to, by name or id.
    """

    name: str
    team: str | None = None
    user: str | None = None


class KeyChange(KeyRules, kw_only=True):
    """Body of PATCH /admin/keys/{key}.

    Attributes:
        disabled: it is refused until it is enabled again.
    """

    disabled: bool | None = None


class Rotation(Body, kw_only=True):
    """Body of POST /admin/keys/{key}/rotate.

    Attributes:
        overlap: seconds for which the secret before still counts.
    """

    overlap: int | None = None


class NewTeam(Body, kw_only=True):
    """Body of POST /admin/teams; the organisation is made where there is none of that name."""

    name: str
    organisation: str | None = None


class TeamChange(Body, kw_only=True):
    """Body of PATCH /admin/teams/{team}; the keys of a disabled team are refused."""

    name: str | None = None
    disabled: bool | None = None


class NewUser(Body, kw_only=True):
    """Body of POST /admin/users."""

    name: str
    role: str | None = None
    team: str | None = None


class UserChange(Body, kw_only=True):
    """Body of PATCH /admin/users/{user}; the keys of a disabled user are refused."""

    role: str | None = None
    team: str | None = None
    disabled: bool | None = None


# -- keys ------------------------------------------------------------------------------------------


async def list_keys(context: ServerContext, request: Request) -> Response:
    """The keys, without their secrets: of `?team=NAME` alone, with `?revoked=true` also revoked
    ones. Managers see their team's."""
    from tidemill.store import keys

    database, actor = await _database(context), _actor(request)
    team = request.query_params.get("team")
    revoked = request.query_params.get("revoked", "").lower() in ("1", "true", "yes")
    found = await database.read(lambda c: keys.list_keys(c, actor, team=team, revoked=revoked))
    return json_response({"keys": found})


async def create_key(context: ServerContext, request: Request) -> Response:
    """Make a key. The answer has its secret as `key`; nothing reveals it again. Servers take it
    within a second or two."""
    from tidemill.store import keys
    from tidemill.store.administration import act

    body = await read_model(NewKey, request, context.limits)
    database, actor, hasher = await _database(context), _actor(request), await _hasher(context)
    values = _values(body, frozenset())

    def work(connection: Any) -> dict[str, Any]:
        made = keys.create_key(
            connection, actor, hasher, body.name, values, team=body.team, user=body.user
        )
        return {**made, **_limited(connection, actor, made["id"], body)}

    return json_response(await act(database, work), 201)


async def get_key(context: ServerContext, request: Request) -> Response:
    """One key by name or id, without its secret."""
    from tidemill.store import keys

    database, actor = await _database(context), _actor(request)
    name = request.path_params["key"]
    return json_response(await database.read(lambda c: keys.describe_key(c, actor, name)))


async def change_key(context: ServerContext, request: Request) -> Response:
    """Change what a key may."""
    from tidemill.store import keys
    from tidemill.store.administration import act

    body = await read_model(KeyChange, request, context.limits)
    database, actor, name = await _database(context), _actor(request), request.path_params["key"]
    values = _values(body, _CLEARED)

    def work(connection: Any) -> dict[str, Any]:
        found = keys.change_key(connection, actor, name, values)
        return {**found, **_limited(connection, actor, found["id"], body)}

    return json_response(await act(database, work))


async def rotate_key(context: ServerContext, request: Request) -> Response:
    """Give a key a new secret, which the answer has as `key`. Its id, limits and usage stay; the
    secret before counts for `overlap` seconds more."""
    from tidemill.store import keys
    from tidemill.store.administration import act

    body = await read_model(Rotation, request, context.limits)
    database, actor, hasher = await _database(context), _actor(request), await _hasher(context)
    name, overlap = request.path_params["key"], body.overlap or 0
    return json_response(
        await act(database, lambda c: keys.rotate_key(c, actor, hasher, name, overlap))
    )


async def revoke_key(context: ServerContext, request: Request) -> Response:
    """End a key for good. Servers refuse it within a second or two."""
    from tidemill.store import keys
    from tidemill.store.administration import act

    database, actor, name = await _database(context), _actor(request), request.path_params["key"]
    return json_response(await act(database, lambda c: keys.revoke_key(c, actor, name)))


# -- teams and users -------------------------------------------------------------------------------


async def list_teams(context: ServerContext, request: Request) -> Response:
    """The teams. Managers see their own."""
    from tidemill.store import teams

    database, actor = await _database(context), _actor(request)
    return json_response({"teams": await database.read(lambda c: teams.list_teams(c, actor))})


async def create_team(context: ServerContext, request: Request) -> Response:
    """Make a team."""
    from tidemill.store import teams
    from tidemill.store.administration import act

    body = await read_model(NewTeam, request, context.limits)
    database, actor = await _database(context), _actor(request)
    made = await act(database, lambda c: teams.create_team(c, actor, body.name, body.organisation))
    return json_response(made, 201)


async def get_team(context: ServerContext, request: Request) -> Response:
    """One team, with the names of its keys and users."""
    from tidemill.store import teams

    database, actor, name = await _database(context), _actor(request), request.path_params["team"]
    return json_response(await database.read(lambda c: teams.describe_team(c, actor, name)))


async def change_team(context: ServerContext, request: Request) -> Response:
    """Rename a team, or refuse its keys."""
    from tidemill.store import teams
    from tidemill.store.administration import act

    body = await read_model(TeamChange, request, context.limits)
    database, actor, name = await _database(context), _actor(request), request.path_params["team"]
    return json_response(
        await act(
            database,
            lambda c: teams.change_team(c, actor, name, new_name=body.name, disabled=body.disabled),
        )
    )


async def list_users(context: ServerContext, request: Request) -> Response:
    """The users, of `?team=NAME` alone. Managers see their team's."""
    from tidemill.store import teams

    database, actor = await _database(context), _actor(request)
    team = request.query_params.get("team")
    return json_response({"users": await database.read(lambda c: teams.list_users(c, actor, team))})


async def create_user(context: ServerContext, request: Request) -> Response:
    """Make a user, whom keys may belong to."""
    from tidemill.store import teams
    from tidemill.store.administration import act

    body = await read_model(NewUser, request, context.limits)
    database, actor = await _database(context), _actor(request)
    made = await act(
        database,
        lambda c: teams.create_user(c, actor, body.name, body.role or "user", body.team),
    )
    return json_response(made, 201)


async def get_user(context: ServerContext, request: Request) -> Response:
    """One user, with the names of its keys."""
    from tidemill.store import teams

    database, actor, name = await _database(context), _actor(request), request.path_params["user"]
    return json_response(await database.read(lambda c: teams.describe_user(c, actor, name)))


async def change_user(context: ServerContext, request: Request) -> Response:
    """Give a user another role or team, or refuse its keys."""
    from tidemill.store import teams
    from tidemill.store.administration import act

    body = await read_model(UserChange, request, context.limits)
    database, actor, name = await _database(context), _actor(request), request.path_params["user"]
    return json_response(
        await act(
            database,
            lambda c: teams.change_user(
                c, actor, name, role=body.role, team=body.team, disabled=body.disabled
            ),
        )
    )


# -- what they share -------------------------------------------------------------------------------


async def _database(context: ServerContext) -> Database:
    if context.storage is None:
        raise reject(
            501,
            "keys, teams and users are kept in a database, and this server has none; start it "
            "without --database none",
            code="no_database",
        )
    return await context.storage.opened()


async def _hasher(context: ServerContext) -> KeyHash:
    from tidemill.store.secret import KeyHash, read_secret

    assert context.home is not None, "a server with a database has a home"
    return KeyHash(await asyncio.to_thread(read_secret, context.home))


def _actor(request: Request) -> Actor:
    from tidemill.store.actors import Actor

    principal = principal_of(request)
    role = principal.role
    return Actor(principal.client_id, role.value if role else "", principal.team, principal.key_id)


_NOT_VALUES = frozenset({"name", "team", "user", "limits"})
_EMPTY: tuple[Any, ...] = (0, "", [])
_CLEARED = frozenset({"expires", "models", "routes", "addresses", "max_tokens", "residency"})


def _values(body: KeyRules, cleared: frozenset[str]) -> KeyValues:
    from tidemill.store.key_values import KeyValues

    said: dict[str, Any] = {
        name: None if name in cleared and value in _EMPTY else value
        for name, value in msgspec.structs.asdict(body).items()
        if value is not None and name not in _NOT_VALUES
    }
    return KeyValues(**said)


def _limited(connection: Any, actor: Actor, key: str, body: KeyRules) -> dict[str, Any]:
    if not body.limits:
        return {}
    from tidemill.store.limit_acts import change_limits

    for name, value in body.limits.items():
        if not isinstance(value, int | float | str):
            raise bad_request("limits", f"limits.{name[:64]} must be a number or a text")
    return {"limits": change_limits(connection, actor, "key", key, body.limits)["limits"]}


ENDPOINTS = (
    Endpoint("GET", "/admin/keys", list_keys, roles=READERS),
    Endpoint("POST", "/admin/keys", create_key, NewKey, MANAGERS),
    Endpoint("GET", "/admin/keys/{key}", get_key, roles=READERS),
    Endpoint("PATCH", "/admin/keys/{key}", change_key, KeyChange, MANAGERS),
    Endpoint("DELETE", "/admin/keys/{key}", revoke_key, roles=MANAGERS),
    Endpoint("POST", "/admin/keys/{key}/rotate", rotate_key, Rotation, MANAGERS),
    Endpoint("GET", "/admin/teams", list_teams, roles=READERS),
    Endpoint("POST", "/admin/teams", create_team, NewTeam, ADMINS),
    Endpoint("GET", "/admin/teams/{team}", get_team, roles=READERS),
    Endpoint("PATCH", "/admin/teams/{team}", change_team, TeamChange, ADMINS),
    Endpoint("GET", "/admin/users", list_users, roles=READERS),
    Endpoint("POST", "/admin/users", create_user, NewUser, MANAGERS),
    Endpoint("GET", "/admin/users/{user}", get_user, roles=READERS),
    Endpoint("PATCH", "/admin/users/{user}", change_user, UserChange, MANAGERS),
)
