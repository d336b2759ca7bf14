"""llama.cpp's errors: `{"error": {"code", "message", "type"}}`; the code is the status."""

from __future__ import annotations

import msgspec

from tidemill.server.errors import Problem

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    503: "unavailable_error",
}


ERROR_SCHEMA = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["code", "message", "type"],
            "properties": {
                "code": {"type": "integer"},
                "message": {"type": "string"},
                "type": {"type": "string"},
            },
        }
    },
}


def error_body(problem: Problem) -> bytes:
    """The JSON document."""
    other = "server_error" if problem.status >= 500 else "invalid_request_error"
    kind = _TYPES.get(problem.status, other)
    error = {"code": problem.status, "message": problem.whole_message, "type": kind}
    return msgspec.json.encode({"error": error})
