"""Anthropic's errors: `{"type": "error", "error": {"type", "message"}, "request_id"}`."""

from __future__ import annotations

import msgspec

from tidemill.server.errors import Problem

# status -> error type; their API's names. A full queue is a 429 with Retry-After, as everywhere in
# this server; their 529 says the same of theirs, and their clients retry both.
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


ERROR_SCHEMA = {
    "type": "object",
    "required": ["type", "error", "request_id"],
    "properties": {
        "type": {"const": "error"},
        "error": {
            "type": "object",
            "required": ["type", "message"],
            "properties": {
                "type": {"enum": [*_TYPES.values(), "invalid_request_error", "api_error"]},
                "message": {"type": "string"},
            },
        },
        "request_id": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    },
}


def error_body(problem: Problem) -> bytes:
    """The JSON document. The shape has no place for the field, so the message names it."""
    kind = "api_error" if problem.status >= 500 else "invalid_request_error"
    error = {"type": _TYPES.get(problem.status, kind), "message": problem.whole_message}
    return msgspec.json.encode(
        {"type": "error", "error": error, "request_id": problem.request_id or None}
    )
