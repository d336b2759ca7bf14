"""The HTTP API as an ASGI application."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, Protocol

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from tidemill.base.errors import TidemillError
from tidemill.server.access.auth import AuthMiddleware, principal_of, require
from tidemill.server.access.keys import Role
from tidemill.server.access.security import Security
from tidemill.server.admin import audit, blocks, chats, health, identity, load, rollouts, whoami
from tidemill.server.admin import cache as admin_cache
from tidemill.server.admin import engines as admin_engines
from tidemill.server.admin import models as admin_models
from tidemill.server.admin import profile as admin_profile
from tidemill.server.admin import quotas as admin_quotas
from tidemill.server.admin import requests as admin_requests
from tidemill.server.admin import usage as admin_usage
from tidemill.server.context import ServerContext
from tidemill.server.dialects.anthropic.routes import ANTHROPIC
from tidemill.server.dialects.cohere.embed import COHERE
from tidemill.server.dialects.dialect import Dialect, Endpoint, is_act
from tidemill.server.dialects.kserve.routes import KSERVE
from tidemill.server.dialects.limit_headers import LIMIT_HEADERS
from tidemill.server.dialects.llamacpp.routes import LLAMACPP
from tidemill.server.dialects.ollama.routes import OLLAMA
from tidemill.server.dialects.openai.routes import OPENAI
from tidemill.server.dialects.tei.embed import TEI
from tidemill.server.dialects.tgi.routes import TGI
from tidemill.server.errors import Rejection, fail, problem_response
from tidemill.server.openapi import document_of, field_names
from tidemill.server.page import PageMiddleware
from tidemill.server.signposts import Signposts
from tidemill.server.transport.access_log import AccessLogMiddleware
from tidemill.server.transport.http import HttpServer, make_server
from tidemill.telemetry.record import Operation

DIALECTS: tuple[Dialect, ...] = (OPENAI, ANTHROPIC, TGI, OLLAMA, KSERVE, LLAMACPP, COHERE, TEI)
"""The APIs that are served. To add one: its package, and an entry here. The first one's error shape
is used where a path belongs to none."""

OPERATORS: tuple[Endpoint, ...] = (
    *health.ENDPOINTS,
    *admin_models.ENDPOINTS,
    *rollouts.ENDPOINTS,
    *whoami.ENDPOINTS,
    *chats.ENDPOINTS,
    *blocks.ENDPOINTS,
    *admin_cache.ENDPOINTS,
    *load.ENDPOINTS,
    *audit.ENDPOINTS,
    *identity.ENDPOINTS,
    *admin_quotas.ENDPOINTS,
    *admin_usage.ENDPOINTS,
    *admin_requests.ENDPOINTS,
    *admin_profile.ENDPOINTS,
    *admin_engines.ENDPOINTS,
)
"""Routes that belong to no dialect."""


class Extension(Protocol):
    """What a server has beside its own models; see `gateway.upstream`."""

    def dialects(self, dialects: Sequence[Dialect]) -> Sequence[Dialect]:
        """The dialects as they are served."""

    @property
    def operators(self) -> Sequence[Endpoint]:
        """Further routes that belong to no dialect."""

    def start(self) -> None:
        """The event loop runs."""

    async def reload(self, table: Mapping[str, Any]) -> None:
        """The deployment says this of it from now on; it was checked."""

    async def close(self) -> None:
        """The server has ended."""


def make_http_server(
    context: ServerContext,
    *,
    drain_seconds: int,
    security: Security | None = None,
    dialects: Sequence[Dialect] = DIALECTS,
    operators: Sequence[Endpoint] = OPERATORS,
) -> HttpServer:
    """The HTTP server of `context`; requests in flight have `drain_seconds` after `stop`."""
    return make_server(
        build_app(context, security, dialects, operators),
        context.limits,
        context.metrics,
        dialects[0].error_body,
        drain_seconds=drain_seconds,
        security=security,
    )


def build_app(
    context: ServerContext,
    security: Security | None = None,
    dialects: Sequence[Dialect] = DIALECTS,
    operators: Sequence[Endpoint] = OPERATORS,
) -> ASGIApp:
    """The application that serves `context`, protected as `security` says.

    OpenAPI is at /openapi.json. There is no /docs page: the usual one loads scripts from a CDN
    and would not work offline.
    """
    security = security or Security()

    async def openapi(context: ServerContext, request: Request) -> Response:
        """This OpenAPI document."""
        return JSONResponse(document())

    endpoints = (
        *(endpoint for dialect in dialects for endpoint in dialect.endpoints),
        *operators,
        Endpoint("GET", "/openapi.json", openapi),
    )
    document = cache(lambda: document_of(context.version, endpoints, dialects))
    signs = Signposts(endpoints, dialects)
    app = Starlette(
        routes=[
            *_routes_by_header(context, dialects),
            *(
                Route(e.path, EndpointApp(context, e), methods=[e.method], name=e.handler.__name__)
                for e in endpoints
            ),
        ],
        exception_handlers=dict.fromkeys(
            (TidemillError, Rejection, HTTPException, Exception), signs.answer_error
        ),
    )
    app.router.redirect_slashes = False
    protected: ASGIApp = AuthMiddleware(
        app,
        security.keys,
        share_prefix_cache=security.share_prefix_cache,
        own_hosts=security.own_hosts,
        region=security.region,
    )
    if context.page:
        protected = PageMiddleware(protected)
    if security.cors_origins:
        # Outside authentication: a browser sends its preflight request without a key.
        protected = CORSMiddleware(
            protected,
            allow_origins=security.cors_origins,
            # Any requested header: clients send many custom ones, and they change.
            allow_methods=("*",),
            allow_headers=("*",),
            expose_headers=(
                "x-request-id",
                "request-id",
                "x-tidemill-model",
                "x-tidemill-truncated",
                "retry-after",
                "server-timing",
                *LIMIT_HEADERS,
            ),
            # Chrome sends a preflight before a public page may reach a private address.
            allow_private_network=True,
        )
    patterns = [(route.path_regex, route.path) for route in app.routes if isinstance(route, Route)]

    def pattern_of(path: str) -> str | None:
        path = path.rstrip("/") or "/"
        return next((pattern for regex, pattern in patterns if regex.match(path)), None)

    names = cache(lambda: field_names(document()))
    plain = PlainPath(protected, signs.dialect_of)
    if context.recording is not None:
        context.recording.routes = _recorded(dialects, endpoints)
    exporter = context.exporter
    context.app = AccessLogMiddleware(
        *(plain, context.metrics, pattern_of, names, context.recording),
        trace=None if exporter is None else exporter.begin,
    )
    return context.app


def _recorded(
    dialects: Sequence[Dialect], endpoints: Sequence[Endpoint]
) -> frozenset[tuple[str, str]]:
    """Methods and patterns of the routes that ask a model for something, or change the server."""
    asking = (
        endpoint
        for dialect in dialects
        for endpoint in dialect.endpoints
        if endpoint.method == "POST" and Role.USER in endpoint.roles
    )
    return frozenset((e.method, e.path) for e in (*asking, *filter(is_act, endpoints)))


Headers = Iterable[tuple[bytes, bytes]]


class HeaderRoute(Route):
    """A route for requests that carry a header.

    Args:
        header: its name, in lower case.
        path, endpoint, more: as of `Route`.
    """

    def __init__(self, header: str, path: str, endpoint: ASGIApp, **more: Any) -> None:
        super().__init__(path, endpoint, **more)
        self._header = header.encode()

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """None without the header."""
        if all(name != self._header for name, _ in scope["headers"]):
            return Match.NONE, {}
        return super().matches(scope)


def _routes_by_header(context: ServerContext, dialects: Sequence[Dialect]) -> list[Route]:
    """Routes of dialects whose requests carry a header: they come before the same paths' others."""
    return [
        HeaderRoute(
            dialect.header,
            e.path,
            EndpointApp(context, e),
            methods=[e.method],
            name=e.handler.__name__,
        )
        for dialect in dialects
        for e in dialect.endpoints
        if dialect.header
    ]


