"""What the OpenAPI document says beyond the routes: bodies, and every status they can answer."""

from __future__ import annotations

from typing import Any

import pydantic
from fastapi import FastAPI

ERROR = "Error"

_TEXT_OR_NULL: dict[str, Any] = {"anyOf": [{"type": "string"}, {"type": "null"}]}
_ERROR_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": _TEXT_OR_NULL,
                "code": _TEXT_OR_NULL,
            },
        }
    },
}
_ANY = {
    400: "The request is wrong; `param` names the member",
    408: "The request did not arrive in time",
    414: "The URL is too long",
    431: "The head is too large",
    500: "A defect of the server; its log has the details under the request id",
    503: "The engine does not answer, or the server is full or shutting down; try again later",
}
_LOCKED = {
    401: "A key is needed, or the one sent is not known",
    403: "The key may not do this",
}
_WITH_BODY = {
    404: "There is no such model",
    413: "The body is too large",
    415: "The body is not JSON",
    429: "There is too much to do already; Retry-After says when to come again",
}
_NAMED_MODEL = {404: "There is no such model"}
_OF_PATHS = {"/v1/models/{model:path}": _NAMED_MODEL}


def responses_of(path: str, *, body: bool, locked: bool, stream: bool) -> dict[int | str, Any]:
    """The statuses of a route, for the framework's `responses`.

    Args:
        path: of the route.
        body: it takes a JSON body.
        locked: it asks for a key.
        stream: its answer can be a stream of server-sent events.
    """
    problems = {
        **_ANY,
        **(_LOCKED if locked else {}),
        **(_WITH_BODY if body else {}),
        **_OF_PATHS.get(path, {}),
    }
    reference = {"application/json": {"schema": {"$ref": f"#/components/schemas/{ERROR}"}}}
    found: dict[int | str, Any] = {
        status: {"description": text, "content": reference}
        for status, text in sorted(problems.items())
    }
    if stream:
        answer = {"application/json": {}, "text/event-stream": {"schema": {"type": "string"}}}
        found[200] = {"description": "The answer, whole or as events", "content": answer}
    return found


def describe_bodies(app: FastAPI, bodies: list[type[pydantic.BaseModel]]) -> None:
    """Put the schemas of request bodies and errors into the document.

    Handlers read bodies themselves (bounds, one parse, our errors), so the framework does not know
    their schemas.
    """
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = generate()
            _, definitions = pydantic.json_schema.models_json_schema(
                [(body, "validation") for body in bodies],
                ref_template="#/components/schemas/{model}",
            )
            schemas = {**definitions["$defs"], ERROR: _ERROR_SCHEMA}
            document.setdefault("components", {})["schemas"] = schemas
            app.openapi_schema = document
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]
