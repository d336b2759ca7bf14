"""The OpenAPI document: routes, their bodies, and all response statuses.

Format: the OpenAPI specification 3.1.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from inspect import getdoc
from typing import Any

import msgspec

from tidemill.server.dialects.dialect import Dialect, Endpoint
from tidemill.server.dialects.fields import Neutral, schema_of
from tidemill.server.dialects.members import Body, bodies_in

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
    500: "Internal error; the server's log has the details under the request id",
    503: "The engine does not answer, or the server is full or shutting down; try again later",
}
_LOCKED = {
    401: "A key is required, or the one sent is unknown",
    403: "The key has no permission for this",
}
_WITH_BODY = {
    404: "There is no such model",
    413: "The body is too large",
    415: "The body is not JSON",
    429: "The server is overloaded; Retry-After says when to retry",
}
_NAMED_MODEL = {404: "There is no such model"}
_NAMED = {404: "There is nothing of that name, or it is another client's"}
_OF_PATHS = {
    "/v1/models/{model:path}": _NAMED_MODEL,
    "/api/blobs/{digest}": {
        201: "The file was received",
        415: "The file is encoded; send it as it is",
    },
    "/v1/responses": {
        101: "A WebSocket from now on",
        426: "A GET opens a WebSocket and needs the headers of a handshake",
    },
}
"""Further statuses of some paths."""


def document_of(
    version: str, routes: Sequence[Endpoint], dialects: Sequence[Dialect] = ()
) -> dict[str, Any]:
    """The document for an API of these routes.

    Args:
        version: of the API.
        routes: all of them.
        dialects: those of the routes, for the shapes of their errors.

    Raises:
        ValueError: two bodies have the same name.
    """
    shaped = {f"{d.name.title()}{ERROR}": d for d in dialects if d.error_schema}
    shapes = {e.handler: name for name, d in shaped.items() for e in d.endpoints}
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        path = re.sub(r":\w+\}", "}", route.path)
        paths.setdefault(path, {}).setdefault(
            route.method.lower(), _operation(route, path, shapes.get(route.handler, ERROR))
        )
    _, definitions = msgspec.json.schema_components(
        [body for body in {r.body: None for r in routes} if body is not None],
        ref_template="#/components/schemas/{name}",
    )
    for body in {inner for r in routes if r.body is not None for inner in bodies_in(r.body)}:
        if body.__name__ not in definitions:
            raise ValueError(f"{body.__name__} is the name of two bodies: rename one of them")
        _add_known(definitions[body.__name__], body)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Tidemill", "version": version},
        "paths": paths,
        "components": {
            "schemas": {
                **definitions,
                ERROR: _ERROR_SCHEMA,
                **{name: dict(dialect.error_schema) for name, dialect in shaped.items()},
            }
        },
    }


def field_names(document: object) -> frozenset[str]:
    """Every name of a field that a document of `document_of` declares, at any depth."""
    if isinstance(document, list):
        return frozenset[str]().union(*map(field_names, document))
    if not isinstance(document, dict):
        return frozenset()
    properties = document.get("properties")
    own = frozenset(properties) if isinstance(properties, dict) else frozenset()
    return own.union(*map(field_names, document.values()))


def _add_known(definition: dict[str, Any], body: type[Body]) -> None:
    """Add a body's undeclared fields, and the neutral values of declared ones."""
    members = dict(definition["properties"])
    for name, known in body.known.items():
        if name not in members:
            definition["properties"][name] = schema_of(known, members)
        elif isinstance(known, Neutral):
            definition["properties"][name] = {"anyOf": [members[name], known.schema()]}


def _operation(route: Endpoint, path: str, error: str) -> dict[str, Any]:
    method = route.method.lower()
    found: dict[str, Any] = {
        "summary": route.handler.__name__.replace("_", " ").title(),
        "description": getdoc(route.handler) or "",
        "operationId": re.sub(r"\W", "_", route.handler.__name__ + path) + "_" + method,
        "responses": _responses(route, error),
    }
    if route.body is not None:
        reference = {"$ref": f"#/components/schemas/{route.body.__name__}"}
        found["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": reference}},
        }
    if names := re.findall(r"\{(\w+)", path):
        found["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in names
        ]
    return found


def _responses(route: Endpoint, error: str) -> dict[str, Any]:
    problems = {
        **_ANY,
        **(_LOCKED if route.roles else {}),
        **(_WITH_BODY if route.body is not None else {}),
        **(_NAMED if "{" in route.path else {}),
        **_OF_PATHS.get(route.path, {}),
    }
    reference = {"application/json": {"schema": {"$ref": f"#/components/schemas/{error}"}}}
    found: dict[str, Any] = {"200": {"description": "Successful Response"}}
    if route.streams:
        streams = {kind: {"schema": {"type": "string"}} for kind in route.streams}
        answer = {"application/json": {}, **streams}
        found["200"] = {"description": "The answer, whole or as events", "content": answer}
    for status, text in sorted(problems.items()):
        found[str(status)] = {"description": text}
        if status >= 400:
            found[str(status)]["content"] = reference
    return found
