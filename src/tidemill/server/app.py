"""The HTTP API as an ASGI application."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Iterable
from functools import cache
from inspect import getdoc
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from tidemill.base.errors import TidemillError
from tidemill.server.access.auth import AuthMiddleware, principal_of, require
from tidemill.server.access.keys import Role
from tidemill.server.access.security import Security
from tidemill.server.admin import health
from tidemill.server.context import ServerContext
from tidemill.server.dialects.members import Body
from tidemill.server.dialects.openai import chat, completions, embeddings, models, rerank, schema
from tidemill.server.errors import Rejection, named_as_sent, problem_of
from tidemill.server.openapi import RouteDescription, document_of, field_names
from tidemill.server.transport.access_log import AccessLogMiddleware

Handler = Callable[[ServerContext, Request], Awaitable[Response]]

_PUBLIC: frozenset[Role] = frozenset()
_USERS = frozenset({Role.ADMIN, Role.USER})
_METRICS_READERS = frozenset({Role.ADMIN, Role.METRICS})

# method, path, handler, body, permitted roles (empty: public, no key needed)
_Route = tuple[str, str, Handler, type[Body] | None, frozenset[Role]]
_ROUTES: tuple[_Route, ...] = (
    ("POST", "/v1/chat/completions", chat.chat_completions, schema.ChatRequest, _USERS),
    ("POST", "/v1/completions", completions.completions, schema.CompletionRequest, _USERS),
    ("POST", "/v1/embeddings", embeddings.embeddings, schema.EmbeddingRequest, _USERS),
    ("POST", "/v1/rerank", rerank.rerank, schema.RerankRequest, _USERS),
    ("POST", "/rerank", rerank.rerank, schema.RerankRequest, _USERS),
    ("POST", "/v2/rerank", rerank.rerank, schema.RerankRequest, _USERS),
    ("POST", "/v1/score", rerank.score, schema.ScoreRequest, _USERS),
    ("POST", "/score", rerank.score, schema.ScoreRequest, _USERS),
    ("GET", "/v1/models", models.list_models, None, _USERS),
    ("GET", "/v1/models/{model:path}", models.get_model, None, _USERS),
    ("POST", "/tokenize", models.tokenize, schema.TokenizeRequest, _USERS),
    ("POST", "/detokenize", models.detokenize, schema.DetokenizeRequest, _USERS),
    ("GET", "/", health.about, None, _USERS),
    ("GET", "/v1", health.about, None, _USERS),
    ("GET", "/version", health.version, None, _USERS),
    ("GET", "/healthz", health.healthz, None, _PUBLIC),
    ("GET", "/readyz", health.readyz, None, _PUBLIC),
    # Other servers' names for readiness.
    ("GET", "/health", health.readyz, None, _PUBLIC),
    ("GET", "/ping", health.readyz, None, _PUBLIC),
    ("GET", "/metrics", health.metrics, None, _METRICS_READERS),
)

# Routes of other servers' native APIs, and the equivalent route here.
_FOREIGN_ROUTES = {
    **dict.fromkeys(
        ("/v1/responses", "/responses", "/v1/messages", "/api/chat", "/v1beta/models"),
        "/v1/chat/completions",
    ),
    **dict.fromkeys(
        ("/api/generate", "/generate", "/generate_stream", "/completion", "/infill"),
        "/v1/completions",
    ),
    **dict.fromkeys(("/api/tags", "/api/ps", "/api/show", "/props", "/info"), "/v1/models"),
    **dict.fromkeys(("/api/embed", "/api/embeddings", "/embedding", "/embed"), "/v1/embeddings"),
    "/api/version": "/version",
}

_STREAMED = (schema.ChatRequest, schema.CompletionRequest)


def build_app(context: ServerContext, security: Security | None = None) -> ASGIApp:
    """The application that serves `context`, protected as `security` says.

    OpenAPI is at /openapi.json. There is no /docs page: the usual one loads scripts from a CDN
    and would not work offline.
    """
    security = security or Security()

    async def openapi(context: ServerContext, request: Request) -> Response:
        """This OpenAPI document."""
        return JSONResponse(document())

    @cache
    def document() -> dict[str, Any]:
        return document_of(
            context.build or "0",
            [
                RouteDescription(
                    *(method, path, handler.__name__, getdoc(handler) or "", body),
                    locked=bool(roles),
                    stream=body in _STREAMED,
                )
                for method, path, handler, body, roles in routes
            ],
        )

    routes = (*_ROUTES, ("GET", "/openapi.json", openapi, None, _USERS))
    app = Starlette(
        routes=[
            Route(path, _endpoint(context, path, handler, roles), methods=[method])
            for method, path, handler, _, roles in routes
        ],
        exception_handlers=dict.fromkeys(
            (TidemillError, Rejection, HTTPException, Exception), _answer_error
        ),
    )
    app.router.redirect_slashes = False
    protected: ASGIApp = AuthMiddleware(
        app,
        security.keys,
        share_prefix_cache=security.share_prefix_cache,
        own_hosts=security.own_hosts,
    )
    if security.cors_origins:
        # Outside authentication: a browser sends its preflight request without a key.
        protected = CORSMiddleware(
            protected,
            allow_origins=security.cors_origins,
            # Any requested header: clients send many custom ones, and they change.
            allow_methods=("*",),
            allow_headers=("*",),
            expose_headers=("x-request-id", "retry-after"),
            # Chrome sends a preflight before a public page may reach a private address.
            allow_private_network=True,
        )
    patterns = [(route.path_regex, route.path) for route in app.routes if isinstance(route, Route)]

    def pattern_of(path: str) -> str | None:
        path = path.rstrip("/") or "/"
        return next((pattern for regex, pattern in patterns if regex.match(path)), None)

    names = cache(lambda: field_names(document()))
    return AccessLogMiddleware(PlainPath(protected), context.metrics, pattern_of, names)


class PlainPath:
    """ASGI middleware by which ``/v1/models/`` and ``//v1/models`` (a base URL that ends with a
    slash) are ``/v1/models``, without a redirection, which would lose a body.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] == "http":
            path = scope["path"]
            if path.endswith("/") or "//" in path:
                scope = {**scope, "path": "/" + "/".join(filter(None, path.split("/")))}
        await self.app(scope, receive, send)


