"""The HTTP API as an ASGI application."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable
from functools import cache
from inspect import getdoc
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from tidemill.base.errors import TidemillError
from tidemill.server import health
from tidemill.server.access import Entrance
from tidemill.server.auth import Door, principal_of, require
from tidemill.server.context import ServerContext
from tidemill.server.errors import Refusal, problem_of
from tidemill.server.keys import Role
from tidemill.server.members import Body
from tidemill.server.openai import chat, completions, embeddings, models, rerank, schema
from tidemill.server.openapi import Described, document_of
from tidemill.server.security import Security

Handler = Callable[[ServerContext, Request], Awaitable[Response]]

_ANYONE: frozenset[Role] = frozenset()
_USERS = frozenset({Role.ADMIN, Role.USER})
_METERS = frozenset({Role.ADMIN, Role.METRICS})

# method, path, handler, body, who may (none named: everyone, even without a key)
_Route = tuple[str, str, Handler, type[Body] | None, frozenset[Role]]
_ROUTES: tuple[_Route, ...] = (
    ("POST", "/v1/chat/completions", chat.chat_completions, schema.ChatRequest, _USERS),
    ("POST", "/v1/completions", completions.completions, schema.CompletionRequest, _USERS),
    ("POST", "/v1/embeddings", embeddings.embeddings, schema.EmbeddingRequest, _USERS),
    ("POST", "/v1/rerank", rerank.rerank, schema.RerankRequest, _USERS),
    ("POST", "/rerank", rerank.rerank, schema.RerankRequest, _USERS),
    ("POST", "/v1/score", rerank.score, schema.ScoreRequest, _USERS),
    ("GET", "/v1/models", models.list_models, None, _USERS),
    ("GET", "/v1/models/{model:path}", models.get_model, None, _USERS),
    ("POST", "/tokenize", models.tokenize, schema.TokenizeRequest, _USERS),
    ("POST", "/detokenize", models.detokenize, schema.DetokenizeRequest, _USERS),
    ("GET", "/healthz", health.healthz, None, _ANYONE),
    ("GET", "/readyz", health.readyz, None, _ANYONE),
    ("GET", "/metrics", health.metrics, None, _METERS),
)

_STREAMED = (schema.ChatRequest, schema.CompletionRequest)


def build_app(context: ServerContext, security: Security | None = None) -> ASGIApp:
    """The application that serves `context` behind the locks of `security`.

    OpenAPI is at /openapi.json. There is no /docs page: the usual one loads its scripts from a
    content network, which would not work offline.
    """
    security = security or Security()

    async def openapi(context: ServerContext, request: Request) -> Response:
        """This description."""
        return JSONResponse(document())

    @cache
    def document() -> dict[str, Any]:
        return document_of(
            context.build or "0",
            [
                Described(
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
            (TidemillError, Refusal, HTTPException, Exception), _answer_error
        ),
    )
    app.router.redirect_slashes = False
    door: ASGIApp = Door(
        app,
        security.keys,
        share_prefix_cache=security.share_prefix_cache,
        own_hosts=security.own_hosts,
    )
    if security.cors_origins:
        # Before the door: a browser asks what it may without a key.
        door = CORSMiddleware(
            door,
            allow_origins=security.cors_origins,
            allow_methods=("GET", "POST"),
            allow_headers=("authorization", "content-type", "x-request-id"),
            expose_headers=("x-request-id", "retry-after"),
        )
    return Entrance(door, context.metrics)


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
        except (TidemillError, Refusal) as error:
            problem = problem_of(error, request.state.request_id)
            context.metrics.requests.labels(problem.code or "error").inc()
            return problem.response()

    return endpoint


async def _answer_error(request: Request, error: Exception) -> Response:
    problem = problem_of(error, request.state.request_id)
    if isinstance(error, HTTPException) and error.status_code in (404, 405):
        known = ", ".join(f"{method} {path}" for method, path, *_ in _ROUTES)
        asked = f"{request.method} {request.url.path}"[:200]
        message = f"there is no {asked} here; there is {known}"
        problem = dataclasses.replace(problem, message=message)
    return problem.response()
