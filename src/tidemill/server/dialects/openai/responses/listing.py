"""Lists of items in pages, as OpenAI's API has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from tidemill.base.errors import bad_request
from tidemill.server.dialects.query import check_query, number
from tidemill.server.errors import reject
from tidemill.server.transport.pieces import json_response

MAX_LIMIT = 100
DEFAULT_LIMIT = 20
_PARAMETERS = frozenset({"limit", "order", "after", "before", "include", "include[]"})


def page(request: Request, items: Sequence[dict[str, Any]]) -> Response:
    """A page of items, the latest first unless `order` is ``asc``.

    Raises:
        TidemillError, Rejection: naming the parameter.
    """
    check_query(request, _PARAMETERS)
    limit = number(request, "limit", 1, MAX_LIMIT) or DEFAULT_LIMIT
    order = request.query_params.get("order", "desc")
    if order not in ("asc", "desc"):
        raise bad_request("order", f"order must be asc or desc, got {order[:32]!r}")
    listed = list(items) if order == "asc" else list(reversed(items))
    for name in ("after", "before"):
        mark = request.query_params.get(name)
        if mark is None:
            continue
        place = next((i for i, item in enumerate(listed) if item["id"] == mark), None)
        if place is None:
            raise reject(404, f"{name}: there is no item {mark[:80]!r} in this list", param=name)
        listed = listed[place + 1 :] if name == "after" else listed[:place]
    shown = listed[:limit]
    return json_response(
        {
            "object": "list",
            "data": shown,
            "first_id": shown[0]["id"] if shown else None,
            "last_id": shown[-1]["id"] if shown else None,
            "has_more": len(listed) > len(shown),
        }
    )