class EndpointApp:
    """One route as an ASGI application: checks the role, runs the handler, answers its errors."""

    def __init__(self, context: ServerContext, endpoint: Endpoint) -> None:
        self._context = context
        self._endpoint = endpoint
        self._is_act = is_act(endpoint)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        context, endpoint = self._context, self._endpoint
        request = Request(scope, receive, send)
        state = request.state
        state.route = endpoint.path
        if self._is_act:
            state.operation = Operation.ADMIN
            state.subject = ",".join(map(str, request.path_params.values()))
        state.begin_quota = context.begin_quota
        principal = principal_of(request)
        state.hold = context.bodies.hold(principal)
        try:
            try:
                if endpoint.roles:
                    require(principal, endpoint.roles)
                response = await endpoint.handler(context, request)
            except (TidemillError, Rejection) as error:
                problem = fail(request, error)
                context.metrics.refused(problem.code or "error")
                state.hold.close()
                response = problem_response(problem, state.error_body)
            await response(scope, receive, send)
        finally:
            state.hold.close()


class PlainPath:
    """ASGI middleware by which ``/v1/models/`` and ``//v1/models`` (a base URL that ends with a
    slash) are ``/v1/models``, without a redirection, which would lose a body; and by which errors
    take the shape of the request's dialect.

    Args:
        app: the wrapped application.
        dialect_of: the dialect of a path and headers.
    """

    def __init__(self, app: ASGIApp, dialect_of: Callable[[str, Headers], Dialect]) -> None:
        self.app = app
        self._dialect_of = dialect_of

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] == "http":
            path = scope["path"]
            if path.endswith("/") or "//" in path:
                scope = {**scope, "path": "/" + "/".join(filter(None, path.split("/")))}
            dialect = self._dialect_of(scope["path"], scope["headers"])
            state = scope.setdefault("state", {})
            state["error_body"] = dialect.error_body
            state["id_header"] = dialect.id_header
            state["limit_headers"] = dialect.limit_headers
        await self.app(scope, receive, send)
