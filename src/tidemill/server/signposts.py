"""Errors where no endpoint answers: the route that was probably meant, in the path's dialect."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from tidemill.server.dialects.dialect import Dialect, Endpoint
from tidemill.server.errors import fail, problem_response


class Signposts:
    """What a server knows of its routes and of those that it does not have.

    Args:
        endpoints: all routes.
        dialects: the first one is the default.
    """

    def __init__(self, endpoints: Sequence[Endpoint], dialects: Sequence[Dialect]) -> None:
        self._endpoints = endpoints
        self._default = dialects[0]
        self._by_path: dict[str, Dialect] = {}
        for dialect in dialects:
            for endpoint in dialect.endpoints:
                self._by_path.setdefault(endpoint.path, dialect)
        self._by_prefix = [(p, d) for d in dialects for p in d.prefixes]
        self._by_header = {d.header.encode(): d for d in dialects if d.header}
        self._not_served = {k: v for d in dialects for k, v in d.not_served.items()}

    def dialect_of(self, path: str, headers: Iterable[tuple[bytes, bytes]] = ()) -> Dialect:
        """The dialect that a request speaks."""
        known = self._by_path.get(path)
        for name, _ in headers:
            dialect = self._by_header.get(name)
            if dialect and (known is None or path in {e.path for e in dialect.endpoints}):
                return dialect
        if known is not None:
            return known
        return next(
            (dialect for prefix, dialect in self._by_prefix if path.startswith(prefix)),
            self._default,
        )

    async def answer_error(self, request: Request, error: Exception) -> Response:
        """The response to an exception outside of a handler."""
        problem = fail(request, error)
        if isinstance(error, HTTPException) and error.status_code in (404, 405):
            path = request.url.path
            message = self._wrong_route(request.method, path)
            problem = dataclasses.replace(problem, message=message)
            if path in self._not_served:  # though it may look like a known one: /v1/responses/{id}
                problem = dataclasses.replace(problem, status=404, code="not_found")
            request.state.problem = problem
        return problem_response(problem, request.state.error_body)

    def _wrong_route(self, method: str, path: str) -> str:
        """The message for an unknown route or method, with the route that was probably meant."""
        target = f"{method} {path}"[:200]
        methods = [m for m, known in self._methods() if known == path]
        if methods:
            if method == "OPTIONS":
                return (
                    f"{target}: web pages of other origins may not use this server; start it with "
                    "--cors-origin ORIGIN to allow one ('*' allows all)"
                )
            return f"there is no {target} here; {path} takes {' and '.join(methods)}"
        routes: dict[str, list[str]] = {}
        for m, known in self._methods():
            routes.setdefault(known, []).append(m)
        nearest, meant = self._not_served.get(path) or _closest(path, routes), ""
        if nearest:
            taken = routes[nearest]
            meant = f" Did you mean {method if method in taken else taken[-1]} {nearest}?"
        return f"There is no {target} here.{meant} GET /openapi.json lists all routes."

    def _methods(self) -> Iterable[tuple[str, str]]:
        return ((e.method, e.path) for e in self._endpoints)


def _closest(path: str, routes: Iterable[str]) -> str | None:
    """The most similar route; what it begins decides, then a common suffix, then
    overall similarity."""
    from difflib import get_close_matches  # errors alone need it

    known = [route for route in routes if "{" not in route and route != "/"]
    within = path.lower().rstrip("/") + "/"
    if below := [route for route in known if route.startswith(within)]:
        return below[0]
    if same := get_close_matches(path[:200].lower(), known, n=1, cutoff=0.9):
        return same[0]  # a letter too many
    parts = path[:200].lower().strip("/").split("/")
    for start in range(len(parts)):
        end = "/" + "/".join(parts[start:])
        if ends := [route for route in known if route.endswith(end)]:
            return ends[0]
    found = get_close_matches(path[:200].lower(), known, n=1, cutoff=0.6)
    return found[0] if found else None