def _endpoint(
    context: ServerContext, path: str, handler: Handler, roles: frozenset[Role]
) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        request.state.route = path
        principal = principal_of(request)
        try:
            if roles:
                require(principal, roles)
            with context.bodies.hold(principal) as request.state.hold:
                return await handler(context, request)
        except (TidemillError, Rejection) as error:
            problem = problem_of(error, request.state.request_id)
            problem = named_as_sent(problem, getattr(request.state, "sent_as", {}))
            request.state.problem = problem
            context.metrics.requests.labels(problem.code or "error").inc()
            return problem.response()

    return endpoint


async def _answer_error(request: Request, error: Exception) -> Response:
    problem = problem_of(error, request.state.request_id)
    if isinstance(error, HTTPException) and error.status_code in (404, 405):
        message = _wrong_route(request.method, request.url.path)
        problem = dataclasses.replace(problem, message=message)
    request.state.problem = problem
    return problem.response()


def _wrong_route(method: str, path: str) -> str:
    """The message for an unknown route or method, with the route that was probably meant."""
    target = f"{method} {path}"[:200]
    methods = [m for m, known, *_ in _ROUTES if known == path]
    if methods:
        if method == "OPTIONS":
            return (
                f"{target}: web pages of other origins may not use this server; start it with "
                "--cors-origin ORIGIN to allow one ('*' allows all)"
            )
        return f"there is no {target} here; {path} takes {' and '.join(methods)}"
    routes = {known: m for m, known, *_ in _ROUTES}
    nearest = _FOREIGN_ROUTES.get(path) or _closest(path, routes)
    meant = f" Did you mean {routes[nearest]} {nearest}?" if nearest else ""
    return f"There is no {target} here.{meant} GET /openapi.json lists all routes."


def _closest(path: str, routes: Iterable[str]) -> str | None:
    """The most similar route; a common path suffix decides before overall similarity."""
    from difflib import get_close_matches  # errors alone need it

    known = [route for route in routes if "{" not in route and route != "/"]
    parts = path[:200].lower().strip("/").split("/")
    for start in range(len(parts)):
        end = "/" + "/".join(parts[start:])
        if ends := [route for route in known if route.endswith(end)]:
            return ends[0]
    within = path.lower().rstrip("/") + "/"
    if below := [route for route in known if route.startswith(within)]:
        return below[0]
    found = get_close_matches(path[:200].lower(), known, n=1, cutoff=0.6)
    return found[0] if found else None
