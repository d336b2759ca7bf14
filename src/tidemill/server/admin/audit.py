"""/admin/audit: who did what, and whether the log of it is whole."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from tidemill.base.errors import bad_request
from tidemill.server.access.keys import Role
from tidemill.server.context import ServerContext
from tidemill.server.dialects.dialect import Endpoint
from tidemill.server.dialects.query import check_query, number
from tidemill.server.transport.pieces import json_response
from tidemill.server.usage import read

READERS = frozenset({Role.ADMIN, Role.AUDITOR})
MAX_ROWS = 1000
_KNOWN = frozenset(("limit", "before", "acts"))


async def list_rows(context: ServerContext, request: Request) -> Response:
    """Rows of the audit log, the latest first: `limit` of them (100; at most 1000), `before` a time
    (seconds since the epoch), with `acts=true` what administrators did alone."""
    from tidemill.store.audit_rows import latest_rows

    check_query(request, _KNOWN)
    given = request.query_params
    limit = number(request, "limit", 1, MAX_ROWS) or 100
    acts = given.get("acts", "").lower() in ("1", "true", "yes")
    before = _milliseconds(given.get("before"))
    rows = await read(context, lambda c: latest_rows(c, limit, before=before, acts=acts))
    return json_response({"rows": rows})


async def verification(context: ServerContext, request: Request) -> Response:
    """Whether the audit log is as it was written: `valid`, and of each chain its rows and its first
    fault. It reads the whole log: about a second for 100,000 rows."""
    from tidemill.store.audit import sealer
    from tidemill.store.verify import document, verify

    return json_response(await read(context, lambda c: document(list(verify(c, sealer())))))


def _milliseconds(value: str | None) -> int | None:
    if not value:
        return None
    try:
        seconds = float(value)
        if 0 <= seconds < 1e11:
            return round(seconds * 1000)
    except ValueError:
        pass
    raise bad_request("before", "before must be seconds since the epoch")


ENDPOINTS = (
    Endpoint("GET", "/admin/audit", list_rows, roles=READERS),
    Endpoint("GET", "/admin/audit/verification", verification, roles=READERS),
)
