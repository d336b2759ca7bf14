"""GET /v1/models in Anthropic's shape, for requests with the header anthropic-version."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from tidemill.server.context import ServerContext
from tidemill.server.dialects.permitted import find_model, named_models
from tidemill.server.errors import reject
from tidemill.server.host.slot import Slot
from tidemill.server.transport.pieces import json_response

_MOST = 1000


def _card(slot: Slot, name: str) -> dict[str, Any]:
    loaded = slot.loaded
    length = None if loaded is None else loaded.served.info.max_model_len
    created = datetime.fromtimestamp(slot.created, UTC)
    return {
        "type": "model",
        "id": name,
        "display_name": name,
        "created_at": created.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "lifecycle": "active",
        "capabilities": None,
        "max_input_tokens": length,
        "max_tokens": length,
    }


async def list_models(context: ServerContext, request: Request) -> Response:
    """The models, a page of them."""
    cards = [_card(slot, name) for name, slot in named_models(context, request)]
    ids = [card["id"] for card in cards]
    begin, end = 0, len(cards)
    query = request.query_params
    limit = query.get("limit", "20")
    if not (limit.isascii() and limit.isdigit() and 1 <= int(limit[:5]) <= _MOST):
        raise reject(400, f"limit must be between 1 and {_MOST}", param="limit")
    for name in ("after_id", "before_id"):
        if name in query and query[name] not in ids:
            raise reject(400, f"{name} is the id of no model here", param=name)
    if "after_id" in query:
        begin = ids.index(query["after_id"]) + 1
    if "before_id" in query:
        end = ids.index(query["before_id"])
        begin = max(begin, end - int(limit))
    page = cards[begin:end][: int(limit)]
    more = begin > 0 if "before_id" in query else begin + len(page) < end
    return json_response(
        {
            "data": page,
            "first_id": page[0]["id"] if page else None,
            "last_id": page[-1]["id"] if page else None,
            "has_more": more,
        }
    )


async def get_model(context: ServerContext, request: Request) -> Response:
    """A model by name."""
    name: str = request.path_params["model"]
    return json_response(_card(find_model(context, request, name), name))
