"""Lists of items in pages, as OpenAI's API has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from tidemill.server.dialects.query import ascending, check_query, number, page_of
from tidemill.server.errors import reject

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
    listed = list(items) if ascending(request) else list(reversed(items))
    for name in ("after", "before"):
        mark = request.query_params.get(name)
        if mark is None:
            continue
        place = next((i for i, item in enumerate(listed) if item["id"] == mark), None)
        if place is None:
            raise reject(404, f"{name}: there is no item {mark[:80]!r} in this list", param=name)
        listed = listed[place + 1 :] if name == "after" else listed[:place]
    shown = listed[:limit]
    return page_of(shown, more=len(listed) > len(shown))
