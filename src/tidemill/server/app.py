"""The HTTP API as an ASGI application."""

from __future__ import annotations

import dataclasses
import string
from collections.abc import Awaitable, Callable
from typing import Any

import pydantic
from fastapi import FastAPI
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tidemill.base.errors import TidemillError
from tidemill.base.ids import new_id
from tidemill.server import health
from tidemill.server.context import ServerContext
from tidemill.server.errors import Refusal, problem_of
from tidemill.server.openai import chat, completions, models, schema

Handler = Callable[[ServerContext, Request], Awaitable[Response]]

MAX_REQUEST_ID = 128
_ID_CHARACTERS = frozenset(string.ascii_letters + string.digits + "-_.:/+=")

# method, path, handler, body
_ROUTES: tuple[tuple[str, str, Handler, type[pydantic.BaseModel] | None], ...] = (
    ("POST", "/v1/chat/completions", chat.chat_completions, schema.ChatRequest),
    ("POST", "/v1/completions", completions.completions, schema.CompletionRequest),
    ("GET", "/v1/models", models.list_models, None),
    ("GET", "/v1/models/{model:path}", models.get_model, None),
    ("POST", "/tokenize", models.tokenize, schema.TokenizeRequest),
    ("POST", "/detokenize", models.detokenize, schema.DetokenizeRequest),
    ("GET", "/healthz", health.healthz, None),
    ("GET", "/readyz", health.readyz, None),
    ("GET", "/metrics", health.metrics, None),
)


def build_app(context: ServerContext) -> ASGIApp:
    """The application that serves `context`.

    OpenAPI is at /openapi.json. There is no /docs page: the usual one loads its scripts from a
    content network, which would not work offline.
    """
    app = FastAPI(
        title="Tidemill",
        version=context.build or "0",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    for method, path, handler, body in _ROUTES:
        _add_route(app, context, method, path, handler, body)
    for kind in (TidemillError, Refusal, HTTPException, Exception):
        app.add_exception_handler(kind, _answer_error)
    _describe_bodies(app)
    return RequestIds(app)


def _add_route(
    app: FastAPI,
    context: ServerContext,
    method: str,
    path: str,
    handler: Handler,
    body: type[pydantic.BaseModel] | None,
) -> None:
    async def endpoint(request: Request) -> Response:
        try:
            return await handler(context, request)
        except (TidemillError, Refusal) as error:
            problem = problem_of(error, request.state.request_id)
            context.metrics.requests.labels(problem.code or "error").inc()
            return problem.response()

    extra: dict[str, Any] = {}
    if body is not None:
        reference = {"$ref": f"#/components/schemas/{body.__name__}"}
        extra["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": reference}},
        }
    app.add_api_route(
        path,
        endpoint,
        methods=[method],
        name=handler.__name__,
        description=handler.__doc__,
        openapi_extra=extra,
        response_model=None,
        response_class=Response,
    )


def _describe_bodies(app: FastAPI) -> None:
    # Handlers read bodies themselves (bounds, one parse, our errors), so the framework does not
    # know their schemas.
    bodies = [(body, "validation") for *_, body in _ROUTES if body is not None]
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = generate()
            _, definitions = pydantic.json_schema.models_json_schema(
                bodies,  # type: ignore[arg-type]
                ref_template="#/components/schemas/{model}",
            )
            document.setdefault("components", {})["schemas"] = definitions["$defs"]
            app.openapi_schema = document
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


async def _answer_error(request: Request, error: Exception) -> Response:
    problem = problem_of(error, request.state.request_id)
    if isinstance(error, HTTPException) and error.status_code in (404, 405):
        known = ", ".join(f"{method} {path}" for method, path, *_ in _ROUTES)
        asked = f"{request.method} {request.url.path}"[:200]
        message = f"there is no {asked} here; there is {known}"
        problem = dataclasses.replace(problem, message=message)
    return problem.response()


class RequestIds:
    """Gives every request an id, taken from X-Request-Id where it is sane, and sends it back.

    Outermost: also swallows what the framework re-raises after it answered 500 (it is logged by
    then), so that the server beneath prints no second traceback.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request_id = _sane(Headers(scope=scope).get("x-request-id")) or new_id("req")
        scope.setdefault("state", {})["request_id"] = request_id
        started = False

        async def with_id(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                MutableHeaders(scope=message)["x-request-id"] = request_id
            await send(message)

        try:
            await self.app(scope, receive, with_id)
        except Exception:
            # The framework's handler has answered and logged, unless the answer itself failed.
            if not started:
                raise


def _sane(request_id: str | None) -> str | None:
    if request_id and len(request_id) <= MAX_REQUEST_ID and _ID_CHARACTERS.issuperset(request_id):
        return request_id
    return None
