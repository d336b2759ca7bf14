"""Parameters of a URL, checked and named."""

from __future__ import annotations

from starlette.requests import Request

from tidemill.base.errors import bad_request


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


def flag(request: Request, name: str) -> bool:
    """A boolean of the URL; false where it is absent.

    Raises:
        TidemillError: kind BAD_REQUEST naming the parameter.
    """
    text = request.query_params.get(name, "false").lower()
    if text not in ("true", "false"):
        raise bad_request(name, f"{name} must be true or false, got {text[:32]!r}")
    return text == "true"
