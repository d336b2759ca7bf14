"""/admin/usage: what was used, by key, team, model or time."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from tidemill.base.errors import TidemillError, bad_request
from tidemill.contract.prices import Prices
from tidemill.server.access.auth import principal_of
from tidemill.server.context import ServerContext
from tidemill.server.dialects.dialect import Endpoint
from tidemill.server.dialects.query import check_query
from tidemill.server.transport.pieces import json_response
from tidemill.server.usage import READERS, check_sees_all, narrowed, read

MAX_ROWS = 10_000
"""Of a report over HTTP; `tidemill usage` gives longer ones."""

_OWNERS = (("key", "keys"), ("team", "teams"), ("organisation", "organisations"), ("user", "users"))
_FORMATS = ("json", "csv")
_ONCE = ("since", "until", "format")
_KNOWN = frozenset(
    ("since", "until", "by", "model", "operation", "format", *(name for name, _ in _OWNERS))
)


async def usage(context: ServerContext, request: Request) -> Response:
    """Requests, tokens and money. `since` and `until` are dates, seconds since 1970 or how long
    ago (7d); `by` names dimensions (key, team, organisation, user, model, version, operation, day,
    hour), separated by commas or repeated; key, team, organisation, user, model and operation
    choose, and may be repeated; `format` is json or csv. Managers see their team's usage, users
    their key's."""
    from tidemill.store.report import csv_text, document, time_of
    from tidemill.store.usage import FOREVER, Query, ids_named, lost, total_of
    from tidemill.store.usage import usage as rows_of

    check_query(request, _KNOWN)
    given = request.query_params
    for name in _ONCE:
        if len(given.getlist(name)) > 1:
            raise bad_request(
                name, f"{name} is given {len(given.getlist(name))} times; give it once"
            )
    format = given.get("format") or "json"
    if format not in _FORMATS:
        raise bad_request("format", f"format is {' or '.join(_FORMATS)}; not {format[:64]!r}")
    parts = ",".join(given.getlist("by")).split(",")
    by = tuple(dict.fromkeys(part.strip() for part in parts if part.strip()))
    query = Query(
        since=time_of(given["since"], "since") if given.get("since") else 0,
        until=time_of(given["until"], "until") if given.get("until") else FOREVER,
        by=by,
        models=tuple(given.getlist("model")) or None,
        operations=tuple(given.getlist("operation")) or None,
    )
    principal = principal_of(request)

    def report(connection: Any) -> Any:
        import msgspec

        try:
            ids = {
                field: ids_named(connection, name, given.getlist(name))
                for name, field in _OWNERS
                if given.getlist(name)
            }
        except TidemillError:
            check_sees_all(principal)  # nor does anybody else learn which names there are
            raise
        asked = narrowed(msgspec.structs.replace(query, **ids), principal)
        return rows_of(connection, asked, MAX_ROWS), lost(connection, asked.since, asked.until)

    rows, missing = await read(context, report)
    if format == "csv":
        return Response(csv_text(by, rows), media_type="text/csv")
    return json_response(document(query, rows, total_of(rows), missing, currency_of(context)))


def currency_of(context: ServerContext) -> str:
    """In which the server's prices are."""
    prices = Prices() if context.recording is None else context.recording.prices
    return prices.currency


ENDPOINTS = (Endpoint("GET", "/admin/usage", usage, roles=READERS),)
