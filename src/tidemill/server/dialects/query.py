"""Parameters of a URL, checked and named, and the pages of a list that they ask for."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from tidemill.base.errors import bad_request
from tidemill.server.transport.pieces import json_response


def check_query(request: Request, known: frozenset[str]) -> None:
    """Raise unless every parameter of the URL is known.

    Raises:
        TidemillError: kind BAD_REQUEST naming the parameter.
    """
    for name in request.query_params:
        if name not in known:
            raise bad_request(
                name[:64], f"{name[:64]} is not a parameter here; known: {', '.join(sorted(known))}"
            )


def number(request: Request, name: str, least: int, most: int) -> int | None:
    """An integer of the URL; None where it is absent.

    Raises:
        TidemillError: kind BAD_REQUEST naming the parameter.
    """
    text = request.query_params.get(name)
    if text is None:
        return None
    plain = text.isascii() and text.isdigit() and len(text) < 12
    if not plain or not least <= int(text) <= most:
        raise bad_request(
            name, f"{name} must be a number from {least} to {most}, got {text[:32]!r}"
        )
    return int(text)


def chosen(request: Request, name: str, known: Collection[str]) -> set[str]:
    """The values of a parameter that may be repeated; none where it is absent.

    Raises:
        TidemillError: kind BAD_REQUEST naming the parameter and what it may be.
    """
    values = request.query_params.getlist(name)
    for value in values:
        if value not in known:
            values_known = ", ".join(one for one in known if one)
            raise bad_request(name, f"{name} is one of {values_known}, not {value[:32]!r}")
    return set(values)


def flag(request: Request, name: str) -> bool:
    """A boolean of the URL; false where it is absent.

    Raises:
        TidemillError: kind BAD_REQUEST naming the parameter.
    """
    text = request.query_params.get(name, "false").lower()
    if text not in ("true", "false"):
        raise bad_request(name, f"{name} must be true or false, got {text[:32]!r}")
    return text == "true"


def ascending(request: Request) -> bool:
    """Whether `order` asks for the oldest first; the latest come first where it is absent.

    Raises:
        TidemillError: kind BAD_REQUEST.
    """
    order = request.query_params.get("order", "desc")
    if order not in ("asc", "desc"):
        raise bad_request("order", f"order must be asc or desc, got {order[:32]!r}")
    return order == "asc"


def page_of(items: Sequence[dict[str, Any]], *, more: bool) -> Response:
    """A page of a list, as OpenAI's API has them.

    Args:
        items: of the page, each with an id.
        more: others follow.
    """
    return json_response(
        {
            "object": "list",
            "data": items,
            "first_id": items[0]["id"] if items else None,
            "last_id": items[-1]["id"] if items else None,
            "has_more": more,
        }
    )
