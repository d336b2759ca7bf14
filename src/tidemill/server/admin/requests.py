"""/admin/requests: the latest requests, and where the time of each went."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from tidemill.base.clock import monotonic
from tidemill.base.errors import bad_request
from tidemill.server.access.auth import Principal, principal_of
from tidemill.server.access.keys import Role
from tidemill.server.context import ServerContext
from tidemill.server.dialects.dialect import Endpoint
from tidemill.server.dialects.query import check_query, chosen, number
from tidemill.server.errors import Rejection, reject
from tidemill.server.transport.pieces import json_response
from tidemill.server.usage import READERS
from tidemill.telemetry.recent import Recent, Story, names_of
from tidemill.telemetry.record import Operation, Outcome

MOST = 1000
"""Requests of one list."""

LISTED = 10
"""Ids that are named where several start as was asked."""

_CHOOSING: dict[str, Callable[[Story], str]] = {
    "model": lambda story: story.record.model,
    "version": lambda story: story.record.version,
    "key": lambda story: story.record.key,
    "team": lambda story: story.record.team,
    "route": lambda story: story.record.route,
    "operation": lambda story: story.record.operation,
    "outcome": lambda story: "" if story.running else story.record.outcome,
    "status": lambda story: str(story.record.status),
    "code": lambda story: story.record.code,
    "state": lambda story: "running" if story.running else "ended",
    "id": lambda story: story.record.id,
}
"""Query parameters that choose requests, and what each compares."""

_VALUES: dict[str, tuple[str, ...]] = {
    "operation": tuple(Operation),
    "outcome": tuple(Outcome),
    "state": ("running", "ended"),
}
"""Those of them that can only be these."""

_KNOWN = frozenset((*_CHOOSING, "limit", "slower"))


async def list_requests(context: ServerContext, request: Request) -> Response:
    """The latest requests, those that run first: `limit` of them (100). model, version, key, team,
    route, operation, outcome, status, code, state (running, ended) and id choose, and may be
    repeated; `slower` chooses those that took more seconds. Managers see their team's requests,
    users their key's."""
    from tidemill.telemetry.explain import summary

    recent, given = _recent(context), request.query_params
    check_query(request, _KNOWN)
    limit = number(request, "limit", 1, MOST) or 100
    slower = _seconds(given.get("slower"))
    wanted = {name: set(given.getlist(name)) for name in given if name in _CHOOSING}
    for name in _VALUES.keys() & wanted.keys():
        chosen(request, name, _VALUES[name])
    for status in given.getlist("status"):
        if not (status.isascii() and status.isdigit() and 100 <= int(status[:9]) <= 599):
            raise bad_request("status", f"status is an HTTP status, not {status[:32]!r}")
    now, found = monotonic(), []
    for story in _seen(recent, principal_of(request)):
        if any(_CHOOSING[name](story) not in values for name, values in wanted.items()):
            continue
        times = story.milestones
        if slower is not None and (times.ended or now) - times.arrival <= slower:
            continue
        found.append(summary(story, now))
        if len(found) == limit:
            break
    return json_response({"requests": found, "kept": recent.size})


async def explain_request(context: ServerContext, request: Request) -> Response:
    """Where the time of a request went, and why: by its id (the header X-Request-Id of its answer),
    or the id of its answer, or the beginning of either that no other has. `phases` sum to
    `total_seconds`. Of several requests with the same id, the latest. docs/observability.md
    describes the members. Managers see their team's requests, users their key's; those learn
    nothing of others. Where the server keeps explanations in its database, administrators and
    auditors find older requests there."""
    _recent(context)
    name: str = request.path_params["id"]
    principal = principal_of(request)
    found = await _found(context, principal, name)
    if found is None:
        whole = await completed(context, principal, name)
        found = None if whole is None else await _found(context, principal, whole)
    if found is None:
        raise _unknown(context, principal, name)
    return json_response(found)


async def _found(context: ServerContext, principal: Principal, name: str) -> dict[str, Any] | None:
    from tidemill.telemetry.explain import explanation

    recent = _recent(context)
    story = next((s for s in recent.find(name) if may_see(principal, s)), None)
    if story is None:
        return await _stored(context, name) if _sees_stored(context, principal) else None
    currency = "" if context.recording is None else context.recording.prices.currency
    whole = _sees_all(principal)
    return explanation(
        story, monotonic(), [*recent.running(), *recent] if whole else (),
        currency=currency, whole=whole,
    )  # fmt: skip


async def completed(context: ServerContext, principal: Principal, start: str) -> str | None:
    """The only id, of those that may be seen, that starts so; None where none does."""
    if not start:
        return None
    seen = _seen(_recent(context), principal)
    names = {name for story in seen for name in names_of(story) if name.startswith(start)}
    if _sees_stored(context, principal):
        from tidemill.store.explanations import names as stored

        assert context.storage is not None
        database = await context.storage.opened()
        names.update(await database.read(partial(stored, start=start, most=LISTED + 1)))
    if len(names) > 1:
        listed = sorted(names)[:LISTED]
        more = "" if len(names) == len(listed) else " and more"
        raise reject(
            400, f"several ids start with {start[:128]!r}: {', '.join(listed)}{more}",
            code="ambiguous_id",
        )  # fmt: skip
    return next(iter(names), None)


async def _stored(context: ServerContext, name: str) -> dict[str, Any] | None:
    from tidemill.store.explanations import find

    assert context.storage is not None
    database = await context.storage.opened()
    found: dict[str, Any] | None = await database.read(partial(find, name=name))
    return found


def _unknown(context: ServerContext, principal: Principal, name: str) -> Rejection:
    where = (
        "in memory or in the database"
        if _sees_stored(context, principal)
        else f"among the latest {_recent(context).size} (--recent-requests keeps more)"
    )
    return reject(404, f"there is no request {name[:128]!r} {where}", code="request_not_found")


def _sees_stored(context: ServerContext, principal: Principal) -> bool:
    return context.explanations_kept and _sees_all(principal)


def _recent(context: ServerContext) -> Recent:
    if context.recent is None:
        raise reject(
            501,
            "this server keeps no requests to explain; start it with --recent-requests above 0",
            code="not_kept",
        )
    return context.recent


def _seen(recent: Recent, principal: Principal) -> Iterator[Story]:
    yield from (story for story in recent.running() if may_see(principal, story))
    yield from (story for story in recent if may_see(principal, story))


def _sees_all(principal: Principal) -> bool:
    return principal.role in (Role.ADMIN, Role.AUDITOR)


def may_see(principal: Principal, story: Story) -> bool:
    """As with usage: administrators and auditors all, managers their team's, users their key's."""
    if _sees_all(principal):
        return True
    if principal.role is Role.MANAGER:
        return bool(principal.team) and story.record.team == principal.team
    return story.record.client == principal.client_id


def _seconds(value: str | None) -> float | None:
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        seconds = -1.0
    if not 0.0 <= seconds < float("inf"):
        raise bad_request("slower", "slower is a number of seconds, such as 0.5")
    return seconds


ENDPOINTS: tuple[Any, ...] = (
    Endpoint("GET", "/admin/requests", list_requests, roles=READERS),
    Endpoint("GET", "/admin/requests/{id:path}", explain_request, roles=READERS),
)
